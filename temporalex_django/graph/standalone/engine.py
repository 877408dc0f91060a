"""``Engine``: a storage and a runner under one name, on which graphs can be started with or without Django.

    with Engine("shop") as engine:                                   # MemoryStorage, LocalRunner
        OrderFlow.start("42", {"order": 42})                         # the only engine there is
        engine.start_instance(OrderFlow, id="orderid::43", context={"order": 43})

Where Django's backend is bound, graphs start there. A class with ``engine = "shop"`` always starts on the engine of
that name.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from temporalex_django.authoring import backend
from temporalex_django.authoring.unique import check_id
from temporalex_django.errors import AlreadyRunning, NotConfigured, UnknownWorkflow
from temporalex_django.graph.contracts import OPEN, Runner, Storage, Timer
from temporalex_django.graph.definition.structure import Graph
from temporalex_django.graph.instance import Instance
from temporalex_django.graph.standalone.backend import EngineBackend
from temporalex_django.graph.standalone.local_runner import LocalRunner
from temporalex_django.graph.standalone.memory import MemoryStorage
from temporalex_django.graph.steps import StepRef

if TYPE_CHECKING:
    from temporalex_django.authoring.start_api import Startable


def lookup(name: str | None = None) -> Engine:
    """Return the running engine of that name; without a name, the only one that runs. Raises ``EngineNotFound``."""
    return cast("Engine", backend.engine(name))


class Engine:
    """A storage and a runner under one name.

    ``storage`` and ``runner`` are each an object, a class, or ``(class, options)``. The class of a runner gets the
    storage as its first argument.

    The engine runs from ``start`` to ``stop``, or inside ``with``. While it runs, ``lookup`` and the classes of graphs
    find it.

    In the scope of its ``unique``, one instance of an id is open at most. The engine ensures this by checking and
    storing one start after the other. Starts that bypass this engine are not checked against its own.
    """

    def __init__(self, name: str, storage: Any = None, runner: Any = None) -> None:
        if not isinstance(name, str) or not name:
            raise NotConfigured(f"the name of an engine must be a string, not {name!r}")
        self.name = name
        if storage is None and runner is not None and not isinstance(runner, (type, tuple)):
            storage = runner.storage
        self.storage: Storage = _make_adapter("storage", storage, MemoryStorage)
        self.runner: Runner = _make_adapter("runner", runner, LocalRunner, self.storage)
        # Instances would be stored in one place and looked up in another.
        if getattr(self.runner, "storage", self.storage) is not self.storage:
            raise NotConfigured(f"engine {name!r}: its runner uses a different storage from the one that you passed")
        self.backend = EngineBackend(self)
        self._start_lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Engine {self.name!r}>"

    def start(self) -> Self:
        """Register the engine and continue the open instances of its storage.

        Raises ``NotConfigured`` when the name is taken.
        """
        backend.register(self.name, self)
        try:
            self.runner.recover()
        except BaseException:
            backend.deregister(self.name, self)
            raise
        return self

    def stop(self) -> None:
        """Deregister the engine, then let the running steps end."""
        backend.deregister(self.name, self)
        self.runner.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    # -- instances by id -----------------------------------------------------------------------------------------------

    def check(self, workflow: type[Startable], id: str, *, version: int | None = None) -> str:
        """Return ``"already_running"`` if an instance with that id is open in the scope of the class, else ``"ok"``.

        ``version`` is the version that would run.
        """
        number, cls = workflow.resolve_version(version)
        scope = "global" if cls.unique is None else cls.unique.scope
        if scope == "none":
            return "ok"
        scope_filters: dict[str, dict[str, Any]] = {
            "workflow": {"workflow": cls.name},
            "version": {"workflow": cls.name, "version": number},
        }
        if self.storage.query(id=id, status=OPEN, **scope_filters.get(scope, {})):
            return "already_running"
        return "ok"

    def start_instance(
        self,
        workflow: type[Startable],
        *,
        id: str,
        context: Mapping[str, Any] | None = None,
        version: int | None = None,
        telemetry: Mapping[str, Any] | None = None,
    ) -> str:
        """Store and start an instance with that id. Return the id.

        Raises ``AlreadyRunning``, ``InvalidId``, ``UnknownWorkflow`` for a function workflow, ``UnknownVersion``,
        ``PayloadError``.
        """
        number, cls = workflow.resolve_version(version)
        if not isinstance(getattr(cls, "_graph", None), Graph):
            raise UnknownWorkflow(
                f"{cls.name} is not a graph: an engine executes only graphs; a function workflow needs Django or a "
                "WorkflowEnvironment"
            )
        check_id(id)
        # The check and the insert are one step, or two starts of one id could both find it free.
        with self._start_lock:
            if self.check(workflow, id, version=number) != "ok":
                raise AlreadyRunning(f"{cls.name} {id!r} is open already: use its handle, or another id")
            return self.runner.start_instance(cls, id=id, context=context, version=number, telemetry=telemetry)

    def resume(
        self, id: str, event: str, step: StepRef | str | None = None, data: Any = None, *, by: Any = None
    ) -> None:
        """Resume a waiting step; see ``contracts.Runner.resume``."""
        self.runner.resume(id, event, step=step, data=data, by=by)

    def schedule_resume(self, id: str, step: StepRef | str, delay: float) -> Timer:
        """Schedule the timeout of a step; see ``contracts.Runner.schedule_resume``."""
        return self.runner.schedule_resume(id, step, delay)

    def cancel(self, id: str) -> None:
        """Cancel an instance; see ``contracts.Runner.cancel``."""
        self.runner.cancel(id)

    def get(self, id: str) -> Instance:
        """Return an instance; see ``contracts.Storage.get``."""
        return self.storage.get(id)

    def query(self, **filters: Any) -> list[Instance]:
        """Return the instances that match; see ``contracts.Storage.query``."""
        return self.storage.query(**filters)

    def delete(self, id: str) -> None:
        """Delete all instances of an id, open ones included; see ``contracts.Storage.delete``."""
        # First, so that no step stores the instance again after it was deleted.
        self.runner.forget(id)
        self.storage.delete(id)


def _make_adapter(role: str, adapter: Any, default: type, *args: Any) -> Any:
    """Return the storage or the runner (``role``) that ``adapter`` gives: an object, a class or ``(class, options)``.

    If it is None, ``default`` is the class. A class is called with ``args``. Raises ``NotConfigured``.
    """
    if adapter is None:
        adapter = default
    cls, options = (adapter, {}) if isinstance(adapter, type) else adapter if isinstance(adapter, tuple) else (None, {})
    if cls is None:
        return adapter
    try:
        return cls(*args, **options)
    except TypeError as exc:
        raise NotConfigured(f"cannot create the {role} {cls.__name__} with {options!r}: {exc}") from exc
