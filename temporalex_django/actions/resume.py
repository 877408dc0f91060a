"""Give a graph the event that one of its steps waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from temporalex_django import access
from temporalex_django.actions.base import CODE, Actor, storage
from temporalex_django.actions.human_task import require_claims_kept
from temporalex_django.actions.targets import Runs, RunTarget, find
from temporalex_django.actions.update import JudgedMessage
from temporalex_django.authoring import authorization
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.handle import ANSWER_TIMEOUT
from temporalex_django.db.inserts import InsertedMessage
from temporalex_django.errors import ActionNotPermitted, AmbiguousId, ResumeRefused, WorkflowNotFound
from temporalex_django.graph.durable.run import decidable_steps, resume_request
from temporalex_django.graph.steps import StepRef, decider_words
from temporalex_django.graph.workflow import GraphWorkflow


class Resume(JudgedMessage):
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
        code = target.code
        if code is not None and not issubclass(code, GraphWorkflow):
            raise ResumeRefused(f"{target.workflow} {target.workflow_id} is no graph: it has no steps to resume")
        self.may = [] if code is None else decidable_steps(code, event, by.user)
        # from a face a person needs the permission to signal; whether the step that matches has a role is known when it
        # is judged
        self.permitted = by.user is None or by.source == CODE.source or self._permits(by.user, target)
        who, key = (str(by.user), authorization.sender_key(by.user)) if by.user is not None else (decided_by, "")
        request = resume_request(event, step=step, data=data, by=who, key=key, permitted=self.permitted)
        super().__init__(target, message=event, body=request, id=id, timeout=timeout, mode="auto", by=by, exact=exact)

    def _permits(self, user: Person, target: RunTarget) -> bool:
        wanted = access.Operation(action=self.name, permission=f"{authorization.APP}.{self.permission}")
        return access.policy().allows(user, wanted.of(target.row))

    @property
    def asked(self) -> access.Operation:
        """Whoever has the role of a step needs no permission besides."""
        asked = super().asked
        return asked if self.permitted or not self.may else replace(asked, permission=None)

    def _insert(self) -> InsertedMessage:
        """Under the lock of its run, where that is had: what people have claimed is theirs to decide."""
        if self.by.user is not None and (self.may or self.target.code is None):
            require_claims_kept(
                self.by.user, self.target.chain_id, self.message, step=self.body["step"], storage=self.storage
            )
        return super()._insert()

    @property
    def _what(self) -> str:
        return f"resume({self.message!r}) of {self.target.workflow} {self.target.workflow_id}"


def approves(user: Person | None, ref: str, *, workflow: str | None = None, among: Runs = None) -> bool:
    """Whether some step of that run takes the word of this person, by his role.

    He may resume it without the permission to signal.

    False where there is no such run: who may not know it is told the same.
    """
    try:
        code = find(ref, storage=storage(), workflow=workflow, among=among).code
    except (WorkflowNotFound, AmbiguousId):
        return False
    if code is None or not issubclass(code, GraphWorkflow):
        return False
    try:
        return any(authorization.matches_candidate(user, word) for step in code.graph() for word in decider_words(step))
    except ActionNotPermitted:
        return False
