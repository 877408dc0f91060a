"""Give a graph the event that one of its steps waits for."""

from __future__ import annotations

from typing import Any, ClassVar

from temporalex_django.actions.base import CODE, Actor, refuse_inside_workflow
from temporalex_django.actions.targets import Target
from temporalex_django.actions.update import DEFAULT_TIMEOUT, Message
from temporalex_django.errors import ResumeRefused
from temporalex_django.graph.run import deciding, requested
from temporalex_django.graph.steps import StepRef
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
