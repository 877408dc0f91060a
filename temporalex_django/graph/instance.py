"""Instances of a graph, and their snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from temporalex_django.authoring.redaction import Redactor
from temporalex_django.core.messages.sender import Sender
from temporalex_django.core.payloads import codec
from temporalex_django.errors import InvalidId, PayloadError, UnknownVersion, UnknownWorkflow
from temporalex_django.graph.context import Context, Data, ExecutionEntry, Log, freeze, thaw
from temporalex_django.graph.definition import Graph, bits
from temporalex_django.graph.steps import StepRef, key_of

# --- instance ---------------------------------------------------------------------------------------------------------
#
# ``Instance``: the state of one execution of a graph, as a frozen value.
#
# The functions of ``engine`` return new ones.


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


# --- snapshot ---------------------------------------------------------------------------------------------------------
#
# An instance as plain data (a snapshot), and back.
#
# A run that moves to another version of its class takes its snapshot along, and storages keep instances in this form.
# Steps are named by their keys. When data is read, keys are looked up in the class; nothing is imported by a name from
# the data.


_STEP_SETS = ("active", "waiting", "requested", "completed")


def dump(instance: Instance) -> dict[str, Any]:
    """Return the instance as plain JSON data (a snapshot), from which ``load`` makes an equal instance again.

    The class of the workflow is not part of the data.
    """
    keys = instance.graph.keys
    started = instance.telemetry_start_time
    return {
        "id": instance.id,
        "version": instance.version,
        "status": instance.status,
        "initial": thaw(instance.initial),
        **{name: [keys[i] for i in bits(getattr(instance, name))] for name in _STEP_SETS},
        "configs": {key_of(step): thaw(config) for step, config in instance.step_configs.items()},
        "entries": [
            [key_of(e.step), e.event, e.timestamp.isoformat() if e.timestamp else None, thaw(e.context_updates)]
            for e in instance.execution_history
        ],
        "runtime_metadata": thaw(dict(instance.runtime_metadata)),
        "telemetry_metadata": thaw(dict(instance.telemetry_metadata)),
        "telemetry_start_time": started.isoformat() if started else None,
        "started_by": instance.started_by,
        "failed_step": None if instance.failed_step is None else key_of(instance.failed_step),
        "reason": instance.reason,
        "size": instance.size,
    }


def start_snapshot(workflow: Any, *, telemetry: Any = None, started_by: Sender | None = None) -> dict[str, Any] | None:
    """Return the data (snapshot) that a new run starts with besides its input, or None if there is none.

    ``started_by`` is the person who starts the run, or None. ``telemetry`` is the metadata that a graph merges into its
    Django signals. Raises ``PayloadError`` if the metadata is not a mapping, or if the workflow is not a graph.
    """
    is_graph = isinstance(getattr(workflow, "_graph", None), Graph)
    starter = {}
    if started_by is not None and started_by.key:
        starter = {"started_by": started_by.key, "started_as": started_by.name}
    if telemetry is None and not (is_graph and starter):
        return starter or None
    if not is_graph:
        raise PayloadError(f"{workflow.name} is not a graph: its start does not accept telemetry")
    if telemetry is not None and not isinstance(telemetry, Mapping):
        raise PayloadError(f"the telemetry metadata of {workflow.name} must be a mapping, not {telemetry!r}")
    return {"telemetry_metadata": dict(telemetry or {}), **starter}


def new_instance(workflow: Any, *, id: str, version: int, args: Any, data: Mapping[str, Any] | None) -> Instance:
    """Return the instance that a run of the class ``workflow`` starts with.

    ``id`` is its business id, and ``args`` the input of the run, which becomes the initial context. ``data`` is the
    snapshot of the run, which comes from ``start_snapshot`` or from ``snapshot_for_version``.
    """
    # Only a whole instance has a status: the run was moved here from another version.
    if data is not None and "status" in data:
        return load(workflow, data)
    start_data = data or {}
    instance = Instance.new(
        id=id, workflow=workflow, version=version, initial=args, telemetry_metadata=start_data.get("telemetry_metadata")
    )
    if "started_by" in start_data:
        return instance.changed(started_by=start_data["started_by"])
    return instance


def load(workflow: Any, data: Mapping[str, Any]) -> Instance:
    """Return the instance that ``dump`` has written as ``data``, for the class ``workflow``.

    Raises ``PayloadError`` for a step or a status that does not exist.
    """
    graph: Graph = workflow._graph  # noqa: SLF001 - the class is a graph workflow
    label = f"the stored instance {data.get('id')!r} of {workflow.__name__}"

    def number(key: str) -> int:
        step = graph.by_key.get(key)
        if step is None:
            raise PayloadError(f"{label}: there is no step {key!r}")
        return graph.number[step]

    if data["status"] not in STATUSES:
        raise PayloadError(f"{label}: {data['status']!r} is not a status")
    log = Log()
    for key, event, at, value in data["entries"]:
        timestamp = None
        if at:
            timestamp = datetime.fromisoformat(at)
        entry = ExecutionEntry(graph.steps[number(key)], event, timestamp, freeze(value))
        log.with_entry(len(log.entries), key, entry)
    log.configs.update((number(key), config) for key, config in data["configs"].items())
    started, failed = data["telemetry_start_time"], data["failed_step"]
    return Instance(
        id=data["id"],
        workflow=workflow,
        version=data["version"],
        initial=freeze(data["initial"]),
        status=data["status"],
        runtime_metadata=freeze(data["runtime_metadata"]),
        telemetry_metadata=freeze(data["telemetry_metadata"]),
        telemetry_start_time=datetime.fromisoformat(started) if started else None,
        started_by=data.get("started_by", ""),
        failed_step=None if failed is None else graph.steps[number(failed)],
        reason=data["reason"],
        log=log,
        count=len(log.entries),
        size=data["size"],
        **{name: sum(1 << number(key) for key in data[name]) for name in _STEP_SETS},
    )


def redact_instance(instance: Instance, redactor: Redactor) -> Instance:
    """Return a copy of the instance in which the data that a user may not see is hidden.

    ``redactor`` has the rules of what the user may see.
    """
    data = dump(instance)
    data["initial"] = redactor.redact_payload(data["initial"])
    data["configs"] = {
        key: redactor.redact_payload(config, message_name=key) for key, config in data["configs"].items()
    }
    data["entries"] = [
        [key, event, at, redactor.redact_payload(value, message_name=key)] for key, event, at, value in data["entries"]
    ]
    data["reason"] = redactor.redact_payload(data["reason"])
    return load(instance.workflow, data)


def snapshot_for_version(instance: Instance, target: Any, new_keys: Mapping[str, str]) -> dict[str, Any]:
    """Return a snapshot of ``instance`` for the class ``target``, another version of its class.

    ``new_keys`` maps old step keys to new ones, and to "" the keys of ended steps whose data is left behind.

    Raises ``PayloadError`` with the reason why the graph of ``target`` cannot hold the instance. Either a step does not
    exist there, or a step has started although a step before it has not ended.
    """
    if instance.closed:
        raise PayloadError(f"{instance.id} has ended ({instance.status}): there is nothing to move")
    graph: Graph = target._graph  # noqa: SLF001 - as above
    data = dump(instance)

    def rename_key(key: str, *, live: bool) -> str | None:
        new = new_keys.get(key, key)
        # A step that has ended is needed for its data alone; a live one must continue somewhere.
        if not new and not live:
            return None
        if new not in graph.by_key:
            hint = f"map it with --map {key}=NewStep" + ("" if live else f", or drop its data with --map {key}=")
            raise PayloadError(f"version {target.version} has no step {new or key!r}: {hint}")
        return new

    for name in _STEP_SETS:
        keys = [rename_key(key, live=name != "completed") for key in data[name]]
        data[name] = [key for key in keys if key is not None]
    data["configs"] = {rename_key(key, live=True): config for key, config in data["configs"].items()}
    entries = [[rename_key(key, live=False), *rest] for key, *rest in data["entries"]]
    data["entries"] = [entry for entry in entries if entry[0] is not None]
    data["version"] = target.version
    moved_instance = load(target, data)
    # The join test of the engine relies on this: what leads to a step that has started has ended for good.
    for i in bits(moved_instance.active | moved_instance.waiting | moved_instance.completed):
        for a in bits(graph.before[i] & moved_instance.live):
            raise PayloadError(
                f"step {graph.keys[i]!r} has started, but in version {target.version} it comes after "
                f"{graph.keys[a]!r}, which has not ended"
            )
    return data
