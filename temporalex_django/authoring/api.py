"""The primitives of workflow code (``from temporalex_django import api``).

Each primitive checks when it is called that it is allowed in this place, and acts when it is awaited. Those that only
read or record something act at once.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

from temporalex_django.authoring import foreign_options
from temporalex_django.authoring.activity_options import check_id
from temporalex_django.authoring.definition import check_use
from temporalex_django.authoring.django_tasks import activity_of
from temporalex_django.authoring.human_tasks import Escalation, human_task_spec
from temporalex_django.authoring.primitive_types import parallel_type, phase_type, race_type, task_type
from temporalex_django.authoring.requests import check_start_times, start_time_of_child
from temporalex_django.authoring.start_api import A, R, Startable, TypedWorkflow
from temporalex_django.authoring.workflow import Workflow, decode_result, input_or_default, read_input, start_options
from temporalex_django.core import current, names, pending_commands, primitives
from temporalex_django.core import primitive_table as table
from temporalex_django.core.human_tasks import Decision
from temporalex_django.core.messages.phase import Phase, Publication, accepts_arguments
from temporalex_django.core.messages.sender import Sender
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.round_trip import require_readable, warn_lossy_value
from temporalex_django.core.runtime_protocol import WorkflowRuntime
from temporalex_django.core.units.branches import Parallel, Race, Saga, Shield, branch_list
from temporalex_django.core.units.ivar import AwaitableCall, Call
from temporalex_django.core.units.scheduler import Unit
from temporalex_django.errors import InvalidId, WorkflowDefinitionError

T = TypeVar("T")
ParentClose = Literal["terminate", "abandon", "request_cancel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """Facts about the run.

    ``id`` is the business id, and ``run_id`` the UUID as text. ``attempt`` is the number of the run in its chain.
    ``parent`` is the id of the run that started this one as a child, or None. ``history_length`` counts the events
    before the present activation. ``scheduled_for`` is the time (UTC) of the slot for which a schedule started the
    chain, or None.
    """

    workflow: str
    id: str
    run_id: str
    version: int
    attempt: int
    parent: str | None
    history_length: int
    continue_as_new_suggested: bool
    scheduled_for: datetime | None


@foreign_options.answers_foreign_options("api.sleep", foreign_options.SLEEP)
def sleep(duration: timedelta | float, *, then: str | None = None) -> AwaitableCall[None]:
    """Wait for a durable timer of ``duration``, a timedelta or a number of seconds.

    Zero returns at once. ``then`` is a text for people who view the run: it says what follows. Raises ``ValueError``
    for a negative duration.
    """
    port: WorkflowRuntime = current.runtime_for(table.SLEEP)
    try:
        wait = names.wait_seconds(duration, label="sleep", instant="sleep_until(...)")
    except ValueError as exc:
        advice = "sleep until an instant with sleep_until, or take max(…, timedelta()) of a duration that may be over"
        raise ValueError(f"{exc}: {advice}") from None
    label = names.fit_optional_label(then, owner="sleep")
    return cast("AwaitableCall[None]", Call(table.SLEEP, lambda: primitives.sleep(port, wait, label)))


def sleep_until(until: datetime, *, then: str | None = None) -> AwaitableCall[None]:
    """Wait for a durable timer that ends at ``until``, a datetime with a time zone.

    A time that has passed returns at once, without a command; it is compared with ``now()``. ``then`` is a text for
    people who view the run: it says what follows. Raises ``TypeError`` for anything else than a datetime, and
    ``ValueError`` for one without a time zone.
    """
    port: WorkflowRuntime = current.runtime_for(table.SLEEP_UNTIL)
    moment = names.aware_datetime(until, label="sleep_until")
    label = names.fit_optional_label(then, owner="sleep_until")
    return cast("AwaitableCall[None]", Call(table.SLEEP_UNTIL, lambda: primitives.sleep_until(port, moment, label)))


@task_type
def task(task: Any, /, *args: Any, **kwargs: Any) -> AwaitableCall[Any]:
    """Run a Django task, a function decorated with ``@task`` of ``django.tasks``, as an activity.

    Returns its result. The task is recorded, retried and timed like any activity. If it is a ``DurableTask``, its own
    ``retry``, ``start_to_close`` and ``heartbeat`` apply. Its queue applies unless it is ``"default"``. ``run_after``,
    priority and backend have no effect here. Raises ``WorkflowDefinitionError`` for anything else, and ``PayloadError``
    for arguments that are not JSON.
    """
    return cast("AwaitableCall[Any]", activity_of(task)(*args, **kwargs))


def wait_for_signal(name: str) -> AwaitableCall[Any]:
    """Take the oldest buffered signal of that name, or block until one arrives; returns its payload.

    If the class declares ``signals`` and this one is not among them, the call raises ``WorkflowDefinitionError``.
    """
    port: WorkflowRuntime = current.runtime_for(table.WAIT_FOR_SIGNAL)
    names.check_code_name(name, label="wait_for_signal")
    _require_declared(port, "wait_for_signal", (name,))
    return cast("AwaitableCall[Any]", Call(table.WAIT_FOR_SIGNAL, lambda: port.dispatcher.wait_for_signal(name)))


def _require_declared(port: WorkflowRuntime, primitive: str, signal_names: Iterable[str]) -> None:
    """Raise ``WorkflowDefinitionError`` for an undeclared signal: it cannot be sent, so a wait would never end."""
    declared_names = port.run_context.signals
    if declared_names is not None and (missing := [name for name in signal_names if name not in declared_names]):
        raise WorkflowDefinitionError(
            f"{primitive}: {', '.join(map(repr, missing))} is not among the signals that {port.run_context.info.workflow} declares "
            f"(signals = {tuple(sorted(declared_names))!r}), so nobody can send it: add it there"
        )


@foreign_options.answers_foreign_options("api.approval", foreign_options.APPROVAL)
def approval(
    title: str,
    *,
    role: str | None = None,
    users: Sequence[str] = (),
    groups: Sequence[str] = (),
    outcomes: Sequence[str] = ("approved", "rejected"),
    due: timedelta | float | datetime | None = None,
    remind: timedelta | float | None = None,
    escalate: Escalation | None = None,
    form: Any = None,
    four_eyes: bool | str = False,
    shows: Any = None,
) -> AwaitableCall[Decision]:
    """Ask people to decide: open a human task and wait for the ``Decision``.

    ``title`` is the question. It may contain data: it is made into one line of at most 200 characters. People who have
    the ``role`` (a permission ``app.codename``, or a group) may decide, and so may the ``users`` (usernames) and the
    members of the ``groups``. Give at least one of these. ``outcomes`` are the names to choose from. ``shows`` is what
    people decide about. They see it beside the title, and the decision applies to it alone: ``decision.covers(value)``
    asks later whether it still does.

    ``due`` is a timedelta or seconds, or a datetime with a time zone. If nobody has decided by then, the outcome is
    ``overdue``; it is at once if that time has passed. ``remind`` is a timedelta or seconds. After each ``remind`` a
    reminder is counted and a Django signal is sent. ``escalate`` lets more people decide as well. ``form`` describes
    the data of the decision: a dataclass, TypedDict or msgspec type, or the dotted path of a Django form.

    With ``four_eyes`` a person has to decide who has neither started the run nor decided an earlier approval in it.
    ``True`` or ``"chain"`` counts all runs of the chain and the runs that it comes from: its parents, and the run that
    it was forked from. ``"run"`` counts this run alone (see decision 49). The call raises ``WorkflowDefinitionError``
    and ``PayloadError``.
    """
    port: WorkflowRuntime = current.runtime_for(table.APPROVAL)
    title = names.fit_label(title, owner="approval: the title")
    spec = human_task_spec(
        title,
        display_name=f"the human task {title!r}",
        label="approval",
        role=role,
        users=users,
        groups=groups,
        outcomes=outcomes,
        four_eyes=four_eyes,
        form=form,
        remind=remind,
        escalate=escalate,
        due=due is not None,
        shows=port.run_context.to_plain(shows, "what the approval shows"),
    )
    if not spec.candidates:
        raise WorkflowDefinitionError(f"approval {title!r} has no candidates: give it a role, users or groups")
    if isinstance(due, datetime):
        wait: float | None = names.seconds_until(names.aware_datetime(due, label="approval: due"), port.run_context.now)
    else:
        wait = None if due is None else names.timeout_seconds(due, label="approval: due", instant="a datetime")
    return cast("AwaitableCall[Decision]", Call(table.APPROVAL, lambda: port.approvals.request_decision(spec, wait)))


def publish_state(value: Any) -> None:
    """Replace the state that queries read by ``value``, as it is now; later changes of it have no effect.

    Raises ``PayloadError`` if the value cannot be encoded, or if queries would get another value.
    """
    port: WorkflowRuntime = current.runtime_for(table.PUBLISH_STATE)
    port.publish(port.run_context.encode_lossless(value, "the published state"))


def set_search_attributes(attributes: Mapping[str, Any]) -> None:
    """Change the search attributes that ``attributes`` names. None removes an attribute, and all others stay.

    The class declares their names and types. They are stored with the commit of the activation, and the next run of the
    chain keeps them. Raises ``PayloadError`` for a name that is not declared and for a value of another type; nothing
    is set then.
    """
    port: WorkflowRuntime = current.runtime_for(table.SET_SEARCH_ATTRIBUTES)
    port.set_search_attributes(attributes)


def now() -> datetime:
    """Return the time of the present activation: aware, UTC, and constant until the run waits and continues."""
    port: WorkflowRuntime = current.runtime_for(table.NOW)
    return port.run_context.now


def random() -> float:
    """Return a float in [0, 1) from the run's recorded seed."""
    port: WorkflowRuntime = current.runtime_for(table.RANDOM)
    return port.rng.random()


