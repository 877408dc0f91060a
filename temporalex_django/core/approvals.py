"""``api.approval``: what workflow code that is no process of another kind asks people, and waits for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from temporalex_django.core import payloads
from temporalex_django.core.copying import deep_copy
from temporalex_django.core.human_tasks import OVERDUE, HumanTasks, HumanTaskSpec, Permits, due_time
from temporalex_django.core.ivar import IVar
from temporalex_django.core.runtime_protocol import WorkflowRuntime
from temporalex_django.core.senders import Sender
from temporalex_django.core.typed_dicts import WaitInfo
from temporalex_django.errors import PayloadError

#: Begins the label of a wait for a decision, before the title.
DECISION_PREFIX: Final = "decision "


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What became of an approval.

    ``outcome`` is one of its outcomes, or ``overdue`` when nobody had decided in time: ``by`` is None then. ``data``
    is what the form says, ``stood_in_for`` the name of the one in whose place it was decided. ``shown`` is the digest
    of what people were shown (``api.approval``, ``shows``), empty where that was nothing but the title.
    """

    outcome: str
    data: Any = None
    by: Sender | None = None
    at: datetime
    comment: str = ""
    stood_in_for: str = ""
    shown: str = ""

    def covers(self, value: Any) -> bool:
        """Whether somebody has decided about this value: what they were shown is the same as plain data.

        False where nobody decided in time, and where nothing was shown. Raises ``PayloadError``.
        """
        return bool(self.shown) and self.shown == payloads.digest(
            payloads.to_plain(value, label="the value of covers()")
        )


class Approvals:
    """A ``RequestJudge``: attached when the first approval of a run is asked for."""

    def __init__(self, runtime: WorkflowRuntime) -> None:
        self._runtime = runtime
        self._tasks: HumanTasks = runtime.human_tasks
        self._decision_ivars: dict[str, IVar] = {}
        self._due_timers: dict[str, int] = {}

    async def request_decision(self, spec: HumanTaskSpec, due: float | None) -> Decision:
        """Open a human task and wait for what becomes of it."""
        runtime, tasks = self._runtime, self._tasks
        key, now = tasks.next_key(), runtime.run_context.now
        spec = replace(spec, label=f"the human task {key!r}")  # people read it who may not see the title
        deadline = due_time(now, due)
        ivar = self._decision_ivars[key] = IVar(f"{DECISION_PREFIX}{spec.title}")
        ivar.wait_info = _build_wait_info(key, spec, now, deadline)
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
        self._close(key, OVERDUE)
        ivar.put(Decision(outcome=OVERDUE, at=self._runtime.run_context.now))

    def _close(self, key: str, ending: str, **decision_fields: Any) -> None:
        if self._decision_ivars.pop(key, None) is None:
            return
        if (timer := self._due_timers.pop(key, None)) is not None:
            self._runtime.pending_commands.cancel_timer(timer)
        self._tasks.close(key, ending, **decision_fields)

    # -- a process ----------------------------------------------------------------------------------------------------

    def judge(self, request: dict[str, Any], permits: Permits) -> dict[str, Any]:
        """What a decision becomes in the history; see ``HumanTasks.judge``."""
        self._tasks.require_this_run(request)
        key, outcome = self._resolve_key(request), request["event"]
        task = self._tasks.open_tasks.get(key)
        if task is None:
            raise self._tasks.closed_error(key)
        if outcome not in task.spec.outcomes:
            raise PayloadError(f"{outcome!r} is none of the outcomes: {', '.join(task.spec.outcomes)}")
        recorded_fields = self._tasks.judge(key, request, permits)
        label = f"the data for {task.spec.label}"
        data = payloads.to_plain(request.get("data"), label=label, limit=self._runtime.run_context.payload_limit)
        return {"event": outcome, "step": key, "data": data, **recorded_fields}

    def _resolve_key(self, request: dict[str, Any]) -> str:
        """The key of the task that a decision is for.

        One that is delivered again is for the task that asks its question, whatever number that has now.
        """
        key: str = request.get("step") or ""
        question = request.get("question") if request.get("again") else None
        task = self._tasks.open_tasks.get(key)
        if question is None or (task is not None and task.spec.question == question):
            return key
        return self._tasks.key_by_question(question) or key

    def apply(self, payload: dict[str, Any]) -> None:
        """A decision that ``judge`` has let through, now or when the history was made."""
        key = payload["step"]
        self._tasks.require_same_question(key, payload)
        ivar, task = self._decision_ivars.get(key), self._tasks.open_tasks.get(key)
        if ivar is None or task is None:
            return  # the code asks for something else now, which matching reports
        form, data = task.spec.form, payload.get("data")
        form_type = form.type if form is not None and form.kind == "type" else None
        try:
            decoded = payloads.convert(deep_copy(data), form_type, label=f"the data for {task.spec.label}")
        except PayloadError as exc:  # the form is another one since then
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
    wait_info: WaitInfo = {"kind": "human_task", "name": key, "label": spec.title, "since": now.isoformat()}
    wait_info["events"] = [*spec.outcomes]
    wait_info["role"] = ", ".join(word.partition(":")[2] for word in spec.candidates)
    if due is not None:
        wait_info["until"] = due.isoformat()
    return wait_info
