"""Give a graph the event that one of its steps waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from temporalex_django import access
from temporalex_django.actions.base import CODE, Actor, storage
from temporalex_django.actions.human_task import require_claims_respected
from temporalex_django.actions.targets import Runs, RunTarget, find_run
from temporalex_django.actions.update import RequestAction
from temporalex_django.authoring import authorization
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.handle import ANSWER_TIMEOUT
from temporalex_django.db.inserts import InsertedMessage
from temporalex_django.errors import ActionNotPermitted, AmbiguousId, ResumeRefused, WorkflowNotFound
from temporalex_django.graph.durable.run import decidable_steps, resume_request
from temporalex_django.graph.steps import StepRef, decider_words
from temporalex_django.graph.workflow import GraphWorkflow


class Resume(RequestAction):
    """Judged like an update, and where an update would be.

    The event must be for exactly one waiting step, else nothing changes.

    ``by`` is who decides. A step with a role (``Approval``) takes nobody else's word, and no code's; a person from a
    face needs the permission to signal, or such a role of this graph. Raises ``ResumeRefused``, ``ActionNotPermitted``,
    ``WorkflowClosed``, ``PayloadError``, ``NestingError``, ``UpdateTimeout``.
    """

    name: ClassVar[str] = "resume"
    permission: ClassVar[str] = "signal_instance"
    kind: ClassVar[str] = "resume"

    def __init__(
        self,
        target: RunTarget,
        *,
        event: str,
        step: StepRef | str | None = None,
        data: Any = None,
        id: str | None = None,
        exact: bool = False,
        timeout: float | None = ANSWER_TIMEOUT,
        by: Actor = CODE,
        decided_by: str | None = None,
    ) -> None:
        code = target.workflow_class
        if code is not None and not issubclass(code, GraphWorkflow):
            raise ResumeRefused(f"{target.workflow} {target.workflow_id} is no graph: it has no steps to resume")
        self.decidable_steps = [] if code is None else decidable_steps(code, event, by.user)
        # from a face a person needs the permission to signal; whether the step that matches has a role is known when it
        # is judged
        self.is_permitted = by.user is None or by.source == CODE.source or self._may_signal(by.user, target)
        decider_name, decider_key = (
            (str(by.user), authorization.sender_key(by.user)) if by.user is not None else (decided_by, "")
        )
        payload = resume_request(
            event, step=step, data=data, by=decider_name, key=decider_key, permitted=self.is_permitted
        )
        super().__init__(
            target, message=event, payload=payload, id=id, timeout=timeout, mode="auto", by=by, exact=exact
        )

    def _may_signal(self, user: Person, target: RunTarget) -> bool:
        operation = access.Operation(action=self.name, permission=f"{authorization.APP}.{self.permission}")
        return access.policy().allows(user, operation.of(target.row))

    @property
    def permission_request(self) -> access.Operation:
        """Whoever has the role of a step needs no permission besides."""
        request = super().permission_request
        return request if self.is_permitted or not self.decidable_steps else replace(request, permission=None)

    def _insert(self) -> InsertedMessage:
        """Under the lock of its run, where that is had: what people have claimed is theirs to decide."""
        if self.by.user is not None and (self.decidable_steps or self.target.workflow_class is None):
            require_claims_respected(
                self.by.user, self.target.chain_id, self.message, step=self.payload["step"], storage=self.storage
            )
        return super()._insert()

    @property
    def _label(self) -> str:
        return f"resume({self.message!r}) of {self.target.workflow} {self.target.workflow_id}"


def has_step_role(user: Person | None, ref: str, *, workflow: str | None = None, visible_runs: Runs = None) -> bool:
    """Whether some step of that run takes the word of this person, by his role.

    He may resume it without the permission to signal.

    False where there is no such run: who may not know it is told the same.
    """
    try:
        code = find_run(ref, storage=storage(), workflow=workflow, visible_runs=visible_runs).workflow_class
    except (WorkflowNotFound, AmbiguousId):
        return False
    if code is None or not issubclass(code, GraphWorkflow):
        return False
    try:
        return any(
            authorization.matches_candidate(user, candidate)
            for step in code.graph()
            for candidate in decider_words(step)
        )
    except ActionNotPermitted:
        return False
