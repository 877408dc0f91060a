"""The primitives of workflow code (``from temporalex_django import api``).

Each checks its context when it is called and acts when it is awaited. Those that only read or note something act at
once.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, TypeVar, cast, get_args

from temporalex_django.authoring.approvals import Escalation, human_task_spec, positive_seconds
from temporalex_django.authoring.django_tasks import activity_of
from temporalex_django.authoring.start_api import Startable
from temporalex_django.authoring.type_hints import A, R, TypedWorkflow
from temporalex_django.authoring.unique import check_id
from temporalex_django.authoring.workflow import Workflow, decode_result, input_or_default, read_input, start_options
from temporalex_django.core import current, external_runs, names, payloads, primitives
from temporalex_django.core.approvals import Decision
from temporalex_django.core.branches import Parallel, Race
from temporalex_django.core.durations import wait_seconds
from temporalex_django.core.executor import SUGGEST_CONTINUE_AS_NEW
from temporalex_django.core.handing_over import warn_lossy_value
from temporalex_django.core.ivar import Call
from temporalex_django.core.phase import Phase
from temporalex_django.core.runtime_protocol import WorkflowRuntime
from temporalex_django.core.scopes import Saga, Shield
from temporalex_django.core.senders import Sender
from temporalex_django.errors import InvalidId, WorkflowDefinitionError

T = TypeVar("T")
ParentClose = Literal["terminate", "abandon", "request_cancel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """Facts about the run. ``history_length`` counts the events before the present activation."""

    workflow: str
    id: str
    run_id: str
    version: int
    attempt: int
    parent: str | None
    history_length: int
    continue_as_new_suggested: bool


def sleep(duration: timedelta | float, *, then: str | None = None) -> Awaitable[None]:
    """Durable timer; a number is seconds. Zero returns at once. Raises ``ValueError`` for a negative duration.

    ``then`` says what follows, to people who look at the run.
    """
    port = current.runtime_for("sleep")
    wait = wait_seconds(duration, label="sleep")
    label = names.check_label(then, owner="sleep")
    return cast("Awaitable[None]", Call("sleep", lambda: primitives.sleep(port, wait, label)))


def task(task: Any, /, *args: Any, **kwargs: Any) -> Awaitable[Any]:
    """Run a Django task (what ``@task`` of ``django.tasks`` made of a function) as an activity; gives its result.

    Recorded, retried and timed like any activity: by its own ``retry``, ``start_to_close`` and ``heartbeat`` if it is a
    ``DurableTask`` that has them, in its own queue if that is not ``"default"``. ``run_after``, priority and backend do
    not count here. Raises ``WorkflowDefinitionError`` for anything else, ``PayloadError`` for arguments that are no
    JSON.
    """
    result: Awaitable[Any] = activity_of(task)(*args, **kwargs)
    return result


def wait_for_signal(name: str) -> Awaitable[Any]:
    """Take the oldest buffered signal of that name, or block until one arrives; gives its payload.

    Raises ``WorkflowDefinitionError`` here for one that the class, where it declares ``signals``, does not.
    """
    port = current.runtime_for("wait_for_signal")
    names.check_code_name(name, label="wait_for_signal")
    _require_declared(port, "wait_for_signal", (name,))
    return cast("Awaitable[Any]", Call("wait_for_signal", lambda: port.dispatcher.wait_for_signal(name)))


def _require_declared(port: WorkflowRuntime, primitive: str, signal_names: Iterable[str]) -> None:
    """Nobody could send a signal that the class does not declare. Raises ``WorkflowDefinitionError``."""
    declared_names = port.run_context.signals
    if declared_names is not None and (missing := [name for name in signal_names if name not in declared_names]):
        raise WorkflowDefinitionError(
            f"{primitive}: {', '.join(map(repr, missing))} is not among the signals that {port.run_context.info.workflow} declares "
            f"(signals = {tuple(sorted(declared_names))!r}), so nobody can send it: add it there"
        )


def approval(
    title: str,
    *,
    role: str | None = None,
    users: Sequence[str] = (),
    groups: Sequence[str] = (),
    outcomes: Sequence[str] = ("approved", "rejected"),
    due: timedelta | float | None = None,
    remind: timedelta | float | None = None,
    escalate: Escalation | None = None,
    form: Any = None,
    four_eyes: bool | str = False,
    shows: Any = None,
) -> Awaitable[Decision]:
    """Ask people to decide: opens a human task and waits for what they decide, see ``Decision``.

    ``title`` is what is asked, in one line; one that does not fit is shortened to 200 characters. Who has the ``role``
    (a permission ``app.codename``, or a group) may decide, and the ``users`` (usernames) and members of the ``groups``;
    it takes one of these at least. ``due`` gives the outcome ``overdue`` when nobody has decided by then. Each
    ``remind`` a reminder is counted and told by a Django signal; ``escalate`` lets others decide as well. ``form`` is
    what the data of the decision are to be: a dataclass, TypedDict or msgspec type, or the dotted path of a Django
    form. With ``four_eyes`` somebody decides who has neither started the run nor decided an earlier approval of it:
    ``True`` or ``"chain"`` counts all runs of the chain and the runs that it comes from (its parents, and the run that
    it was forked from), and ``"run"`` counts this run alone. ``shows`` is what people decide about: they see it
    beside the title, the decision is for that alone, and ``decision.covers(value)`` asks later whether it still holds.
    Raises ``WorkflowDefinitionError`` and ``PayloadError`` here.
    """
    port = current.runtime_for("approval")
    current.unit_for("approval")
    if not isinstance(title, str) or not names.is_name(title := names.shorten_title(title)):
        raise WorkflowDefinitionError(f"approval: {names.quoted(title)} is no text of 1 to 200 printable characters")
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
        raise WorkflowDefinitionError(f"approval {title!r} asks nobody: give it a role, users or groups")
    wait = None if due is None else positive_seconds(due, label="approval: due")
    return cast("Awaitable[Decision]", Call("approval", lambda: port.approvals.request_decision(spec, wait)))


def publish_state(value: Any) -> None:
    """Replace what queries see by a snapshot of ``value``.

    Raises ``PayloadError`` for what cannot be encoded, and for what queries would see as something else.
    """
    current.unit_for("publish_state")
    port = current.runtime_for("publish_state")
    port.publish(port.run_context.encode_lossless(value, "the published state"))


def set_search_attributes(attributes: Mapping[str, Any]) -> None:
    """Set those that are named, as the class declares them; None takes one away, the others stay.

    They are there with the commit of the activation, and go along to the next run of the chain. Raises
    ``PayloadError`` for a name that is not declared and for a value of another type; nothing is set then.
    """
    current.unit_for("set_search_attributes")
    current.runtime_for("set_search_attributes").set_search_attributes(attributes)


def now() -> datetime:
    """The time of the present activation: aware, UTC, constant until the run waits and is woken."""
    return current.runtime_for("now").run_context.now


def random() -> float:
    """A float in [0, 1) from the run's recorded seed."""
    current.unit_for("random")
    return current.runtime_for("random").rng.random()