def uuid4() -> uuid.UUID:
    """Return a UUID from the run's recorded seed."""
    port: WorkflowRuntime = current.runtime_for(table.UUID4)
    return uuid.UUID(int=port.rng.getrandbits(128), version=4)


def patched(id: str) -> bool:
    """Return True in new code, and False for a run that passed this place before the patch: branch on the answer.

    ``id`` identifies the patch. The first answer of a run is recorded and given again.
    """
    port: WorkflowRuntime = current.runtime_for(table.PATCHED)
    is_patched, needs_marker = port.patches.check_patch(_patch_id(id), replaying=port.run_context.replaying)
    # The answer is an event, so that a replay takes the same path whatever the code says by then (see decision 17).
    if needs_marker:
        port.journal.emit("SetPatchMarker", None, {"id": id, "deprecated": False})
    return is_patched


def deprecate_patch(id: str) -> None:
    """Declare that no run without the patch ``id`` is open any more. Later you can remove this call, too."""
    port: WorkflowRuntime = current.runtime_for(table.DEPRECATE_PATCH)
    if port.patches.deprecate(_patch_id(id), replaying=port.run_context.replaying):
        port.journal.emit("SetPatchMarker", None, {"id": id, "deprecated": True})


@phase_type
@foreign_options.answers_foreign_options("api.phase", foreign_options.PHASE)
def phase(
    state: Any,
    signal: Mapping[str, Any] | None = None,
    update: Mapping[str, Any] | None = None,
    timeout: timedelta | float | None = None,
    *,
    until: datetime | None = None,
    label: str | None = None,
    publish: bool | Callable[[Any], Any] = False,
) -> AwaitableCall[Any]:
    """Take messages until a handler returns ``Stop``; returns the final state, or ``TimedOut(state)``.

    ``state`` is the state before the first message. ``signal`` and ``update`` map names of messages to handlers.
    ``timeout`` is a timedelta or seconds, and ``until`` a datetime with a time zone at which the phase ends instead;
    None means no limit. If that time has passed, also by a negative ``timeout``, the phase takes the messages that are
    there and ends. ``label`` is a noun for people who view the run, such as "the trial": "The trial since 13:02".

    With ``publish=True``, the phase publishes its state at its beginning and whenever it changes, so that queries read
    the present one. With a function, it publishes ``publish(state)`` instead. A handler whose state cannot be encoded
    fails, and the state stays as it was.

    The call raises ``WorkflowDefinitionError`` for handlers that cannot work and for a phase that could never end. The
    await raises ``PayloadError`` if the phase cannot publish its first state.
    """
    port: WorkflowRuntime = current.runtime_for(table.PHASE)
    host: Unit = current.unit_for(table.PHASE)
    wait = _timeout(port, "phase", timeout, until)
    checked_label = names.fit_optional_label(label, owner="phase")
    # Checked at the call, which is the line to correct; at the await, another unit may be the one that fails.
    for kind, handlers in (("signal", signal), ("update", update)):
        if handlers is not None and not isinstance(handlers, Mapping):
            raise WorkflowDefinitionError(f"phase: {kind} must be a mapping of names to handlers, not {handlers!r}")
    _require_declared(port, "phase", signal or ())
    publication = None if publish is False else Publication(port, publish)
    timed = wait is not None
    new_phase = Phase(
        state, signal or {}, update or {}, timed=timed, host=host, label=checked_label, publication=publication
    )
    return cast("AwaitableCall[Any]", Call(table.PHASE, lambda: primitives.phase(port, new_phase, wait)))


