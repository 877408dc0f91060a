"""Give a graph the event that one of its steps waits for."""

from __future__ import annotations

from typing import Any, ClassVar

from temporalex_django.actions.base import CODE, Actor, refuse_inside_workflow, storage
from temporalex_django.actions.targets import Target, find
from temporalex_django.actions.update import DEFAULT_TIMEOUT, Message
from temporalex_django.authoring import people
from temporalex_django.authoring.people import Person
from temporalex_django.errors import ActionNotPermitted, AmbiguousId, ResumeRefused, WorkflowNotFound
from temporalex_django.graph.run import deciding, requested
from temporalex_django.graph.steps import StepRef, role_of
from temporalex_django.graph.workflow import GraphWorkflow


class Resume(Message):
    """Judged like an update, and where an update would be: the event must be for exactly one waiting step, else nothing changes.

    ``by`` is who decides. A step with a role (``Approval``) takes nobody else's word, and no code's; a person from a face needs the
    permission to signal, or such a role of this graph. Raises ``ResumeRefused``, ``ActionNotPermitted``, ``WorkflowClosed``,
    ``PayloadError``, ``NestingError``, ``UpdateTimeout``.
    """

    name: ClassVar[str] = "resume"
    permission: ClassVar[str] = "signal_instance"
    kind: ClassVar[str] = "resume"

    def __init__(
        self,
        target: Target,
        *,
        event: str,
        step: StepRef | str | None = None,
        data: Any = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        by: Actor = CODE,
        decided_by: str | None = None,
    ) -> None:
        code = target.code
        if code is not None and not issubclass(code, GraphWorkflow):
            raise ResumeRefused(f"{target.workflow} {target.workflow_id} is no graph: it has no steps to resume")
        self.may = [] if code is None else deciding(code, event, by.user)
        # from a face a person needs the permission to signal; whether the step that matches has a role is known when it is judged
        self.permitted = by.source == CODE.source or self.allowed(by)
        who = str(by.user) if by.user is not None else decided_by
        request = requested(event, step=step, data=data, by=who, may=self.may, permitted=self.permitted)
        super().__init__(target, message=event, body=request, id=None, timeout=timeout, mode="auto", by=by)

    def check(self) -> None:
        refuse_inside_workflow(self.name)
        if not self.permitted and not self.may:
            super().check()

    @property
    def _what(self) -> str:
        return f"resume({self.message!r}) of {self.target.workflow} {self.target.workflow_id}"


def approves(user: Person | None, ref: str, *, workflow: str | None = None) -> bool:
    """Whether some step of that run takes the word of this person, by his role: he may resume it without the permission to signal.

    False where there is no such run: who may not know it is told the same.
    """
    try:
        code = find(ref, storage=storage(), workflow=workflow).code
    except (WorkflowNotFound, AmbiguousId):
        return False
    if code is None or not issubclass(code, GraphWorkflow):
        return False
    try:
        return any(people.holds(user, role) for step in code.graph() if (role := role_of(step)) is not None)
    except ActionNotPermitted:
        return False
