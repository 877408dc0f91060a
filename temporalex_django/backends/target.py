"""``RunTarget``: the run that an operation is about, as it was when it was read."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from temporalex_django.authoring.workflow import Workflow
from temporalex_django.backends.host import host
from temporalex_django.conf import get_settings
from temporalex_django.core.names import TABLES
from temporalex_django.errors import UnknownWorkflow, WorkflowClosed
from temporalex_django.models import Instance


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSubject:
    """The run that an operation was about, as the audit row, the Django signal and the log entry name it.

    ``workflow`` is the name of its class, and ``workflow_id`` its business id. For an operation on no particular run,
    ``run_id`` is None and ``workflow_id`` is empty.
    """

    run_id: str | None
    workflow: str
    workflow_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTarget:
    """The run that an operation is about: a chain and its current run, as they were when they were read.

    ``backend`` is the name of the backend that the chain was started on. ``run_id``, ``version`` and ``status`` are
    those of the current run. ``pinned`` is the run that was asked for by its
    run id, or None: reads show that run, while messages go to the chain. ``off`` is True if the workflow class is
    switched off.
    """

    chain_id: UUID
    run_id: UUID
    queue: str
    closed: bool
    paused: bool
    workflow_id: str
    workflow: str
    version: int
    status: str
    off: bool = False
    backend: str = TABLES
    pinned: UUID | None = None

    @classmethod
    def of(cls, run: Instance) -> RunTarget:
        """Return the target for a run that was asked for, from its row and that of its chain. Reads only need it."""
        chain = run.chain
        return cls(
            chain_id=run.chain_id,
            run_id=chain.run_id,
            queue=run.queue,
            closed=chain.closed,
            paused=chain.paused,
            workflow_id=run.workflow_id,
            workflow=run.workflow,
            version=run.version,
            status=run.status,
            backend=chain.backend,
            pinned=run.pk,
        )

    @property
    def selected_run_id(self) -> UUID:
        """The id of the run that was asked for by its run id, or else of the current run of the chain.

        Reads show this run.
        """
        return self.pinned or self.run_id

    @property
    def audit_subject(self) -> AuditSubject:
        return AuditSubject(run_id=str(self.run_id), workflow=self.workflow, workflow_id=self.workflow_id)

    @property
    def row(self) -> Instance:
        """The run that was asked for, as a model instance that is built without a read.

        This is the run of ``selected_run_id``. Columns that the target does not have are deferred: Django reads them on
        first access.
        """
        columns = {
            "id": self.selected_run_id,
            "chain_id": self.chain_id,
            "workflow_id": self.workflow_id,
            "workflow": self.workflow,
            "version": self.version,
            "status": self.status,
        }
        return Instance.from_db(host().storage().alias, [*columns], [*columns.values()])

    @property
    def workflow_class(self) -> type[Workflow] | None:
        """The class of the run in its version, or None if this process does not have it.

        Without it, the run must not be activated in this process.
        """
        return find_run_class(self.chain_id, self.workflow, self.version)

    def require_open(self, operation: str) -> None:
        """Raise ``WorkflowClosed`` if the chain was closed when it was read; the message names ``operation``."""
        if self.closed:
            raise WorkflowClosed(f"{self.workflow} {self.workflow_id} is closed ({self.status}): {operation} refused")


def find_run_class(chain_id: UUID, workflow: str, version: int) -> type[Workflow] | None:
    """Return the class of a run if this process has it in exactly that version, or None."""
    try:
        workflow_class = host().find_class(chain_id, workflow, version)
    except UnknownWorkflow:
        return None
    return workflow_class if workflow_class.version == version else None


def runs_in_workers_only(code: type[Workflow] | None) -> bool:
    """Return True if only workers may run the code of the class; a web process then runs no updates or replays of it.

    The attribute ``updates_in`` of the class decides, or else the setting ``UPDATES_IN``. If ``code`` is None, the
    setting decides.
    """
    return ((None if code is None else code.updates_in) or get_settings().UPDATES_IN) == "workers"
