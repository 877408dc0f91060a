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
from temporalex_django.graph.events import DeclaredEvent, find_declared_event, validate_event_data
from temporalex_django.graph.instance import Instance
from temporalex_django.graph.progress import Failure, Progress, Result, TimerEvent, decode_step_result
from temporalex_django.graph.steps import (
    StepRef,
    decider_words,
    events_of,
    human_task_spec_of,
    is_event,
    is_step,
    key_of,
    name_of,
    timer_of,
)

_MAX_LISTED = 20
#: Arguments of Django's own signals: no name for what a caller gives.
_RESERVED_KEYS = frozenset({"self", "sender", "signal"})


class StepCalls(Protocol):
    """How the steps of a workflow class are called as activities, by number of the step."""

    names: tuple[str, ...]
    options: tuple[dict[str, Any], ...]


class _WaitingSteps(IVar):
    """Waits for whatever ends first; shows each of the steps."""

    __slots__ = ("run",)

    def __init__(self, run: GraphRun) -> None:
        super().__init__("steps")
        self.run = run

    @property
    def labels(self) -> list[str]:
        return describe_waits(self.run.progress.instance, limit=_MAX_LISTED)

    @property
    def wait_infos(self) -> list[WaitInfo]:
        return self.run.waits


class GraphRun:
    """One run of a ``GraphWorkflow``, inside its executor."""

    def __init__(self, runtime: WorkflowRuntime, instance: Instance, step_calls: StepCalls) -> None:
        self.runtime = runtime
        self.progress = Progress(instance, limit=runtime.run_context.payload_limit)
        self._initialized = False
        self._metadata = {key: value for key, value in instance.telemetry_metadata.items() if key not in _RESERVED_KEYS}
        self._published = instance.changed(active=0, waiting=0)  # as it was published last
        self._active: dict[str, None] = {}
        self._waiting: dict[str, None] = {}
        self._completed: list[str] = []
        self._step_calls = step_calls
        self._results: list[tuple[int, Result]] = []
        self._timers: dict[int, int] = {}  # command number by step
        self._waits: dict[int, WaitInfo] = {}  # of steps that wait
        self._human_task_keys: dict[int, str] = {}  # keys of the human tasks of steps that ask people
        self._wake = IVar("steps")

    async def drive(self) -> Instance:
        """Until the instance is closed; gives it. Raises what fails the run."""
        runtime = self.runtime
        runtime.attach(self)
        self._set_listener()
        with runtime.run_context.pure_section("transition"):
            step_numbers = self.progress.begin(runtime.run_context.now)
        while True:
            for number in step_numbers:
                self._start_step(number)
            instance = self.progress.instance
            self._publish(instance)
            if instance.closed:
                break
            self._wake = _WaitingSteps(self)
            await self._wake
            results, self._results = self._results, []
            self._set_listener()
            with runtime.run_context.pure_section("transition"):
                step_numbers = self.progress.fold(results, runtime.run_context.now)
        if self.progress.failure is not None:
            raise RunFailure(self.progress.failure)
        if self.progress.instance.status != "completed":
            raise TemporalexError(f"{runtime.run_context.info.id} was begun with an instance that had ended already")
        return self.progress.instance

    def _set_listener(self) -> None:
        """What the progress tells goes out with the activation, and nothing while a history is replayed."""
        run_context = self.runtime.run_context
        self.progress.listener = None if run_context.replaying else self._note
        if not self._initialized and not run_context.replaying:
            self._initialized = True
            self._note("runner_initialized", {"recovered": run_context.history_length > 0})

    def _note(self, name: str, facts: dict[str, Any]) -> None:
        self.runtime.journal.add_note(name, {**self._metadata, **facts})

    def _start_step(self, number: int) -> None:
        calls, instance = self.runtime.pending_commands, self.progress.instance
        step = instance.graph.steps[number]
        if step.waits:
            timer = timer_of(step)
            self._waits[number] = self._describe_wait(step, timer)
            if timer is not None:
                self._timers[number] = calls.start_timer(
                    self._remaining_seconds(key_of(step), timer[0]),
                    lambda: self._fire_timer(number, TimerEvent(timer[1])),
                    step=key_of(step),
                )
            if (spec := human_task_spec_of(step)) is not None:
                self._open_human_task(number, step, spec)
            return
        attributes: dict[str, Any] = {
            "activity": self._step_calls.names[number],
            "args": [instance.graph.keys[number], instance.log.configs.get(number), instance.version],
        }
        if self._step_calls.options[number]:
            attributes["options"] = self._step_calls.options[number]
        reader = activity_of(step).read_input if self.runtime.run_context.replaying else None
        calls.submit_activity(attributes, lambda job: self._add_result(number, step_result(job)), reader)

    def _open_human_task(self, number: int, step: StepRef, spec: HumanTaskSpec) -> None:
        """Open the human task of a step; of one that was there before it is another one."""
        instance, key = self.progress.instance, key_of(step)
        earlier_count = sum(key_of(entry.step) == key for entry in instance.execution_history)
        self._human_task_keys[number] = name = f"{key}#{earlier_count + 1}" if earlier_count else key
        until = self._waits[number].get("until")
        starter = instance.started_by
        snapshot = self.runtime.run_context.snapshot or {}
        self.runtime.human_tasks.add(
            name,
            spec,
            due_at=None if until is None else datetime.fromisoformat(until),
            requested_by=Sender(starter, snapshot.get("started_as", "")) if starter else None,
            deciders=deciders(instance),
        )

    def _fire_timer(self, number: int, result: TimerEvent) -> None:
        """The timer of a step: nobody has decided."""
        if (key := self._human_task_keys.pop(number, None)) is not None:
            self.runtime.human_tasks.close(key, OVERDUE)
        self._add_result(number, result)

    def _describe_wait(self, step: StepRef, timer: tuple[float, str] | None) -> WaitInfo:
        """What a step waits for, from now on."""
        now = self.runtime.run_context.now
        timer_event = None if timer is None else timer[1]
        events = [event for event in events_of(step) if event != timer_event]
        wait: WaitInfo = {"kind": "step", "name": key_of(step), "since": now.isoformat(), "events": events}
        if timer is not None:
            wait["until"] = (now + timedelta(seconds=self._remaining_seconds(key_of(step), timer[0]))).isoformat()
        if words := decider_words(step):
            wait["role"] = ", ".join(word.partition(":")[2] for word in words)
        return wait

    @property
    def waits(self) -> list[WaitInfo]:
        """What the steps that wait do so for; the first of them."""
        waiting = self.progress.instance.waiting
        return [self._waits[i] for i in islice(bits(waiting), _MAX_LISTED) if i in self._waits]

    def _remaining_seconds(self, key: str, seconds: float) -> float:
        """Seconds to wait; of a timer that ran when the run was moved here, what was left of it."""
        due = (self.runtime.run_context.snapshot or {}).get("due", {}).get(key)
        if due is None:
            return seconds
        return max((datetime.fromisoformat(due) - self.runtime.run_context.now).total_seconds(), 0.0)

    def _add_result(self, number: int, result: Result) -> None:
        self._results.append((number, result))
        self._wake.put()

    def _publish(self, instance: Instance) -> None:
        """Only what has changed is looked at: the cost of a step does not grow with the steps beside it."""
        keys = instance.graph.keys
        for step_keys, old_mask, new_mask in (
            (self._active, self._published.active, instance.active),
            (self._waiting, self._published.waiting, instance.waiting),
        ):
            for i in bits(old_mask ^ new_mask):
                if new_mask >> i & 1:
                    step_keys[keys[i]] = None
                else:
                    del step_keys[keys[i]]
        self._completed += [key_of(entry.step) for entry in instance.log.entries[len(self._completed) : instance.count]]
        self._published = instance
        self.runtime.publish(
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
        tasks, task_key = self.runtime.human_tasks, request.get("task")
        tasks.require_this_run(request)
        if task_key is not None and task_key not in tasks.open_tasks:
            raise tasks.closed_error(task_key)
        instance = self.progress.instance
        step_key = request.get("step")
        if task_key is not None:  # a key of a step may look like that of a task of another one
            step_key = next(
                (key_of(instance.graph.steps[i]) for i, key in self._human_task_keys.items() if key == task_key),
                step_key,
            )
        step = engine.resumed_by(instance, request["event"], step_key)
        declared = find_declared_event(step, request["event"])
        if declared is not None and declared.permission is not None:
            self._require_permission(step, declared, request, permits)
        elif not decider_words(step) and request.get("permitted") is False:
            raise ActionNotPermitted(
                f"{self.runtime.run_context.info.id}: {request.get('by') or 'nobody'} may not resume {name_of(step)}: that takes the permission "
                "to signal runs"
            )
        key = self._human_task_keys.get(instance.graph.number[step])
        decision = {name: request[name] for name in ("by", "by_key") if request.get(name)}
        if key is not None:
            decision = tasks.judge(key, request, permits)
        if declared is not None:
            self._run_validator(declared, request)
        label = f"the data of resume({request['event']!r})"
        payload = {
            "event": request["event"],
            "step": key_of(step),
            "data": payloads.to_plain(request.get("data"), label=label, limit=self.runtime.run_context.payload_limit),
        }
        return {**payload, **decision}

    def _require_permission(
        self, step: StepRef, declared: DeclaredEvent, request: dict[str, Any], permits: Permits
    ) -> None:
        """An event that takes a permission of its own; code may send it. Raises ``ActionNotPermitted``."""
        sender = Sender(request.get("by_key") or "", request.get("by") or "")
        if request.get("person") and not request.get("again") and not permits(f"perm:{declared.permission}", sender):
            raise ActionNotPermitted(
                f"{self.runtime.run_context.info.id}: {sender} may not send {str.__str__(declared)!r} to {name_of(step)}: that takes the "
                f"permission {declared.permission}"
            )

    def _run_validator(self, declared: DeclaredEvent, request: dict[str, Any]) -> None:
        sender = Sender(request.get("by_key") or "", request.get("by") or "") if request.get("person") else None
        with self.runtime.run_context.validation(sender):
            validate_event_data(declared, request.get("data"), self.progress.instance.context)

    def apply(self, payload: dict[str, Any]) -> None:
        """A resume that ``judge`` has let through, now or when the history was made."""
        number, result = parse_resume(self.progress.instance, payload)
        if "question" in payload:
            self.runtime.human_tasks.require_same_question(self._human_task_keys.get(number, payload["step"]), payload)
        if (timer := self._timers.pop(number, None)) is not None:
            self.runtime.pending_commands.cancel_timer(timer)
        if (key := self._human_task_keys.pop(number, None)) is not None:
            sender = Sender(payload.get("by_key", ""), payload["by"]) if payload.get("by") else None
            decision = {"comment": payload.get("comment", ""), "decided_for": payload.get("for", "")}
            self.runtime.human_tasks.close(key, "decided", outcome=payload["event"], decided_by=sender, **decision)
        self._add_result(number, result)


def describe_waits(instance: Instance, *, limit: int | None = None) -> list[str]:
    """What an instance waits for: a step that runs by its key, one that waits with its events."""
    texts = [f"step {key_of(step)}" for step in islice(instance.graph.refs(instance.active), limit)]
    waiting = islice(instance.graph.refs(instance.waiting), None if limit is None else limit - len(texts))
    return texts + [f"step {key_of(step)}: {' or '.join(events_of(step))}" for step in waiting]


def decidable_steps(code: Any, event: str, user: Person | None) -> list[str]:
    """Keys of the steps that ask for this person and take the event from him.

    Raises ``ActionNotPermitted``, see ``matches_candidate``.
    """
    graph = code.graph() if hasattr(code, "graph") else ()
    return [
        key_of(step)
        for step in graph
        if event in events_of(step) and any(matches_candidate(user, word) for word in _decider_words_for(step, event))
    ]


def _decider_words_for(step: StepRef, event: str) -> tuple[str, ...]:
    """Whom a step asks, as words; for an event that takes a permission of its own, who has that."""
    declared = find_declared_event(step, event)
    if declared is not None and declared.permission is not None:
        return (f"perm:{declared.permission}",)
    return decider_words(step)


def deciders(instance: Instance) -> list[str]:
    """The keys of the people who decided the steps of an instance, also of one that was moved here."""
    return [
        str(updates["by_key"])
        for entry in instance.execution_history
        if isinstance(updates := entry.context_updates, Mapping)
        and updates.get("by_key")
        and (entry.event == "approved" or human_task_spec_of(entry.step) is not None)
    ]


def resume_request(
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
    step_key = step if step is None or isinstance(step, str) else key_of(step)
    return {"event": event, "step": step_key, "data": data, "by": by, "by_key": key, "permitted": permitted}


def parse_resume(instance: Instance, payload: dict[str, Any]) -> tuple[int, Event]:
    """The step and the event of a resume that is in the history.

    Raises ``ResumeRefused`` when the class lacks the step now.
    """
    step = instance.graph.by_key.get(payload["step"])
    if step is None:
        raise ResumeRefused(f"{instance.id}: {instance.workflow.__name__} has no step {payload['step']!r} any more")
    data = payload.get("data")
    if payload.get("by") is not None:  # who decided goes with what he said, whatever that is
        data_fields = data if isinstance(data, dict) else {} if data is None else {"data": data}
        sender_fields = {name: payload[name] for name in ("by_key", "comment", "for") if payload.get(name)}
        data = {
            **{name: data_fields[name] for name in data_fields if name != "by_key"},
            "by": payload["by"],
            **sender_fields,
        }
    return instance.graph.number[step], Event(payload["event"], data)


def step_result(job: Job) -> Result:
    """The end of a step's activity as its result."""
    attributes = job.attributes
    if job.kind == "ActivityCompleted":
        return decode_step_result(attributes.get("result"))
    if "reason" in attributes:
        return Err(attributes["reason"])
    attempts_text = f" (after {attributes['attempts']} attempts)" if attributes.get("attempts", 0) > 1 else ""
    return Failure(attributes.get("type") or "Exception", f"{attributes.get('message')}{attempts_text}")
