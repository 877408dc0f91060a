"""A graph on the durable runtime.

What its progress begins becomes commands, what comes back is folded into the progress.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Protocol

from temporalex_django.authoring.authorization import Person, matches_candidate
from temporalex_django.core import payloads
from temporalex_django.core.failures import RunFailure
from temporalex_django.core.history.events import Job
from temporalex_django.core.human_tasks import OVERDUE, HumanTaskSpec, Permits
from temporalex_django.core.ivar import IVar
from temporalex_django.core.results import Err, Event
from temporalex_django.core.runtime_protocol import WorkflowRuntime
from temporalex_django.core.senders import Sender
from temporalex_django.core.typed_dicts import WaitInfo
from temporalex_django.errors import ActionNotPermitted, ResumeRefused, TemporalexError
from temporalex_django.graph import engine
from temporalex_django.graph.definition.structure import bits
from temporalex_django.graph.durable.activities import activity_of
from temporalex_django.graph.events import DeclaredEvent, declared_of, judged
from temporalex_django.graph.instance import Instance
from temporalex_django.graph.progress import Failure, Fired, Progress, Result, as_result
from temporalex_django.graph.steps import (
    StepRef,
    asking_of,
    events_of,
    is_event,
    is_step,
    key_of,
    name_of,
    timer_of,
    words_of,
)

_SHOWN = 20
#: Arguments of Django's own signals: no name for what a caller gives.
_TAKEN = frozenset({"self", "sender", "signal"})


class StepCalls(Protocol):
    """How the steps of a workflow class are called as activities, by number of the step."""

    names: tuple[str, ...]
    options: tuple[dict[str, Any], ...]


class _Waiting(IVar):
    """Waits for whatever ends first; shows each of the steps."""

    __slots__ = ("run",)

    def __init__(self, run: GraphRun) -> None:
        super().__init__("steps")
        self.run = run

    @property
    def labels(self) -> list[str]:
        return waits(self.run.progress.instance, most=_SHOWN)

    @property
    def wait_infos(self) -> list[WaitInfo]:
        return self.run.waits


class GraphRun:
    """One run of a ``GraphWorkflow``, inside its executor."""

    def __init__(self, port: WorkflowRuntime, instance: Instance, calls: StepCalls) -> None:
        self.port = port
        self.progress = Progress(instance, limit=port.run_context.payload_limit)
        self._in_hand = False
        self._metadata = {key: value for key, value in instance.telemetry_metadata.items() if key not in _TAKEN}
        self._seen = instance.changed(active=0, waiting=0)  # as it was published last
        self._active: dict[str, None] = {}
        self._waiting: dict[str, None] = {}
        self._completed: list[str] = []
        self._calls = calls
        self._ended: list[tuple[int, Result]] = []
        self._timers: dict[int, int] = {}  # command number by step
        self._since: dict[int, WaitInfo] = {}  # of steps that wait
        self._asked: dict[int, str] = {}  # keys of the human tasks of steps that ask people
        self._wake = IVar("steps")

    async def drive(self) -> Instance:
        """Until the instance is closed; gives it. Raises what fails the run."""
        port = self.port
        port.attach(self)
        self._listen()
        with port.run_context.pure_section("transition"):
            begun = self.progress.begin(port.run_context.now)
        while True:
            for number in begun:
                self._begin(number)
            instance = self.progress.instance
            self._publish(instance)
            if instance.closed:
                break
            self._wake = _Waiting(self)
            await self._wake
            ended, self._ended = self._ended, []
            self._listen()
            with port.run_context.pure_section("transition"):
                begun = self.progress.fold(ended, port.run_context.now)
        if self.progress.failed is not None:
            raise RunFailure(self.progress.failed)
        if self.progress.instance.status != "completed":
            raise TemporalexError(f"{port.run_context.info.id} was begun with an instance that had ended already")
        return self.progress.instance

    def _listen(self) -> None:
        """What the progress tells goes out with the activation, and nothing while a history is replayed."""
        standing = self.port.run_context
        self.progress.tell = None if standing.replaying else self._tell
        if not self._in_hand and not standing.replaying:
            self._in_hand = True
            self._tell("runner_initialized", {"recovered": standing.history_length > 0})

    def _tell(self, name: str, facts: dict[str, Any]) -> None:
        self.port.journal.add_note(name, {**self._metadata, **facts})

    def _begin(self, number: int) -> None:
        calls, instance = self.port.pending_commands, self.progress.instance
        step = instance.graph.steps[number]
        if step.waits:
            timer = timer_of(step)
            self._since[number] = self._about(step, timer)
            if timer is not None:
                self._timers[number] = calls.start_timer(
                    self._remaining(key_of(step), timer[0]),
                    lambda: self._fired(number, Fired(timer[1])),
                    step=key_of(step),
                )
            if (asking := asking_of(step)) is not None:
                self._ask(number, step, asking)
            return
        attributes: dict[str, Any] = {
            "activity": self._calls.names[number],
            "args": [instance.graph.keys[number], instance.log.configs.get(number), instance.version],
        }
        if self._calls.options[number]:
            attributes["options"] = self._calls.options[number]
        reader = activity_of(step).read_input if self.port.run_context.replaying else None
        calls.submit_activity(attributes, lambda job: self._end(number, result_of(job)), reader)

    def _ask(self, number: int, step: StepRef, asking: HumanTaskSpec) -> None:
        """Open the human task of a step; of one that was there before it is another one."""
        instance, key = self.progress.instance, key_of(step)
        before = sum(key_of(entry.step) == key for entry in instance.execution_history)
        self._asked[number] = name = f"{key}#{before + 1}" if before else key
        until = self._since[number].get("until")
        starter = instance.started_by
        started = self.port.run_context.snapshot or {}
        self.port.human_tasks.add(
            name,
            asking,
            due_at=None if until is None else datetime.fromisoformat(until),
            requested_by=Sender(starter, started.get("started_as", "")) if starter else None,
            deciders=deciders(instance),
        )

    def _fired(self, number: int, result: Fired) -> None:
        """The timer of a step: nobody has decided."""
        if (key := self._asked.pop(number, None)) is not None:
            self.port.human_tasks.close(key, OVERDUE)
        self._end(number, result)

    def _about(self, step: StepRef, timer: tuple[float, str] | None) -> WaitInfo:
        """What a step waits for, from now on."""
        now = self.port.run_context.now
        comes = None if timer is None else timer[1]
        events = [event for event in events_of(step) if event != comes]
        about: WaitInfo = {"kind": "step", "name": key_of(step), "since": now.isoformat(), "events": events}
        if timer is not None:
            about["until"] = (now + timedelta(seconds=self._remaining(key_of(step), timer[0]))).isoformat()
        if words := words_of(step):
            about["role"] = ", ".join(word.partition(":")[2] for word in words)
        return about

    @property
    def waits(self) -> list[WaitInfo]:
        """What the steps that wait do so for; the first of them."""
        waiting = self.progress.instance.waiting
        return [self._since[i] for i in islice(bits(waiting), _SHOWN) if i in self._since]

    def _remaining(self, key: str, whole: float) -> float:
        """Seconds to wait; of a timer that ran when the run was moved here, what was left of it."""
        due = (self.port.run_context.snapshot or {}).get("due", {}).get(key)
        if due is None:
            return whole
        return max((datetime.fromisoformat(due) - self.port.run_context.now).total_seconds(), 0.0)

    def _end(self, number: int, result: Result) -> None:
        self._ended.append((number, result))
        self._wake.put()

    def _publish(self, instance: Instance) -> None:
        """Only what has changed is looked at: the cost of a step does not grow with the steps beside it."""
        keys = instance.graph.keys
        for shown, was, now in (
            (self._active, self._seen.active, instance.active),
            (self._waiting, self._seen.waiting, instance.waiting),
        ):
            for i in bits(was ^ now):
                if now >> i & 1:
                    shown[keys[i]] = None
                else:
                    del shown[keys[i]]
        self._completed += [key_of(entry.step) for entry in instance.log.entries[len(self._completed) : instance.count]]
        self._seen = instance
        self.port.publish(
            {
                "status": instance.status,
                "active": list(self._active),
                "waiting": list(self._waiting),
                "completed": list(self._completed),
            }
        )

    # -- resume -------------------------------------------------------------------------------------------------------

    def judge(self, request: dict[str, Any], permits: Permits) -> dict[str, Any]:
        """What a resume becomes in the history. Raises ``ResumeRefused``, and what ``HumanTasks.judge`` raises.

        ``request``: event, step (a key or None), data, by (who), by_key (of the user), permitted (whether this person
        may resume steps that ask nobody in particular); of the decision of a human task also its key (task), and
        what ``HumanTasks.judge`` says.
        """
        tasks, wanted = self.port.human_tasks, request.get("task")
        tasks.require_this_run(request)
        if wanted is not None and wanted not in tasks.open_tasks:
            raise tasks.closed_error(wanted)
        instance = self.progress.instance
        of = request.get("step")
        if wanted is not None:  # a key of a step may look like that of a task of another one
            of = next((key_of(instance.graph.steps[i]) for i, key in self._asked.items() if key == wanted), of)
        step = engine.resumed_by(instance, request["event"], of)
        declared = declared_of(step, request["event"])
        if declared is not None and declared.permission is not None:
            self._require_permission(step, declared, request, permits)
        elif not words_of(step) and request.get("permitted") is False:
            raise ActionNotPermitted(
                f"{self.port.run_context.info.id}: {request.get('by') or 'nobody'} may not resume {name_of(step)}: that takes the permission "
                "to signal runs"
            )
        key = self._asked.get(instance.graph.number[step])
        noted = {name: request[name] for name in ("by", "by_key") if request.get(name)}
        if key is not None:
            noted = tasks.judge(key, request, permits)
        if declared is not None:
            self._ask_validator(declared, request)
        what = f"the data of resume({request['event']!r})"
        payload = {
            "event": request["event"],
            "step": key_of(step),
            "data": payloads.to_plain(request.get("data"), label=what, limit=self.port.run_context.payload_limit),
        }
        return {**payload, **noted}

    def _require_permission(
        self, step: StepRef, declared: DeclaredEvent, request: dict[str, Any], permits: Permits
    ) -> None:
        """An event that takes a permission of its own; code may send it. Raises ``ActionNotPermitted``."""
        sender = Sender(request.get("by_key") or "", request.get("by") or "")
        if request.get("person") and not request.get("again") and not permits(f"perm:{declared.permission}", sender):
            raise ActionNotPermitted(
                f"{self.port.run_context.info.id}: {sender} may not send {str.__str__(declared)!r} to {name_of(step)}: that takes the "
                f"permission {declared.permission}"
            )

    def _ask_validator(self, declared: DeclaredEvent, request: dict[str, Any]) -> None:
        sender = Sender(request.get("by_key") or "", request.get("by") or "") if request.get("person") else None
        with self.port.run_context.validation(sender):
            judged(declared, request.get("data"), self.progress.instance.context)

    def apply(self, payload: dict[str, Any]) -> None:
        """A resume that ``judge`` has let through, now or when the history was made."""
        number, result = resumption(self.progress.instance, payload)
        if "question" in payload:
            self.port.human_tasks.require_same_question(self._asked.get(number, payload["step"]), payload)
        if (timer := self._timers.pop(number, None)) is not None:
            self.port.pending_commands.cancel_timer(timer)
        if (key := self._asked.pop(number, None)) is not None:
            by = Sender(payload.get("by_key", ""), payload["by"]) if payload.get("by") else None
            said = {"comment": payload.get("comment", ""), "decided_for": payload.get("for", "")}
            self.port.human_tasks.close(key, "decided", outcome=payload["event"], decided_by=by, **said)
        self._end(number, result)


def waits(instance: Instance, *, most: int | None = None) -> list[str]:
    """What an instance waits for: a step that runs by its key, one that waits with its events."""
    found = [f"step {key_of(step)}" for step in islice(instance.graph.refs(instance.active), most)]
    waiting = islice(instance.graph.refs(instance.waiting), None if most is None else most - len(found))
    return found + [f"step {key_of(step)}: {' or '.join(events_of(step))}" for step in waiting]


def deciding(code: Any, event: str, user: Person | None) -> list[str]:
    """Keys of the steps that ask for this person and take the event from him.

    Raises ``ActionNotPermitted``, see ``matches_candidate``.
    """
    graph = code.graph() if hasattr(code, "graph") else ()
    return [
        key_of(step)
        for step in graph
        if event in events_of(step) and any(matches_candidate(user, word) for word in _asked_for(step, event))
    ]


def _asked_for(step: StepRef, event: str) -> tuple[str, ...]:
    """Whom a step asks, as words; for an event that takes a permission of its own, who has that."""
    declared = declared_of(step, event)
    if declared is not None and declared.permission is not None:
        return (f"perm:{declared.permission}",)
    return words_of(step)


def deciders(instance: Instance) -> list[str]:
    """The keys of the people who decided the steps of an instance, also of one that was moved here."""
    return [
        str(said["by_key"])
        for entry in instance.execution_history
        if isinstance(said := entry.context_updates, Mapping)
        and said.get("by_key")
        and (entry.event == "approved" or asking_of(entry.step) is not None)
    ]


def requested(
    event: object,
    *,
    step: StepRef | str | None,
    data: Any,
    by: str | None,
    key: str = "",
    permitted: bool = True,
) -> dict[str, Any]:
    """The body of a resume message; see ``GraphRun.judge``.

    Raises ``ResumeRefused`` for what can be no event and no step.
    """
    if not is_event(event):
        raise ResumeRefused(f"{event!r} is not a name of an event")
    if step is not None and not isinstance(step, str) and not is_step(step):
        raise ResumeRefused(f"{step!r} is neither a step nor the key of one")
    of = step if step is None or isinstance(step, str) else key_of(step)
    return {"event": event, "step": of, "data": data, "by": by, "by_key": key, "permitted": permitted}


def resumption(instance: Instance, payload: dict[str, Any]) -> tuple[int, Event]:
    """The step and the event of a resume that is in the history.

    Raises ``ResumeRefused`` when the class lacks the step now.
    """
    step = instance.graph.by_key.get(payload["step"])
    if step is None:
        raise ResumeRefused(f"{instance.id}: {instance.workflow.__name__} has no step {payload['step']!r} any more")
    data = payload.get("data")
    if payload.get("by") is not None:  # who decided goes with what he said, whatever that is
        said = data if isinstance(data, dict) else {} if data is None else {"data": data}
        more = {name: payload[name] for name in ("by_key", "comment", "for") if payload.get(name)}
        data = {**{name: said[name] for name in said if name != "by_key"}, "by": payload["by"], **more}
    return instance.graph.number[step], Event(payload["event"], data)


def result_of(job: Job) -> Result:
    """The end of a step's activity as its result."""
    attributes = job.attributes
    if job.kind == "ActivityCompleted":
        return as_result(attributes.get("result"))
    if "reason" in attributes:
        return Err(attributes["reason"])
    times = f" (after {attributes['attempts']} attempts)" if attributes.get("attempts", 0) > 1 else ""
    return Failure(attributes.get("type") or "Exception", f"{attributes.get('message')}{times}")