@parallel_type
@foreign_options.answers_foreign_options("api.parallel", foreign_options.PARALLEL)
def parallel(*branches: Any, limit: int | None = None, raise_errors: bool = False) -> AwaitableCall[list[Any]]:
    """Run branches side by side and wait for all of them.

    Returns the results in input order, with ``Err(exc)`` for a branch that raised. With ``raise_errors``, the first of
    these exceptions in input order is raised instead once all branches have ended; notes of it name the others. A
    branch is a function without arguments or an awaitable, and ``branches`` are several of them or one list. ``limit``
    is the number of branches that run at a time; they start in input order.
    """
    port: WorkflowRuntime = current.runtime_for(table.PARALLEL)
    # `type`, not `isinstance`: True is an int, and `limit=True` is a mistake.
    if limit is not None and (type(limit) is not int or limit < 1):
        raise WorkflowDefinitionError(f"parallel: limit must be a whole number of 1 or more, not {limit!r}")
    runner = Parallel(port, branch_list("parallel", branches), limit, raise_errors=raise_errors)
    return cast("AwaitableCall[list[Any]]", Call(table.PARALLEL, runner.run))


@race_type
@foreign_options.answers_foreign_options("api.race", foreign_options.RACE)
def race(*branches: Any) -> AwaitableCall[tuple[int, Any]]:
    """Run branches side by side and return ``(index, value)`` of the first that finishes.

    A branch is a function without arguments or an awaitable, and ``branches`` are several of them or one list. If the
    first one raised, its exception is raised here. If several finish in one activation, the lowest index wins. The
    others are cancelled, and all of them have ended when this returns.
    """
    port: WorkflowRuntime = current.runtime_for(table.RACE)
    if not (listed := branch_list("race", branches)):
        raise WorkflowDefinitionError("race: give it at least one branch, or it would never end")
    return cast("AwaitableCall[tuple[int, Any]]", Call(table.RACE, Race(port, listed).run))


