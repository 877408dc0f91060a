"""The durable host of a graph: the steps of a run as activities and timers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Protocol, SupportsIndex
from weakref import WeakKeyDictionary

from temporalex_django.authoring import activity as activities
from temporalex_django.authoring.activity import Activity, ActivityOptions, RunSource
from temporalex_django.authoring.activity_options import RetryPolicy
from temporalex_django.authoring.authorization import Person, matches_candidate
from temporalex_django.core.failures import RunFailure
from temporalex_django.core.history.events import InputReading, Job, to_reading
from temporalex_django.core.human_tasks import OVERDUE, HumanTaskSpec, Permits
from temporalex_django.core.messages.sender import Sender
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.codec import deep_copy
from temporalex_django.core.results import Err, Event
from temporalex_django.core.runtime_protocol import WorkflowRuntime
from temporalex_django.core.typed_dicts import WaitInfo
from temporalex_django.core.units.ivar import IVar
from temporalex_django.errors import ActionNotPermitted, ActivityNotFound, PayloadError, ResumeRefused, TemporalexError
from temporalex_django.graph import engine
from temporalex_django.graph.context import Context, freeze
from temporalex_django.graph.definition import bits
from temporalex_django.graph.engine import DeclaredEvent, find_declared_event, validate_event_data
from temporalex_django.graph.instance import Instance
from temporalex_django.graph.progress import (
    Failure,
    Progress,
    Result,
    TimerEvent,
    decode_step_result,
    encode_step_result,
)
from temporalex_django.graph.steps import (
    Step,
    StepRef,
    class_of,
    decider_words,
    events_of,
    human_task_spec_of,
    is_event,
    is_step,
    key_of,
    name_of,
    timer_of,
)

# --- run --------------------------------------------------------------------------------------------------------------
#
# The run of a graph inside an executor, with its steps as activities and its waits as requests.
#
# The steps that start become commands. The results of the steps, and the events that people or code send, go into its
# ``Progress``, which applies them to the instance.


_MAX_LISTED = 20
#: Arguments that Django passes with each signal; metadata of the caller may not have these names.
_RESERVED_KEYS = frozenset({"self", "sender", "signal"})


class StepCalls(Protocol):
    """The names and options of the activities that run the steps of a class, by step number."""

    names: tuple[str, ...]
    options: tuple[dict[str, Any], ...]


class _WaitingSteps(IVar):
    """The future (``IVar``) on which a graph run blocks: it is set when the next step ends.

    To viewers of the run it reports one wait for each waiting step, instead of one for itself.
    """

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
    """One run of a ``GraphWorkflow``, inside its executor (``runtime``).

    ``instance`` is the state that it starts with. ``step_calls`` has the names and options of the activities of its
    steps.
    """

    def __init__(self, runtime: WorkflowRuntime, instance: Instance, step_calls: StepCalls) -> None:
        self.runtime = runtime
        self.progress = Progress(instance, limit=runtime.run_context.payload_limit)
        self._initialized = False
        self._metadata = {key: value for key, value in instance.telemetry_metadata.items() if key not in _RESERVED_KEYS}
        self._published = instance.changed(active=0, waiting=0)  # the instance that was published last
        # Dicts as ordered sets: keys in the order in which the steps became active or started to wait.
        self._active: dict[str, None] = {}
        self._waiting: dict[str, None] = {}
        self._completed: list[str] = []
        self._step_calls = step_calls
        self._results: list[tuple[int, Result]] = []
        self._failed_activities: dict[int, dict[str, Any]] = {}  # what failed, for the closing event, by step number
        self._timers: dict[int, int] = {}  # command number of the timer, by step number
        self._waits: dict[int, WaitInfo] = {}  # by step number
        self._human_task_keys: dict[int, str] = {}  # key of the open human task, by step number
        self._wake = IVar("steps")

    async def drive(self) -> Instance:
        """Run the graph until its instance is closed and return it. Raises the error that fails the run."""
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
            # A new variable for each wait, because an IVar is set once (see decision 10).
            self._wake = _WaitingSteps(self)
            await self._wake
            # All results since the last fold go in together, in the order of their jobs (see decision 9).
            results, self._results = self._results, []
            self._set_listener()
            with runtime.run_context.pure_section("transition"):
                step_numbers = self.progress.fold(results, runtime.run_context.now)
        if self.progress.failure is not None:
            failure, graph = self.progress.failure, instance.graph
            number = graph.number[graph.by_key[failure["step"]]]
            raise RunFailure({**failure, **self._failed_activities.get(number, {})})
        # The graph did not end here: its snapshot was of an instance that was closed already.
        if self.progress.instance.status != "completed":
            raise TemporalexError(f"{runtime.run_context.info.id} was started with an instance that had already ended")
        return self.progress.instance

    def _set_listener(self) -> None:
        """Report what happens, except in a replay. The host sends the reports as Django signals after the commit."""
        run_context = self.runtime.run_context
        self.progress.listener = None if run_context.replaying else self._note
        if not self._initialized and not run_context.replaying:
            self._initialized = True
            self._note("runner_initialized", {"recovered": run_context.history_length > 0})

    def _note(self, name: str, facts: dict[str, Any]) -> None:
        """Add a report, which the host sends as the Django signal ``name`` after the commit."""
        self.runtime.journal.add_note(name, {**self._metadata, **facts})

    def _start_step(self, number: int) -> None:
        """Schedule the activity of the step, or begin its wait with timer and human task."""
        calls, instance = self.runtime.pending_commands, self.progress.instance
        step = instance.graph.steps[number]
        if step.waits:
            timer = timer_of(step, self.runtime.run_context.now)
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
        # In a replay the recorded input is compared with the one of today; live runs need no comparison.
        reader = None
        if self.runtime.run_context.replaying:
            reader = activity_of(step).read_input
        calls.submit_activity(attributes, lambda job: self._end_activity(number, job), reader)

    def _end_activity(self, number: int, job: Job) -> None:
        """Add the result of a step's activity. A failed one is kept for the closing event: the cause of the run."""
        result = step_result(job)
        if isinstance(result, Failure | Err):
            self._failed_activities[number] = _failed_activity(self._step_calls.names[number], job)
        self._add_result(number, result)

    def _open_human_task(self, number: int, step: StepRef, spec: HumanTaskSpec) -> None:
        """Open the human task of a step. Its key gets ``#n`` if the step ended before the move to this version."""
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
        """End the wait: nobody has decided in time."""
        if (key := self._human_task_keys.pop(number, None)) is not None:
            self.runtime.human_tasks.close(key, OVERDUE)
        self._add_result(number, result)

    def _describe_wait(self, step: StepRef, timer: tuple[float, str] | None) -> WaitInfo:
        """Describe a wait that starts now. ``timer`` is ``(seconds, the event that comes then)``."""
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
        """The descriptions of the steps that wait for an event, a person or a time; at most ``_MAX_LISTED`` of them."""
        waiting = self.progress.instance.waiting
        return [self._waits[i] for i in islice(bits(waiting), _MAX_LISTED) if i in self._waits]

    def _remaining_seconds(self, key: str, seconds: float) -> float:
        """Return ``seconds``, or what is left of them if the timer ran when the run was moved to this version."""
        due = (self.runtime.run_context.snapshot or {}).get("due", {}).get(key)
        if due is None:
            return seconds
        return max((datetime.fromisoformat(due) - self.runtime.run_context.now).total_seconds(), 0.0)

    def _add_result(self, number: int, result: Result) -> None:
        self._results.append((number, result))
        self._wake.put()

    def _publish(self, instance: Instance) -> None:
        """Publish the state. Only changed bits are read, so that other active steps cost a step nothing."""
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

    def judge(self, request: dict[str, Any], permits: Permits) -> None:
        """Check a request to resume a waiting step, before it is accepted and recorded; return if it may be applied.

        ``request`` has these keys:

        - ``event``
        - ``step``: a key, or None
        - ``data``
        - ``by``: the name of the sender
        - ``by_key``: the key of the user
        - ``permitted``: False if this person may not resume steps that ask nobody in particular

        The decision of a human task also has ``task`` (its key), and the keys that ``HumanTasks.judge`` reads.
        ``permits(candidate, sender)`` says whether the sender fits a candidate such as ``group:managers``.

        Raises ``ResumeRefused``, ``ActionNotPermitted``, the errors of an event's validator, and those of
        ``HumanTasks.judge``.
        """
        tasks = self.runtime.human_tasks
        # A decision was made for the question of one run. The chain may have continued with another run since.
        tasks.require_this_run(request)
        step = self._resumed_step(request)
        declared = find_declared_event(step, request["event"])
        if declared is not None and declared.permission is not None:
            self._require_permission(step, declared, request, permits)
        # A step with candidates checks these below instead of the permission to signal runs.
        elif not decider_words(step) and request.get("permitted") is False:
            raise ActionNotPermitted(
                f"{self.runtime.run_context.info.id}: {request.get('by') or 'nobody'} may not resume {name_of(step)}: "
                "this requires the permission to signal runs"
            )
        key = self._human_task_keys.get(self.progress.instance.graph.number[step])
        if key is not None:
            tasks.judge(key, request, permits)
        if declared is not None:
            self._run_validator(declared, request)

    def build_payload(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the payload that the history records for an accepted request to resume a step.

        It has the keys ``event``, ``step`` and ``data``, and the keys of the decision, such as ``by``. Raises
        ``ResumeRefused``, ``HumanTaskClosed`` and ``PayloadError``.
        """
        step = self._resumed_step(request)
        key = self._human_task_keys.get(self.progress.instance.graph.number[step])
        decision = {name: request[name] for name in ("by", "by_key") if request.get(name)}
        if key is not None:
            decision = self.runtime.human_tasks.recorded_fields(key, request)
        label = f"the data of resume({request['event']!r})"
        # Pages show the beginning of it: who decided, and what they wrote.
        return {
            "event": request["event"],
            **decision,
            "step": key_of(step),
            "data": codec.to_plain(request.get("data"), label=label, limit=self.runtime.run_context.payload_limit),
        }

    def _resumed_step(self, request: dict[str, Any]) -> StepRef:
        """Return the waiting step. Raises ``ResumeRefused`` and ``HumanTaskClosed``."""
        instance, step_key, task_key = self.progress.instance, request.get("step"), request.get("task")
        # A key of a step may look like the key of another step's task, so find the step by its task.
        if task_key is not None:
            self.runtime.human_tasks.open_task(task_key)
            step_key = next(
                (key_of(instance.graph.steps[i]) for i, key in self._human_task_keys.items() if key == task_key),
                step_key,
            )
        return engine.resumed_by(instance, request["event"], step_key)

    def _require_permission(
        self, step: StepRef, declared: DeclaredEvent, request: dict[str, Any], permits: Permits
    ) -> None:
        """Raise ``ActionNotPermitted`` for a person without the permission. Code without a user needs none."""
        sender = Sender(request.get("by_key") or "", request.get("by") or "")
        # A message that a reset or fork delivers again was permitted when it was sent first.
        if request.get("person") and not request.get("again") and not permits(f"perm:{declared.permission}", sender):
            raise ActionNotPermitted(
                f"{self.runtime.run_context.info.id}: {sender} may not send {str.__str__(declared)!r} to "
                f"{name_of(step)}: this requires the permission {declared.permission}"
            )

    def _run_validator(self, declared: DeclaredEvent, request: dict[str, Any]) -> None:
        """Raise the errors of the validator, in which ``api.sender()`` returns the person who sent the request."""
        sender = None
        if request.get("person"):
            sender = Sender(request.get("by_key") or "", request.get("by") or "")
        with self.runtime.run_context.validation(sender):
            validate_event_data(declared, request.get("data"), self.progress.instance.context)

    def apply(self, payload: dict[str, Any]) -> None:
        """Apply a recorded resume: end the waiting step with the event and the data of ``payload``.

        This is called when the resume was just accepted, and again in each replay. The timer and the human task of the
        step are closed.
        """
        number, result = parse_resume(self.progress.instance, payload)
        # The recorded decision must belong to the question that the code asks now (see decision 47).
        if "question" in payload:
            self.runtime.human_tasks.require_same_question(self._human_task_keys.get(number, payload["step"]), payload)
        # The resume wins over a timer that has not fired, which must not end the step again.
        if (timer := self._timers.pop(number, None)) is not None:
            self.runtime.pending_commands.cancel_timer(timer)
        if (key := self._human_task_keys.pop(number, None)) is not None:
            sender = None
            if payload.get("by"):
                sender = Sender(payload.get("by_key", ""), payload["by"])
            decision = {"comment": payload.get("comment", ""), "decided_for": payload.get("for", "")}
            self.runtime.human_tasks.close(key, "decided", outcome=payload["event"], decided_by=sender, **decision)
        self._add_result(number, result)


def describe_waits(instance: Instance, *, limit: int | None = None) -> list[str]:
    """Return texts about the steps in progress: a running step with its key, a waiting step with its events as well.

    ``limit`` is the largest number of texts; None means no limit.
    """
    texts = [f"step {key_of(step)}" for step in islice(instance.graph.refs(instance.active), limit)]
    waiting = islice(instance.graph.refs(instance.waiting), None if limit is None else limit - len(texts))
    return texts + [f"step {key_of(step)}: {' or '.join(events_of(step))}" for step in waiting]


def decidable_steps(code: Any, event: str, user: Person | None) -> list[str]:
    """Return the keys of the steps that a user may decide by sending ``event``.

    ``code`` is the class of the run; one that is not a graph has no such steps. Raises ``ActionNotPermitted`` if the
    groups of the user cannot be known.
    """
    if not hasattr(code, "graph"):
        return []
    return [
        key_of(step)
        for step in code.graph()
        if event in events_of(step) and any(matches_candidate(user, word) for word in _decider_words_for(step, event))
    ]


def _decider_words_for(step: StepRef, event: str) -> tuple[str, ...]:
    """Return the candidates for ``matches_candidate``. A declared permission is the only one."""
    declared = find_declared_event(step, event)
    if declared is not None and declared.permission is not None:
        return (f"perm:{declared.permission}",)
    return decider_words(step)


def deciders(instance: Instance) -> list[str]:
    """Return the keys of the users who have decided steps of the instance, also before it moved to this version."""
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
    """Return the message that asks a run to resume a step, as a dict with the keys that ``GraphRun.judge`` reads.

    ``by`` is the name of the sender, and ``key`` the key of the user. ``permitted`` is False if the user may not resume
    steps that ask nobody in particular. Raises ``ResumeRefused`` for values that can be no event or no step.
    """
    if not is_event(event):
        raise ResumeRefused(f"{event!r} is not a valid event name")
    if step is not None and not isinstance(step, str) and not is_step(step):
        raise ResumeRefused(f"{step!r} is neither a step nor the key of a step")
    step_key = step if step is None or isinstance(step, str) else key_of(step)
    return {"event": event, "step": step_key, "data": data, "by": by, "by_key": key, "permitted": permitted}


def parse_resume(instance: Instance, payload: dict[str, Any]) -> tuple[int, Event]:
    """Return ``(step number, event)`` of a resume, from the payload that the history records.

    ``instance`` is the graph before the resume. The data of the event names the sender (``by``). Raises
    ``ResumeRefused`` if the class no longer has the step.
    """
    step = instance.graph.by_key.get(payload["step"])
    if step is None:
        raise ResumeRefused(f"{instance.id}: {instance.workflow.__name__} no longer has a step {payload['step']!r}")
    data = payload.get("data")
    # The context names the person beside the data, whatever the data are; data cannot claim another ``by``.
    if payload.get("by") is not None:
        data_fields = data if isinstance(data, dict) else {} if data is None else {"data": data}
        sender_fields = {name: payload[name] for name in ("by_key", "comment", "for") if payload.get(name)}
        data = {
            **{name: data_fields[name] for name in data_fields if name != "by_key"},
            "by": payload["by"],
            **sender_fields,
        }
    return instance.graph.number[step], Event(payload["event"], data)


def step_result(job: Job) -> Result:
    """Return the result of a step from the history job that ends its activity.

    The result is an ``Event``, ``Pending``, ``Err``, or a ``Failure``.
    """
    attributes = job.attributes
    if job.kind == "ActivityCompleted":
        return decode_step_result(attributes.get("result"))
    if "reason" in attributes:
        return Err(attributes["reason"])
    attempts_text = ""
    if attributes.get("attempts", 0) > 1:
        attempts_text = f" (after {attributes['attempts']} attempts)"
    return Failure(attributes.get("type") or "Exception", f"{attributes.get('message')}{attempts_text}")


def _failed_activity(name: str, job: Job) -> dict[str, Any]:
    """Return the attributes of the closing event that name the failed activity, and the place that raised.

    They are those of a function workflow that fails with an activity, except the texts that the step has already.
    """
    attributes: dict[str, Any] = {"activity": name}
    if job.attributes.get("traceback") is not None:
        attributes["cause_traceback"] = job.attributes["traceback"]
    return attributes


# --- activities -------------------------------------------------------------------------------------------------------
#
# Steps as activities: the function that a worker runs for a step, and the form of its result in the history.


#: The retry policy of a step for which neither the step nor its workflow sets one.
DEFAULT_RETRY = RetryPolicy(max_attempts=5, max_interval=60.0)


class StepActivity(Activity[Any, Any]):
    """The activity that runs the steps of one step class, in all graph workflows that use the class."""

    def __init__(self, cls: type[Step]) -> None:
        super().__init__(cls.execute, ActivityOptions(atomic=cls.atomic))
        # The function may come from a base or a mixin, so its name does not identify the step. Histories name the
        # class.
        self.name = f"{cls.__module__}.{cls.__qualname__.rsplit('<locals>.', 1)[-1]}"
        self.step_class = cls

    def decode_call(
        self, args: Sequence[Any], kwargs: Any, source: RunSource
    ) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """Return ``execute`` of the step, its arguments ``(instance, config, context)`` and no keyword arguments.

        ``args`` are the step key, the config and the version from the recorded call. The instance is loaded from
        ``source`` when ``execute`` reads one of its fields. Raises ``PayloadError``, ``UnknownWorkflow``,
        ``ActivityNotFound``.
        """
        key, config, version = args
        step = self._find_step(key, source.workflow(version))
        step_instance = step() if isinstance(step, type) else step
        config_type = _config_type(type(step_instance))
        if config_type is Any:
            typed_config = freeze(config)
        else:
            typed_config = codec.convert(config, config_type, label=f"the config of step {name_of(step)}")
        # Computing the instance replays the history of the run, and most steps read only their config.
        instance = LazyInstance(lambda: source.instance(version))
        return step_instance.execute, (instance, typed_config, Context.of(instance)), {}

    def encode_result(self, value: Any, args: Sequence[Any], source: RunSource) -> Any:
        """Return the form in which the history records ``value``, which ``execute`` has returned.

        ``args`` are the recorded step key, config and version, and ``source`` has the class of the run. A value that
        the step may not return is encoded as the reason why it may not.
        """
        step = self._find_step(args[0], source.workflow(args[2]))
        encoded_result = encode_step_result(name_of(step), events_of(step), value)
        if "event" in encoded_result and (declared := find_declared_event(step, encoded_result["event"])) is not None:
            # Convert for the check alone: the history keeps the plain data.
            label = f"the data of the event {encoded_result['event']!r} of step {name_of(step)}"
            try:
                codec.convert(codec.to_plain(encoded_result["data"], label=label), declared.data_type, label=label)
            except PayloadError as exc:
                return {"wrong": exc.message}
        return encoded_result

    annotate_result = ""  # other steps read plain data

    def read_result(self, result: Any) -> Any:
        """Return the recorded result unchanged, because the context of a graph holds plain data."""
        return result

    def encode_manual_result(self, result: Any, args: Sequence[Any], source: RunSource) -> Any:
        """Return the form in which the history records a result that a person entered for the step.

        ``result`` is ``{"event": name, "data": …}`` with an event that the step declares. Raises ``PayloadError``.
        """
        if (
            not isinstance(result, dict)
            or not isinstance(result.get("event"), str)
            or result.keys() - {"event", "data"}
        ):
            raise PayloadError(f'the result of step {args[0]} must be {{"event": name, "data": ...}}')
        encoded_result: dict[str, Any] = self.encode_result(Event(result["event"], result.get("data")), args, source)
        if "wrong" in encoded_result:
            raise PayloadError(encoded_result["wrong"])
        return encoded_result

    def parse_edited_input(self, edited_input: Any, args: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of the step with the config that a person entered, and no keyword arguments.

        ``edited_input`` is that config, and ``args`` are the recorded arguments. Raises ``PayloadError``.
        """
        key, _, version = args
        codec.convert(deep_copy(edited_input), _config_type(self.step_class), label=f"the config of step {key}")
        return [key, edited_input, version], {}

    def read_input(self, attributes: Mapping[str, Any]) -> InputReading:
        """Return the key and the config of the step from a recorded call.

        The recorded version is left out, because it is the version of the run. Raises ``PayloadError``.
        """
        key, config, _ = attributes["args"]
        config_type = _config_type(self.step_class)
        typed_config = codec.convert(deep_copy(config), config_type, label=f"the config of step {key}")
        return to_reading({"step": key, "config": typed_config}, {"step": str, "config": config_type})

    def _find_step(self, key: str, workflow: Any) -> StepRef:
        """Raise ``ActivityNotFound`` for an unknown key."""
        graph = getattr(workflow, "_graph", None)
        step: StepRef | None = None
        if graph is not None:
            step = graph.by_key.get(key)
        if step is None:
            raise ActivityNotFound(f"{workflow.__name__} has no step {key!r} in this process")
        return step


def _config_type(cls: type[Step]) -> Any:
    """Return the annotation, or Any. It is cached: reading a signature takes longer than most steps."""
    # Threads may compute the same entry twice, which does no harm.
    if cls not in _config_types:
        name = [*inspect.signature(cls.execute).parameters][2]
        _config_types[cls] = codec.resolve_hints(cls.execute).get(name, Any)
    return _config_types[cls]


_config_types: WeakKeyDictionary[type[Step], Any] = WeakKeyDictionary()
_step_activities: WeakKeyDictionary[type[Step], StepActivity] = WeakKeyDictionary()


def activity_of(step: StepRef) -> StepActivity:
    """Return the activity that runs steps of the class of ``step``, and register it so that workers find it."""
    cls = class_of(step)
    step_activity = _step_activities.get(cls)
    if step_activity is None:
        step_activity = _step_activities[cls] = StepActivity(cls)
    activities.register(step_activity)
    return step_activity


def options_of(step: StepRef, workflow: Any) -> dict[str, Any]:
    """Return the options of the activity that runs a step, as plain data.

    Each option comes from the step. A step without a retry policy gets the policy of its workflow class, or else the
    default policy. Raises ``WorkflowDefinitionError`` for options that are not valid.
    """
    retry = step.retry or getattr(workflow, "retry", None) or DEFAULT_RETRY
    return ActivityOptions(
        retry=retry,
        start_to_close=step.timeout,
        heartbeat=step.heartbeat,
        queue=step.queue,
        atomic=step.atomic,
        by_hand=step.by_hand,
    ).as_dict()


class LazyInstance(Instance):
    """A stand-in for the instance that the function ``load`` returns: it behaves as that instance does.

    ``load`` is called once, when a field is read. So a step that never reads its instance does not pay for computing
    it.
    """

    def __init__(self, load: Callable[[], Instance]) -> None:
        self.__dict__["load"] = load

    @property
    def real(self) -> Instance:
        """The instance that ``load`` returns. Raises the errors of ``load``."""
        # Not a ``cached_property``: in Python 3.11 it has one lock for all instances.
        attributes = self.__dict__
        if "real" not in attributes:
            attributes["real"] = attributes["load"]()
        return attributes["real"]  # type: ignore[no-any-return] # the return value of ``load``

    @property  # type: ignore[misc] # read-only
    def __class__(self) -> type[Instance]:  # type: ignore[override] # the base
        """The class ``Instance``, so that ``dataclasses.replace`` and ``pickle`` create an ordinary instance."""
        return Instance

    def changed(self, **changes: Any) -> Instance:
        return self.real.changed(**changes)

    def _identity(self) -> tuple[Any, ...]:
        return self.real._identity()  # noqa: SLF001 - of the same class

    def __repr__(self) -> str:
        return repr(self.real)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return self.real.__reduce_ex__(protocol)  # a copy or pickle is a plain instance


def _forward_property(name: str) -> property:
    return property(lambda lazy_instance: getattr(lazy_instance.real, name))


# Properties of the class win over the values in ``__dict__``, so every field is read from the real instance.
for _field in fields(Instance):
    setattr(LazyInstance, _field.name, _forward_property(_field.name))