def uuid4() -> uuid.UUID:
    """A UUID from the run's recorded seed."""
    current.unit_for("uuid4")
    return uuid.UUID(int=current.runtime_for("uuid4").rng.getrandbits(128), version=4)


def patched(id: str) -> bool:
    """True in new code, False for a run that went past here before the patch: branch on it."""
    current.unit_for("patched")
    port = current.runtime_for("patched")
    is_patched, needs_marker = port.patches.check_patch(_patch_id(id), replaying=port.run_context.replaying)
    if needs_marker:
        port.journal.emit("SetPatchMarker", None, {"id": id, "deprecated": False})
    return is_patched


def deprecate_patch(id: str) -> None:
    """Say that no run without the patch is open any more; later the call can go, too."""
    current.unit_for("deprecate_patch")
    port = current.runtime_for("deprecate_patch")
    if port.patches.deprecate(_patch_id(id), replaying=port.run_context.replaying):
        port.journal.emit("SetPatchMarker", None, {"id": id, "deprecated": True})


def phase(
    state: Any,
    signal: Mapping[str, Any] | None = None,
    update: Mapping[str, Any] | None = None,
    timeout: timedelta | float | None = None,
    *,
    label: str | None = None,
) -> Awaitable[Any]:
    """Take messages until a handler returns ``Stop``; gives the final state, or ``TimedOut(state)``.

    ``label`` says what it is about, to people who look at the run.
    Raises ``WorkflowDefinitionError`` here for handlers that cannot work and for a phase that could never end.
    """
    port = current.runtime_for("phase")
    host = current.unit_for("phase")
    wait = None if timeout is None else wait_seconds(timeout, label="the timeout of phase")
    checked_label = names.check_label(label, owner="phase")
    for kind, handlers in (("signal", signal), ("update", update)):
        if handlers is not None and not isinstance(handlers, Mapping):
            raise WorkflowDefinitionError(f"phase: {kind} must be a mapping of names to handlers, not {handlers!r}")
    _require_declared(port, "phase", signal or ())
    new_phase = Phase(state, signal or {}, update or {}, timed=wait is not None, host=host, label=checked_label)
    return cast("Awaitable[Any]", Call("phase", lambda: primitives.phase(port, new_phase, wait)))