def _timeout(
    port: WorkflowRuntime, primitive: str, timeout: timedelta | float | None, until: datetime | None
) -> float | None:
    """Return the seconds, or None for no timeout. Raises ``WorkflowDefinitionError`` if both are given."""
    label = f"the timeout of {primitive}"
    if until is None:
        return None if timeout is None else names.timeout_seconds(timeout, label=label, instant="until=...")
    if timeout is not None:
        raise WorkflowDefinitionError(f"{primitive}: give either timeout or until, not both")
    moment = names.aware_datetime(until, label=f"{primitive}: until")
    return names.seconds_until(moment, port.run_context.now)


def update_state(fn: Callable[[Any], tuple[T, Any]]) -> AwaitableCall[T]:
    """Change the state of the phase from an async handler: ``fn(state)`` returns ``(result, new_state)``.

    Returns ``result``. ``fn`` is a plain function, and two calls never run at the same time, so no change is lost.
    """
    port: WorkflowRuntime = current.runtime_for(table.UPDATE_STATE)
    return cast("AwaitableCall[T]", Call(table.UPDATE_STATE, lambda: primitives.update_state(port, fn)))


@foreign_options.answers_foreign_options("api.wait_condition", foreign_options.PHASE)
def wait_condition(
    predicate: Callable[[], object] | Callable[[Any], object],
    timeout: timedelta | float | None = None,
    *,
    until: datetime | None = None,
) -> AwaitableCall[bool]:
    """Block until ``predicate()`` is true; returns True then, and False after ``timeout`` (a timedelta or seconds).

    ``until``, a datetime with a time zone, is the end of the wait instead. If it has passed, also by a negative
    ``timeout``, the predicate alone decides. In an async handler, a predicate with one parameter gets the state of the
    phase.
    """
    port: WorkflowRuntime = current.runtime_for(table.WAIT_CONDITION)
    if not (callable(predicate) and (accepts_arguments(predicate, 0) or accepts_arguments(predicate, 1))):
        raise WorkflowDefinitionError(
            f"wait_condition: write a plain function without parameters, such as `lambda: self.paid`, not {predicate!r}"
        )
    wait = _timeout(port, "wait_condition", timeout, until)
    call = Call(table.WAIT_CONDITION, lambda: primitives.wait_condition(port, predicate, wait))
    return cast("AwaitableCall[bool]", call)


