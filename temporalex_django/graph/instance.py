"""``Instance``: the state of one execution of a graph, as a frozen value.

The functions of ``engine`` return new ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from temporalex_django.core.payloads import codec
from temporalex_django.errors import InvalidId, PayloadError, UnknownVersion, UnknownWorkflow
from temporalex_django.graph.context import Context, Data, ExecutionEntry, Log, freeze
from temporalex_django.graph.definition import Graph, bits
from temporalex_django.graph.steps import StepRef

#: The statuses of an instance; ``completed``, ``failed`` and ``cancelled`` are final.
STATUSES = ("pending", "running", "waiting", "completed", "failed", "cancelled")
FINAL = frozenset({"completed", "failed", "cancelled"})


@dataclass(frozen=True, eq=False)
class Instance:
    """The state of one execution of a graph, created by ``new`` and changed only by the functions of ``engine``.

    ``workflow`` is the class, and ``initial`` the data that it started with. The four sets of steps are disjoint.
    ``active_steps`` are to be executed, ``waiting_steps`` wait for an event, ``requested_steps`` wait for predecessors
    that can still run, and ``completed_steps`` have ended. Their members are the classes and instances of
    ``transitions``. ``failed_step`` and ``reason`` say how it failed.
    """

    id: str
    workflow: Any  # the class
    version: int
    initial: Data
    status: str = "pending"
    runtime_metadata: Mapping[str, Any] = field(default_factory=Data)
    telemetry_metadata: Mapping[str, Any] = field(default_factory=Data)
    telemetry_start_time: datetime | None = None
    started_by: str = ""  # key of the user; empty if code started it
    failed_step: StepRef | None = None
    reason: Any = None
    active: int = 0  # bit masks over ``workflow._graph``
    waiting: int = 0
    requested: int = 0
    completed: int = 0
    log: Log = field(default_factory=Log, repr=False)
    count: int = 0  # number of entries in the log that belong to this instance
    size: int = 0  # bytes of the data of all steps, as JSON

    @classmethod
    def new(
        cls,
        *,
        id: str,
        workflow: Any,
        version: int = 1,
        initial: Mapping[str, Any] | None = None,
        telemetry_metadata: Mapping[str, Any] | None = None,
    ) -> Instance:
        """Return a pending instance of the class ``workflow``, with the data ``initial`` in its context.

        ``telemetry_metadata`` is merged into the Django signals about its steps. Raises ``InvalidId``,
        ``UnknownWorkflow``, ``UnknownVersion``, ``PayloadError``.
        """
        if not isinstance(id, str) or not id:
            raise InvalidId(f"the id of an instance must be a string, not {id!r}")
        if not isinstance(getattr(workflow, "_graph", None), Graph):
            raise UnknownWorkflow(f"{id}: {workflow!r} is not a graph workflow")
        if type(version) is not int or version < 1:
            raise UnknownVersion(f"{id}: the version {version!r} must be a whole number of 1 or more")
        return cls(
            id=id,
            workflow=workflow,
            version=version,
            initial=_frozen_mapping(initial, f"{id}: the initial context"),
            telemetry_metadata=_frozen_mapping(telemetry_metadata, f"{id}: the telemetry metadata"),
        )

    def changed(self, **changes: Any) -> Instance:
        """Return a copy in which the named fields have other values.

        This takes a tenth of the time of ``dataclasses.replace``, which runs ``__init__``.
        """
        instance = object.__new__(Instance)
        fields = instance.__dict__
        fields.update(self.__dict__)
        # The cached sets of steps are of the old masks.
        for name in _CACHED_NAMES:
            fields.pop(name, None)
        fields.update(changes)
        return instance

    @property
    def graph(self) -> Graph:
        """The graph of the class: the steps by number, and the transitions between them."""
        return self.workflow._graph  # type: ignore[no-any-return] # noqa: SLF001 - `new` has checked the class

    @property
    def context(self) -> Context:
        """The data that the instance started with and the results of its steps; read-only."""
        return Context.of(self)

    @property
    def execution_history(self) -> tuple[ExecutionEntry, ...]:
        """The entries of the steps that ended, in the order in which the instance recorded them."""
        return tuple(self.log.entries[: self.count])

    @cached_property
    def active_steps(self) -> frozenset[StepRef]:
        """The steps that are executed now."""
        return frozenset(self.graph.refs(self.active))

    @cached_property
    def waiting_steps(self) -> frozenset[StepRef]:
        """The steps that wait for an event or a time."""
        return frozenset(self.graph.refs(self.waiting))

    @cached_property
    def requested_steps(self) -> frozenset[StepRef]:
        """The steps that wait for predecessors which can still run."""
        return frozenset(self.graph.refs(self.requested))

    @cached_property
    def completed_steps(self) -> frozenset[StepRef]:
        """The steps that have ended."""
        return frozenset(self.graph.refs(self.completed))

    @property
    def current_step(self) -> StepRef | None:
        """One step for display: the first active step, else the first waiting one; None if none is in progress."""
        return next(self.graph.refs(self.active or self.waiting), None)

    @property
    def step_configs(self) -> dict[StepRef, Any]:
        """The configs of the steps that have not ended, by step. Steps without a config are left out."""
        live = self.active | self.waiting | self.requested
        return {self.graph.steps[i]: self.log.configs[i] for i in bits(live) if self.log.configs.get(i) is not None}

    def config_of(self, step: StepRef) -> Any:
        """Return the config that a transition gave to an active, waiting or requested step; None for other steps."""
        number = self.graph.number[step]
        if self.live >> number & 1:
            return self.log.configs.get(number)
        return None

    @property
    def live(self) -> int:
        """The steps that are active, waiting or requested, as a bit mask of their numbers."""
        return self.active | self.waiting | self.requested

    @property
    def closed(self) -> bool:
        """True if the status is final."""
        return self.status in FINAL

    def _identity(self) -> tuple[Any, ...]:
        """Return the values by which two instances are compared, in the order of the fields."""
        fields = {name: value for name, value in self.__dict__.items() if name not in _CACHED_NAMES}
        # The log is shared: entries behind ``count`` and configs of ended steps are no part of this instance.
        fields["log"] = (self.execution_history, self.step_configs)
        return tuple(fields[name] for name in self.__dataclass_fields__)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Instance):
            return self._identity() == other._identity()
        return NotImplemented

    __hash__ = None  # type: ignore[assignment] # it holds dicts


_CACHED_NAMES = ("active_steps", "waiting_steps", "requested_steps", "completed_steps")


def _frozen_mapping(value: Any, label: str) -> Data:
    if value is not None and not isinstance(value, Mapping):
        raise PayloadError(f"{label} must be a mapping, not {value!r}")
    return freeze(codec.to_plain(dict(value or {}), label=label))  # type: ignore[no-any-return] # a mapping stays one
