"""``api.approval``: human tasks that workflow code asks for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from temporalex_django.core.messages.sender import Sender
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.codec import deep_copy
from temporalex_django.core.people.human_tasks import OVERDUE, HumanTasks, HumanTaskSpec, Permits, due_time
from temporalex_django.core.runtime_protocol import WorkflowRuntime
from temporalex_django.core.typed_dicts import WaitInfo
from temporalex_django.core.units.ivar import IVar
from temporalex_django.errors import PayloadError

#: Prefix of the label of a wait for a decision; the title follows.
DECISION_PREFIX: Final = "decision "


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The outcome of an approval.

    - ``outcome`` is one of the outcomes of the approval, or ``overdue`` if nobody decided in time. ``by`` is then None.
    - ``data`` is the data of the form.
    - ``at`` is the time of the decision, or the time at which it became overdue.
    - ``stood_in_for`` is the name of the person in whose place somebody decided, or empty.
    - ``shown`` is the digest of the data that people saw (``shows`` of ``api.approval``). It is empty if they saw the
      title alone.
    """

    outcome: str
    data: Any = None
    by: Sender | None = None
    at: datetime
    comment: str = ""
    stood_in_for: str = ""
    shown: str = ""

    def covers(self, value: Any) -> bool:
        """Return True if a person decided about this value: the data shown to them equals it as plain data.

        Returns False if nobody decided in time, and if no data was shown. Raises ``PayloadError`` for a value that is
        no payload.
        """
        return bool(self.shown) and self.shown == codec.digest(codec.to_plain(value, label="the value of covers()"))


class Approvals:
    """The part that judges decisions of people for ``api.approval`` in workflow code; declared steps have another one.

    It is attached to the run when the run asks for its first approval.
    """

    def __init__(self, runtime: WorkflowRuntime) -> None:
        self._runtime = runtime
        self._tasks: HumanTasks = runtime.human_tasks
        self._decision_ivars: dict[str, IVar] = {}
        self._due_timers: dict[str, int] = {}

    async def request_decision(self, spec: HumanTaskSpec, due: float | None) -> Decision:
        """Open a human task and wait for its decision.

        ``due`` is in seconds. When it has passed, the decision has the outcome ``overdue``. A wait that is cancelled
        closes the task.
        """
        runtime, tasks = self._runtime, self._tasks
        key, now = tasks.next_key(), runtime.run_context.now
        spec = replace(spec, label=f"the human task {key!r}")  # the readers of errors may not see the title
        deadline = due_time(now, due)
        ivar = self._decision_ivars[key] = IVar(f"{DECISION_PREFIX}{spec.title}")
        ivar.wait_info = _build_wait_info(key, spec, now, deadline)
        # The snapshot is part of the history, so a replay finds the same starter.
        snapshot = runtime.run_context.snapshot or {}
        requester = Sender(snapshot["started_by"], snapshot.get("started_as", "")) if "started_by" in snapshot else None
        tasks.add(key, spec, due_at=deadline, requested_by=requester)
        if due is not None:
            self._due_timers[key] = runtime.pending_commands.start_timer(
                due, lambda: self._expire(key), task=key, then=OVERDUE
            )
        try:
            decision: Decision = await ivar
            return decision
        finally:
            self._close(key, "cancelled")

    def _expire(self, key: str) -> None:
        self._due_timers.pop(key)
        ivar = self._decision_ivars[key]
        # Close before the IVar is filled: the ``_close`` of the waiter then finds nothing to do.
        self._close(key, OVERDUE)
        ivar.put(Decision(outcome=OVERDUE, at=self._runtime.run_context.now))

    def _close(self, key: str, ending: str, **decision_fields: Any) -> None:
        """Close the human task, if its approval is still open, and cancel its timer.

        The arguments have the same meaning as in ``HumanTasks.close``.
        """
        if self._decision_ivars.pop(key, None) is None:
            return
        if (timer := self._due_timers.pop(key, None)) is not None:
            self._runtime.pending_commands.cancel_timer(timer)
        self._tasks.close(key, ending, **decision_fields)

    # -- request judge ------------------------------------------------------------------------------------------------

    def judge(self, request: dict[str, Any], permits: Permits) -> None:
        """Judge a decision.

        ``request`` and ``permits`` are those of ``HumanTasks.judge``. Raises ``HumanTaskClosed``, ``PayloadError`` and
        the other errors of ``HumanTasks.judge``.
        """
        self._tasks.require_this_run(request)
        key, outcome = self._resolve_key(request), request["event"]
        task = self._tasks.open_task(key)
        if outcome not in task.spec.outcomes:
            raise PayloadError(f"{outcome!r} is not one of the outcomes: {', '.join(task.spec.outcomes)}")
        self._tasks.judge(key, request, permits)

    def build_payload(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the payload that the history records for a decision. Raises ``HumanTaskClosed``, ``PayloadError``."""
        key = self._resolve_key(request)
        label = f"the data for {self._tasks.open_task(key).spec.label}"
        data = codec.to_plain(request.get("data"), label=label, limit=self._runtime.run_context.payload_limit)
        # Pages show the beginning of it: who decided, and what they wrote.
        return {"event": request["event"], **self._tasks.recorded_fields(key, request), "step": key, "data": data}

    def _resolve_key(self, request: dict[str, Any]) -> str:
        """Return the key of the human task that a decision is for.

        If a reset or fork delivers the decision again, its key may mean another task now. So the task is found by the
        question that was answered.
        """
        # New code may number its tasks otherwise, but the question identifies the task. See decision 47.
        key: str = request.get("step") or ""
        question = request.get("question") if request.get("again") else None
        task = self._tasks.open_tasks.get(key)
        if question is None or (task is not None and task.spec.question == question):
            return key
        return self._tasks.key_by_question(question) or key

    def apply(self, payload: dict[str, Any]) -> None:
        """Apply a decision that was accepted, in this activation or when the history was made."""
        key = payload["step"]
        self._tasks.require_same_question(key, payload)
        ivar, task = self._decision_ivars.get(key), self._tasks.open_tasks.get(key)
        if ivar is None or task is None:
            return  # the code asks for something else now; the comparison of commands reports it
        form, data = task.spec.form, payload.get("data")
        form_type = form.type if form is not None and form.kind == "type" else None
        try:
            decoded = codec.convert(deep_copy(data), form_type, label=f"the data for {task.spec.label}")
        except PayloadError as exc:  # the form has changed since the decision
            ivar.fail(exc)
            self._close(key, "cancelled")
            return
        decider = Sender(payload["by_key"], payload.get("by", "")) if payload.get("by_key") else None
        decision_fields = {"comment": payload.get("comment", ""), "decided_for": payload.get("for", "")}
        self._close(key, "decided", outcome=payload["event"], decided_by=decider, **decision_fields)
        ivar.put(
            Decision(
                outcome=payload["event"],
                data=decoded,
                by=decider,
                at=self._runtime.run_context.now,
                comment=decision_fields["comment"],
                stood_in_for=decision_fields["decided_for"],
                shown=payload.get("question", {}).get("shows", ""),
            )
        )


def _build_wait_info(key: str, spec: HumanTaskSpec, now: datetime, due: datetime | None) -> WaitInfo:
    """Return the data for programs about the wait for a decision. ``due`` is the time at which it ends, or None."""
    wait_info: WaitInfo = {"kind": "human_task", "name": key, "label": spec.title, "since": now.isoformat()}
    wait_info["events"] = [*spec.outcomes]
    wait_info["role"] = ", ".join(word.partition(":")[2] for word in spec.candidates)
    if due is not None:
        wait_info["until"] = due.isoformat()
    return wait_info
