"""The handles of the test environments, and the updates that they send.

An ``EnvironmentHandle`` has the methods of ``WorkflowHandle`` and some for tests. Each method lets the run work as far
as it can before it returns, so ``timeout`` and ``mode`` are checked and have no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.handle import WorkflowHandle
from temporalex_django.authoring.requests import RunAddress
from temporalex_django.authoring.start_api import Result_co
from temporalex_django.core.failures import failure_summary
from temporalex_django.core.messages.mailbox import failed_text
from temporalex_django.engine.activity_policy import update_result
from temporalex_django.engine.contracts.records import Outcome
from temporalex_django.errors import WorkflowClosed, WorkflowDefinitionError, WorkflowNotFound

if TYPE_CHECKING:
    from temporalex_django.testing.environment import Environment
    from temporalex_django.testing.environment_base import RunRow


class EnvironmentUpdate:
    """An update whose result is not awaited; ``result()`` raises ``UpdateTimeout`` while there is none.

    ``message_id`` is the number of its message, and ``update_id`` the message id, with which it can be sent again.
    ``label`` names the update in errors. ``read(answer)`` returns an answer, plain data, as its reader gets it.
    """

    def __init__(
        self,
        env: Environment,
        chain_id: UUID,
        message_id: int,
        update_id: str,
        label: str,
        read: Callable[[Any], Any] = lambda answer: answer,
    ) -> None:
        self._env = env
        self._chain_id = chain_id
        self._message_id = message_id
        self.id = update_id
        self._label = label
        self._read = read

    @property
    def _outcome(self) -> Outcome | None:
        outcome = self._env.outcome(self._message_id)
        # After a reset the update is delivered again, as a new message with the same message id (see decision 43).
        return self._env.update_outcome(self._chain_id, self.id) if outcome is None else outcome

    @property
    def accepted(self) -> bool:
        """True if the update was accepted, whether or not its handler has ended."""
        outcome = self._outcome
        return outcome is not None and outcome.status != "rejected"

    @property
    def done(self) -> bool:
        """True if there is an answer: a response, a rejection or a failure."""
        outcome = self._outcome
        return outcome is not None and outcome.status != "accepted"

    def result(self) -> Any:
        """Return the response of the update.

        Raises ``UpdateTimeout`` while there is none, ``UpdateFailed`` if the handler raised, and ``UpdateRejected`` or
        another refusal, such as ``WorkflowClosed``.
        """
        try:
            return self._read(update_result(self._outcome, update_id=self.id, label=self._label))
        except WorkflowClosed as exc:
            row = self._env.row(self._env.run_ids(self._chain_id)[-1])
            # A mistake of the definition is first met here; other failures are those of the run alone.
            is_definition = row.status == "failed" and row.closing.get("type") == WorkflowDefinitionError.__name__
            if not is_definition or "failed with" in exc.message:
                raise
            raise WorkflowClosed(f"{exc.message}: it {failed_text(failure_summary(row.closing))}") from None


class EnvironmentHandle(WorkflowHandle[Result_co]):
    """The handle of a chain of runs in a test environment, with the methods of ``WorkflowHandle`` and some for tests.

    ``workflow_id`` is the business id. ``pinned`` is the run that was asked for by its run id; the handle then shows
    that run instead of the newest one.
    """

    def __init__(self, env: Environment, workflow_id: str, chain_id: UUID, *, pinned: UUID | None = None) -> None:
        self._backend = env.backend
        self._address = RunAddress(id=workflow_id, chain_id=chain_id, run_id=pinned)
        self.env = env

    @property
    def chain_id(self) -> UUID:
        """The id of the chain."""
        chain_id = self._address.chain_id
        assert chain_id is not None
        return chain_id

    @property
    def selected_run(self) -> RunRow:
        """The row of the run that this handle shows: the pinned one, or the newest of its chain."""
        return self._row if self._address.run_id is None else self.env.row(self._address.run_id)

    @property
    def _row(self) -> RunRow:
        run_ids = self.env.run_ids(self.chain_id)
        if not run_ids:
            raise WorkflowNotFound(f"{self.id} no longer exists: somebody has deleted it")
        return self.env.row(run_ids[-1])

    @property
    def status(self) -> str:
        return self.selected_run.status

    @property
    def blocked(self) -> BaseException | None:
        """The error that keeps the run from continuing, or None."""
        return self.env.errors.get(UUID(self.run_id))

    def update_async(
        self, name: Any, args: Any = None, id: str | None = None, *, by: Person | None = None
    ) -> EnvironmentUpdate:
        """Send the update ``name`` without asking for its response. Raises ``PayloadError``, ``InvalidId``.

        ``name`` may be the function that handles it. ``id`` is its message id; without one it is generated.
        """
        return self.env.backend.send_update(self._address, name, args, id=id, by=by)
