"""Resume a waiting step of a graph with its event."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from temporalex_django import access
from temporalex_django.authoring import authorization
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.handle import ANSWER_TIMEOUT
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.core.names import check_wait
from temporalex_django.errors import ActionNotPermitted, AmbiguousId, ResumeRefused, WorkflowNotFound
from temporalex_django.graph.durable_run import decidable_steps, resume_request
from temporalex_django.graph.steps import StepRef, decider_words
from temporalex_django.graph.workflow import GraphWorkflow
from temporalex_django.operations.base import CODE, Actor, storage
from temporalex_django.operations.human_tasks.operations import require_claims_respected
from temporalex_django.operations.run_lookup import Runs, find_run
from temporalex_django.operations.runs.update import RequestAction


class Resume(RequestAction):
    """Operation that gives a waiting step of a graph its event, and waits until the run has accepted or refused it.

    The event must match exactly one waiting step, or the one that ``step`` names; otherwise nothing changes. ``data``
    is the payload of the event. With ``id`` it is safe to send the request again; ``exact`` then refuses another
    payload. ``timeout`` is the number of seconds to wait; None waits for ever. A turn of the run judges the event, in
    this process or in a worker.

    ``by`` is the person who decides; without a user ``decided_by`` may name that person. A step with a role
    (``Approval``) accepts only people who have it, and no code. A person who uses an interface needs the permission to
    signal, or the role of a step of this graph.

    Raises ``ResumeRefused``, ``ActionNotPermitted``, ``WorkflowClosed``, ``PayloadError``, ``NestingError`` and
    ``UpdateTimeout``.
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
        check_wait(timeout)
        code = target.workflow_class
        if code is not None and not issubclass(code, GraphWorkflow):
            raise ResumeRefused(f"{target.workflow} {target.workflow_id} is not a graph: it has no steps to resume")
        self.decidable_steps = [] if code is None else decidable_steps(code, event, by.user)
        # People who use an interface need the permission to signal, unless the step has a role. Which step matches is
        # known only when the request is judged, so the request carries the answer of the policy with it.
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
        """The operation about which the access policy is asked.

        It requires no permission if the user has the role of a step that takes the event.
        """
        request = super().permission_request
        if self.is_permitted or not self.decidable_steps:
            return request
        return replace(request, permission=None)

    def before_insert(self) -> None:
        """Raise ``HumanTaskClaimed`` if somebody else has claimed the human task that the request would decide."""
        if self.by.user is not None and (self.decidable_steps or self.target.workflow_class is None):
            require_claims_respected(
                self.by.user, self.target.chain_id, self.message, step=self.payload["step"], storage=self.storage
            )

    @property
    def request_label(self) -> str:
        return f"resume({self.message!r}) of {self.target.workflow} {self.target.workflow_id}"


def has_step_role(user: Person | None, ref: str, *, workflow: str | None = None, visible_runs: Runs = None) -> bool:
    """Return True if the user has the role of any step in the graph of the run ``ref``, a run id or a business id.

    Such a user may resume the run without the permission to signal. The result is also False if no run matches, so that
    it does not reveal which runs exist. Only ``visible_runs`` are searched (None: all).
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
