"""How classes reach whatever runs them, without importing it.

``AppConfig.ready`` puts the database backend here (``client.backend``); a ``WorkflowEnvironment`` brings handles of its own, which
have the methods of ``client.WorkflowHandle``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from temporalex_django.errors import NotConfigured

if TYPE_CHECKING:
    from temporalex_django.authoring.facade import Startable
    from temporalex_django.authoring.workflow import Workflow


def _accepts() -> dict[str, list[str]]:
    return {"signals": [], "updates": []}


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What ``handle.describe()`` gives: a run as it stands, readable by attribute and by key.

    ``blocked`` is None, or why the run cannot go on (``code, error, since, attempt``). ``waiting_for`` says in words what it waits
    for, a worker included. ``accepts`` names the signals and updates that the open phase takes.
    """

    id: str
    run_id: str
    workflow: str
    version: int
    status: str
    blocked: dict[str, Any] | None = None
    waiting_for: list[str] = field(default_factory=list)
    accepts: dict[str, list[str]] = field(default_factory=_accepts)
    started_at: datetime | None = None
    closed_at: datetime | None = None

    def __getitem__(self, name: str) -> Any:
        if name not in self.__slots__:
            raise KeyError(name)
        return getattr(self, name)

    def keys(self) -> list[str]:
        return list(self.__slots__)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Backend(Protocol):
    """Where ``Workflow.start`` and its kin go. Each gives a handle."""

    def start(
        self,
        workflow: type[Workflow],
        args: Any,
        *,
        id: str | None = None,
        value: str | None = None,
        subject: Any = None,
        telemetry: Mapping[str, Any] | None = None,
    ) -> Any: ...

    async def astart(
        self,
        workflow: type[Workflow],
        args: Any,
        *,
        id: str | None = None,
        value: str | None = None,
        subject: Any = None,
        telemetry: Mapping[str, Any] | None = None,
    ) -> Any: ...

    def signal_with_start(
        self,
        workflow: type[Workflow],
        signal: str,
        payload: Any,
        args: Any,
        *,
        id: str,
        subject: Any = None,
    ) -> Any: ...

    async def asignal_with_start(
        self,
        workflow: type[Workflow],
        signal: str,
        payload: Any,
        args: Any,
        *,
        id: str,
        subject: Any = None,
    ) -> Any: ...

    def handle(self, id: str, *, workflow: type[Startable] | None = None) -> Any: ...

    def get(self, workflow: type[Startable], id: str, *, version: int | None = None) -> Any: ...

    async def aget(self, workflow: type[Startable], id: str, *, version: int | None = None) -> Any: ...

    def list(self, workflow: type[Startable], filters: dict[str, Any]) -> Iterator[Any]: ...

    async def alist(self, workflow: type[Startable], filters: dict[str, Any]) -> Sequence[Any]: ...


_backend: Callable[[], Backend] | None = None


def bind(backend: Callable[[], Backend]) -> None:
    """``backend()`` is asked at each use, so that importing it can wait until Django is ready."""
    global _backend  # noqa: PLW0603 - the one place where the application is wired
    _backend = backend


def backend() -> Backend:
    """Raises ``NotConfigured`` when nothing is bound."""
    if _backend is None:
        raise NotConfigured(
            "workflows have nowhere to run: add 'temporalex_django' to INSTALLED_APPS (and call django.setup() in scripts), "
            "or use WorkflowEnvironment().start(...) in a test"
        )
    return _backend()