@foreign_options.answers_foreign_options("api.child", foreign_options.START, fields=foreign_options.INPUT)
def child(
    workflow: type[TypedWorkflow[A, R]],
    args: A | None = None,
    id: str | None = None,
    value: str | int | uuid.UUID | None = None,
    parent_close: ParentClose = "terminate",
    version: int | None = None,
    search_attributes: Mapping[str, Any] | None = None,
    tags: Sequence[str] | None = None,
    *,
    start_at: datetime | None = None,
    start_delay: timedelta | float | None = None,
    start_before: datetime | None = None,
) -> AwaitableCall[R]:
    """Start another workflow as a child of this run, and wait for its result, through all its continue-as-new.

    ``args`` is the input of the child. Its business id is ``id``, or is made from ``value`` by the ``unique`` of its
    class. Without either, the child gets an id that is derived from this run. ``version`` selects a version of a
    dispatcher. ``parent_close`` says what happens to an open child when this run closes. ``search_attributes``,
    ``tags``, ``start_at``, ``start_delay`` and ``start_before`` have the same meaning as for ``Workflow.start``. The
    child lives on the backend of this run.

    Raises ``ChildWorkflowFailure``, including when the id is taken. The call itself raises ``InvalidId``,
    ``InvalidStart``, ``PayloadError``, ``UnknownVersion`` and ``WorkflowDefinitionError``.
    """
    port: WorkflowRuntime = current.runtime_for(table.CHILD)
    if not (isinstance(workflow, type) and issubclass(workflow, Startable) and hasattr(workflow, "name")):
        raise WorkflowDefinitionError(f"child: {workflow!r} is not a workflow class")
    workflow_class = cast("type[Startable]", workflow).choose(version, {})  # `version_for` gets no further options
    check_use(port, workflow_class.require_registered)
    backend = port.run_context.backend
    if backend is not None and workflow_class.backend not in (None, backend) and not port.run_context.replaying:
        raise WorkflowDefinitionError(
            f"child: runs of {workflow_class.name} live on {workflow_class.backend!r}, and this run on {backend!r}. A "
            "child lives where its parent does: start the other run in an activity, and let it send a signal back"
        )
    if parent_close not in get_args(ParentClose):
        raise WorkflowDefinitionError(
            f"child: parent_close must be one of {', '.join(get_args(ParentClose))}, not {parent_close!r}"
        )
    times = check_start_times(start_at, start_delay, start_before, label=f"child {workflow_class.name}")
    input_label = f"the input of {workflow_class.name}"
    plain = port.run_context.to_plain(input_or_default(workflow_class, args), input_label)
    # Converted only to fail here, at the call, and not in the child, where nobody could correct it.
    codec.convert(plain, workflow_class.definition.args_type, label=input_label)
    require_readable(args, plain, lambda: workflow_class.definition.args_type, label=input_label)
    # A warning, not an error: a child without an annotation gets plain data (see decision 15).
    if not port.run_context.replaying:
        warn_lossy_value(
            args, plain, lambda: workflow_class.definition.args_type, reader=f"run of {workflow_class.name}"
        )
    attributes: dict[str, Any] = {
        "id": _child_id(workflow_class, id, value),
        "args": plain,
        "parent_close": parent_close,
        **start_time_of_child(times, port.run_context.now),
        **start_options(workflow_class, search_attributes=search_attributes, tags=tags),
    }
    result_reader = partial(decode_result, workflow_class)
    input_reader = partial(read_input, workflow_class)
    return cast(
        "AwaitableCall[R]",
        Call(table.CHILD, lambda: pending_commands.start_child(port, attributes, result_reader, input_reader)),
    )