def parallel(branches: Sequence[Any], limit: int | None = None) -> Awaitable[list[Any]]:
    """Run branches side by side and wait for all of them: results in input order, ``Err(exc)`` for one that raised.

    A branch is a function without arguments or an awaitable. ``limit`` bounds how many run at once; they start in input
    order.
    """
    port = current.runtime_for("parallel")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise WorkflowDefinitionError(f"parallel: limit must be a whole number from 1, not {limit!r}")
    if isinstance(branches, (str, bytes, Mapping)) or not hasattr(branches, "__iter__"):
        raise WorkflowDefinitionError(f"parallel: branches must be a list of functions or awaitables, not {branches!r}")
    runner = Parallel(port, list(branches), limit)
    return cast("Awaitable[list[Any]]", Call("parallel", runner.run))


def race(*branches: Any) -> Awaitable[tuple[int, Any]]:
    """Run branches side by side; the first to finish wins: ``(index, value)``. A branch that raises first raises here.

    Branches are what ``parallel`` takes. Of several that finish in one activation the lowest index wins. The others are
    cancelled, and all have ended when this returns.
    """
    port = current.runtime_for("race")
    if not branches:
        raise WorkflowDefinitionError("race: without a branch it could never end")
    return cast("Awaitable[tuple[int, Any]]", Call("race", Race(port, branches).run))


def update_state(fn: Callable[[Any], tuple[T, Any]]) -> Awaitable[T]:
    """In an async handler: ``fn(state) -> (result, new_state)`` on the phase state, never interleaved.

    Gives ``result``.
    """
    port = current.runtime_for("update_state")
    return cast("Awaitable[T]", Call("update_state", lambda: primitives.update_state(port, fn)))


def wait_condition(predicate: Callable[..., Any], timeout: timedelta | float | None = None) -> Awaitable[bool]:
    """Block until ``predicate()`` is true; True then, False after ``timeout``."""
    port = current.runtime_for("wait_condition")
    wait = None if timeout is None else wait_seconds(timeout, label="the timeout of wait_condition")
    start = lambda: primitives.wait_condition(port, predicate, wait)  # noqa: E731
    return cast("Awaitable[bool]", Call("wait_condition", start))


def child(
    workflow: type[TypedWorkflow[A, R]],
    args: A | None = None,
    id: str | None = None,
    value: str | None = None,
    parent_close: ParentClose = "terminate",
    version: int | None = None,
    search_attributes: Mapping[str, Any] | None = None,
    tags: Sequence[str] | None = None,
) -> Awaitable[R]:
    """Start another workflow and wait for its result, through all its continue-as-new.

    Without ``id`` it gets one from this run's. ``version`` is for a dispatcher. ``parent_close`` says what becomes of a
    child that is open when this run closes. ``search_attributes`` and ``tags`` are as for a start. Raises
    ``ChildWorkflowFailure``, also when the id is taken; here, at the call, ``InvalidId``, ``PayloadError``,
    ``UnknownVersion`` and ``WorkflowDefinitionError``.
    """
    port = current.runtime_for("child")
    if not (isinstance(workflow, type) and issubclass(workflow, Startable) and hasattr(workflow, "name")):
        raise WorkflowDefinitionError(f"child: {workflow!r} is not a workflow class")
    workflow_class = cast("type[Startable]", workflow).choose(version, {})
    if parent_close not in get_args(ParentClose):
        raise WorkflowDefinitionError(
            f"child: parent_close must be one of {', '.join(get_args(ParentClose))}, not {parent_close!r}"
        )
    current.unit_for("child")
    input_label = f"the input of {workflow_class.name}"
    plain = port.run_context.to_plain(input_or_default(workflow_class, args), input_label)
    payloads.convert(plain, workflow_class.definition.args_type, label=input_label)
    if not port.run_context.replaying:
        warn_lossy_value(
            args, plain, lambda: workflow_class.definition.args_type, reader=f"run of {workflow_class.name}"
        )
    attributes: dict[str, Any] = {
        "id": _child_id(workflow_class, id, value),
        "args": plain,
        "parent_close": parent_close,
        **start_options(workflow_class, search_attributes=search_attributes, tags=tags),
    }
    result_reader = partial(decode_result, workflow_class)
    input_reader = partial(read_input, workflow_class)
    return cast(
        "Awaitable[R]", Call("child", lambda: external_runs.start_child(port, attributes, result_reader, input_reader))
    )


