"""``api.approval``: what workflow code that is no process of another kind asks people, and waits for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from temporalex_django.core import payloads
from temporalex_django.core.copying import copied
from temporalex_django.core.human_tasks import OVERDUE, Asking, HumanTasks, Permits, due_at
from temporalex_django.core.ivar import IVar
from temporalex_django.core.port import Port
from temporalex_django.core.senders import Sender
from temporalex_django.core.shapes import Waits
from temporalex_django.errors import PayloadError

#: Begins the label of a wait for a decision, before the title.
DECISION: Final = "decision "


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
        return bool(self.shown) and self.shown == payloads.digest(payloads.plain(value, what="the value of covers()"))


class Approvals:
    """A ``Process``: attached when the first approval of a run is asked for."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._tasks: HumanTasks = port.human_tasks
        self._waiting: dict[str, IVar] = {}
        self._due: dict[str, int] = {}

    async def ask(self, asking: Asking, due: float | None) -> Decision:
        """Open a human task and wait for what becomes of it."""
        port, tasks = self._port, self._tasks
        key, now = tasks.next_key(), port.standing.now
        asking = replace(asking, called=f"the human task {key!r}")  # people read it who may not see the title
        moment = due_at(now, due)
        ivar = self._waiting[key] = IVar(f"{DECISION}{asking.title}")
        ivar.about = _about(key, asking, now, moment)
        started = port.standing.snapshot or {}
        requested = Sender(started["started_by"], started.get("started_as", "")) if "started_by" in started else None
        tasks.add(key, asking, due_at=moment, requested_by=requested)
        if due is not None:
            self._due[key] = port.calls.start_timer(due, lambda: self._overdue(key), task=key, then=OVERDUE)
        try:
            decision: Decision = await ivar
            return decision
        finally:
            self._close(key, "cancelled")

    def _overdue(self, key: str) -> None:
        self._due.pop(key)
        ivar = self._waiting[key]
        self._close(key, OVERDUE)
        ivar.put(Decision(outcome=OVERDUE, at=self._port.standing.now))

    def _close(self, key: str, ending: str, **decided: Any) -> None:
        if self._waiting.pop(key, None) is None:
            return
        if (timer := self._due.pop(key, None)) is not None:
            self._port.calls.cancel_timer(timer)
        self._tasks.close(key, ending, **decided)

    # -- a process ----------------------------------------------------------------------------------------------------

    def judge(self, request: dict[str, Any], permits: Permits) -> dict[str, Any]:
        """What a decision becomes in the history; see ``HumanTasks.judge``."""
        self._tasks.require_this_run(request)
        key, outcome = self._meant(request), request["event"]
        task = self._tasks.open.get(key)
        if task is None:
            raise self._tasks.gone(key)
        if outcome not in task.asking.outcomes:
            raise PayloadError(f"{outcome!r} is none of the outcomes: {', '.join(task.asking.outcomes)}")
        noted = self._tasks.judge(key, request, permits)
        what = f"the data for {task.asking.called}"
        data = payloads.plain(request.get("data"), what=what, limit=self._port.standing.payload_limit)
        return {"event": outcome, "step": key, "data": data, **noted}

    def _meant(self, request: dict[str, Any]) -> str:
        """The key of the task that a decision is for.

        One that is delivered again is for the task that asks its question, whatever number that has now.
        """
        key: str = request.get("step") or ""
        question = request.get("question") if request.get("again") else None
        task = self._tasks.open.get(key)
        if question is None or (task is not None and task.asking.question == question):
            return key
        return self._tasks.by_question(question) or key

    def apply(self, payload: dict[str, Any]) -> None:
        """A decision that ``judge`` has let through, now or when the history was made."""
        key = payload["step"]
        self._tasks.require_same_question(key, payload)
        ivar, task = self._waiting.get(key), self._tasks.open.get(key)
        if ivar is None or task is None:
            return  # the code asks for something else now, which matching reports
        form, data = task.asking.form, payload.get("data")
        fits = form.type if form is not None and form.kind == "type" else None
        try:
            typed = payloads.fit(copied(data), fits, what=f"the data for {task.asking.called}")
        except PayloadError as exc:  # the form is another one since then
            ivar.fail(exc)
            self._close(key, "cancelled")
            return
        by = Sender(payload["by_key"], payload.get("by", "")) if payload.get("by_key") else None
        noted = {"comment": payload.get("comment", ""), "decided_for": payload.get("for", "")}
        self._close(key, "decided", outcome=payload["event"], decided_by=by, **noted)
        ivar.put(
            Decision(
                outcome=payload["event"],
                data=typed,
                by=by,
                at=self._port.standing.now,
                comment=noted["comment"],
                stood_in_for=noted["decided_for"],
                shown=payload.get("question", {}).get("shows", ""),
            )
        )


def _about(key: str, asking: Asking, now: datetime, due: datetime | None) -> Waits:
    about: Waits = {"kind": "human_task", "name": key, "label": asking.title, "since": now.isoformat()}
    about["events"] = [*asking.outcomes]
    about["role"] = ", ".join(word.partition(":")[2] for word in asking.asked)
    if due is not None:
        about["until"] = due.isoformat()
    return about