def signal_external(id: str, name: str, payload: Any = None) -> AwaitableCall[None]:
    """Send a signal to the open run of that id; returns when it is in the run's inbox.

    The await raises ``WorkflowNotFound``, ``WorkflowClosed``, ``AmbiguousId``, and ``UnknownSignal`` if the class of
    the run declares other signals.
    """
    port: WorkflowRuntime = current.runtime_for(table.SIGNAL_EXTERNAL)
    names.check_code_name(name, label="signal_external")
    plain = port.run_context.to_plain(payload, f"the payload of signal {name!r}")
    attributes = {"id": check_id(id), "name": name, "payload": plain}
    call = Call(table.SIGNAL_EXTERNAL, lambda: pending_commands.send_external(port, "SignalExternal", attributes))
    return cast("AwaitableCall[None]", call)


def cancel_external(id: str) -> AwaitableCall[None]:
    """Ask the open run of that id to cancel; returns when the request is in its inbox.

    The await raises ``WorkflowNotFound``, ``WorkflowClosed`` or ``AmbiguousId``.
    """
    port: WorkflowRuntime = current.runtime_for(table.CANCEL_EXTERNAL)
    attributes = {"id": check_id(id)}
    call = Call(table.CANCEL_EXTERNAL, lambda: pending_commands.send_external(port, "CancelExternal", attributes))
    return cast("AwaitableCall[None]", call)


def cancel_requested() -> bool:
    """Return True if somebody asked this run to cancel.

    Code that has read True has taken notice: if it continues as new, the next run does not get the request.
    """
    port: WorkflowRuntime = current.runtime_for(table.CANCEL_REQUESTED)
    # A replay does not run validators, so a validator must not mark the request as noticed.
    if port.cancellation.requested and port.run_context.pure_context != "validator":
        port.cancellation.acknowledge()
    return port.cancellation.requested


def wait_cancelled() -> AwaitableCall[None]:
    """Block until somebody asks this run to cancel; returns at once if that has happened.

    The branch that waits here has then taken notice of the cancel: its later waits do not raise ``Cancelled`` for it,
    unless this call is inside ``shield``.
    """
    port: WorkflowRuntime = current.runtime_for(table.WAIT_CANCELLED)
    return cast("AwaitableCall[None]", Call(table.WAIT_CANCELLED, lambda: primitives.wait_cancelled(port)))


def shield() -> Shield:
    """Let a block finish before a cancel is raised: ``async with api.shield():``.

    A cancel that arrives is raised at the first wait after the block. Branches and phases that are started inside are
    shielded with it. A ``race`` inside still cancels its losers.
    """
    return Shield()