def signal_external(id: str, name: str, payload: Any = None) -> Awaitable[None]:
    """Send a signal to the open run of that id; returns when it is in its inbox.

    Raises at the await ``WorkflowNotFound``, ``WorkflowClosed``, ``AmbiguousId``, and ``UnknownSignal`` for a run whose
    class declares other signals.
    """
    port = current.runtime_for("signal_external")
    names.check_code_name(name, label="signal_external")
    plain = port.run_context.to_plain(payload, f"the payload of signal {name!r}")
    attributes = {"id": check_id(id), "name": name, "payload": plain}
    call = Call("signal_external", lambda: external_runs.send_external(port, "SignalExternal", attributes))
    return cast("Awaitable[None]", call)


def cancel_external(id: str) -> Awaitable[None]:
    """Ask the open run of that id to cancel; returns when the request is in its inbox.

    Raises ``WorkflowNotFound``, ``WorkflowClosed`` or ``AmbiguousId`` at the await.
    """
    port = current.runtime_for("cancel_external")
    attributes = {"id": check_id(id)}
    call = Call("cancel_external", lambda: external_runs.send_external(port, "CancelExternal", attributes))
    return cast("Awaitable[None]", call)


def cancel_requested() -> bool:
    """Whether somebody asked this run to cancel.

    Who has heard yes and continues as new does not pass the request on.
    """
    port = current.runtime_for("cancel_requested")
    if port.cancellation.requested and port.run_context.pure_context != "validator":  # which a replay does not run
        port.cancellation.acknowledge()
    return port.cancellation.requested


def wait_cancelled() -> Awaitable[None]:
    """Block until somebody asks this run to cancel; returns (at once, if somebody has).

    This is how the unit hears of the cancel: its later waits do not raise ``Cancelled`` for it, unless it is inside
    ``shield``.
    """
    port = current.runtime_for("wait_cancelled")
    return cast("Awaitable[None]", Call("wait_cancelled", lambda: primitives.wait_cancelled(port)))


def shield() -> Shield:
    """``async with api.shield():`` lets what is inside finish.

    A cancel that arrives is raised at the first wait after the block.

    Branches and phases that are started inside are shielded with it. A ``race`` inside still cancels its losers.
    """
    return Shield()


def saga() -> Saga:
    """``async with api.saga() as saga:`` with ``saga.add(undo, *args)`` after each step that worked.

    When the block raises, or is cancelled, the compensations run in reverse, shielded from a cancel; then the error
    goes on. What a compensation raises is logged and does not stop the others.
    """
    return Saga()


def info() -> Info:
    """Facts about this run."""
    port = current.runtime_for("info")
    run = port.run_context.info
    return Info(
        workflow=run.workflow,
        id=run.id,
        run_id=run.run_id,
        version=run.version,
        attempt=run.attempt,
        parent=run.parent,
        history_length=port.run_context.history_length,
        continue_as_new_suggested=port.run_context.history_length >= SUGGEST_CONTINUE_AS_NEW,
    )


def sender() -> Sender | None:
    """Who sent the message that this unit is about: an object with ``key`` (of the user, as text) and ``name``.

    None for code.

    In a handler, in what it started (branches, ``Async``) and in a validator that of its message; elsewhere that of the
    signal which the unit took last with ``wait_for_signal``, None before the first. From the history, so it is the same
    on replay.
    """
    port = current.runtime_for("sender")
    if port.run_context.pure_context is not None:
        return port.run_context.update_sender
    return current.unit_for("sender").sender


class _Logger(logging.LoggerAdapter):  # type: ignore[type-arg] # generic only in the stubs
    """Says nothing while a history is replayed; adds the ids of the run."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the base class's name
        port = current.current_runtime()
        return (port is None or not port.run_context.replaying) and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        port = current.current_runtime()
        if port is not None:
            ids = {
                "workflow": port.run_context.info.workflow,
                "workflow_id": port.run_context.info.id,
                "run_id": port.run_context.info.run_id,
            }
            kwargs["extra"] = {**ids, **(kwargs.get("extra") or {})}
        return msg, kwargs


logger = _Logger(logging.getLogger("temporalex_django.workflow"), {})


def _child_id(workflow: type[Workflow], id: str | None, value: str | None) -> str | None:
    """The id asked for, None to make one. A class whose runs are not unique gets a number behind the value."""
    if id is not None and value is not None:
        raise InvalidId(f"{workflow.name}: give id= or value=, not both")
    if value is None:
        return None if id is None else check_id(id)
    if workflow.unique is None:
        raise InvalidId(f"{workflow.name} has no `unique`, so it takes an id, not a value")
    return workflow.unique.run_id_for(value, lambda: uuid4().hex[:8])


def _patch_id(value: object) -> str:
    return names.check_code_name(value, label="the id of a patch", reserved=False)