def saga() -> Saga:
    """Undo the finished steps of a block that raises: ``async with api.saga() as saga:``.

    Call ``saga.add(undo, *args)`` after each step that worked. If the block raises or is cancelled, the compensations
    run in reverse order, shielded from a cancel; then the error is raised. An exception of a compensation is logged and
    does not stop the others.

    ``return Err(...)`` inside the block compensates nothing: raise ``ApplicationError`` instead. If the class has
    ``unexpected_error = "block"``, a bug in the block blocks the run before a compensation.
    """
    return Saga()


def info() -> Info:
    """Return facts about this run, such as its ids, its version and the length of its history."""
    port: WorkflowRuntime = current.runtime_for(table.INFO)
    run = port.run_context.info
    return Info(
        workflow=run.workflow,
        id=run.id,
        run_id=run.run_id,
        version=run.version,
        attempt=run.attempt,
        parent=run.parent,
        history_length=port.run_context.history_length,
        continue_as_new_suggested=port.run_context.suggests_continue_as_new,
        scheduled_for=run.scheduled_for,
    )


def sender() -> Sender | None:
    """Return the sender of the message that the present code handles: an object with ``key`` and ``name``.

    ``key`` is the key of the user as text. Returns None for a message from code.

    In a handler, in what it started (branches, ``Async``) and in a validator it is the sender of that message.
    Elsewhere it is the sender of the signal that this branch of the run last took with ``wait_for_signal``, and None
    before the first. It comes from the history, so it is the same on replay.
    """
    port: WorkflowRuntime = current.runtime_for(table.SENDER)
    # A validator runs before its update has a unit, so its sender is a fact of the run context.
    if port.run_context.pure_context is not None:
        return port.run_context.update_sender
    unit: Unit = current.unit_for(table.SENDER)
    return unit.sender


def headers() -> dict[str, str]:
    """Return the headers of the message that the present code handles, by name; elsewhere those of the run.

    In a handler, in what it started (branches, ``Async``) and in a validator they are those of that message. They come
    from the history, so they are the same on replay. The result is a copy.
    """
    port: WorkflowRuntime = current.runtime_for(table.HEADERS)
    if port.run_context.pure_context is not None:
        own = port.run_context.update_headers
    else:
        unit: Unit = current.unit_for(table.HEADERS)
        own = unit.headers
    return dict((port.run_context.info.headers or {}) if own is None else own)


class _Logger(logging.LoggerAdapter):  # type: ignore[type-arg] # generic only in the stubs
    """A logger that is silent while a history is replayed, and that adds the ids of the run."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the base class's name
        # A replay runs this line again for events that were logged when they happened.
        port: WorkflowRuntime | None = current.current_runtime()
        return (port is None or not port.run_context.replaying) and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the ids of the active run. Returns ``(message, keyword arguments)``, as ``LoggerAdapter`` requires."""
        port: WorkflowRuntime | None = current.current_runtime()
        if port is not None:
            ids = {
                "workflow": port.run_context.info.workflow,
                "workflow_id": port.run_context.info.id,
                "run_id": port.run_context.info.run_id,
            }
            kwargs["extra"] = {**ids, **(kwargs.get("extra") or {})}
        return msg, kwargs


logger = _Logger(logging.getLogger("temporalex_django.workflow"), {})


def _child_id(workflow: type[Workflow], id: str | None, value: str | int | uuid.UUID | None) -> str | None:
    """Return the business id, or None to derive it from the parent run. Scope ``none`` adds a suffix to differ."""
    if id is not None and value is not None:
        raise InvalidId(f"{workflow.name}: give id= or value=, not both")
    if value is None:
        return None if id is None else check_id(id)
    if workflow.unique is None:
        raise InvalidId(f"{workflow.name} does not declare `unique`: start it with an id, not a value")
    return workflow.unique.run_id_for(names.key_text(value), lambda: uuid4().hex[:8])


def _patch_id(value: object) -> str:
    return names.check_code_name(value, label="the id of a patch", reserved=False)


if not TYPE_CHECKING:  # type checkers report these names themselves

    def __getattr__(name: str) -> Any:
        raise AttributeError(foreign_options.unknown_name("api", name, globals(), foreign_options.PRIMITIVES))
