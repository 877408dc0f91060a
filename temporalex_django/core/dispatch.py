"""Messages meet handlers: who gets a signal (D-05), when an update is judged (D-07), what a handler may answer (D-06)."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from temporalex_django.core import guard, payloads, places, senders
from temporalex_django.core.activation import Refusal
from temporalex_django.core.contexts import inherited
from temporalex_django.core.events import DELIVERED, RESOLUTIONS, RESUME, Job
from temporalex_django.core.failures import describe, message_of, name_of
from temporalex_django.core.history import Recorded
from temporalex_django.core.mailbox import Signal, Update
from temporalex_django.core.phase import Handler, Phase, check_shape
from temporalex_django.core.results import Async, Err, Ok, Stop
from temporalex_django.core.scheduler import Unit, not_awaited
from temporalex_django.core.senders import Sender
from temporalex_django.core.telling import told
from temporalex_django.core.values import copied
from temporalex_django.errors import (
    ActionNotPermitted,
    Cancelled,
    Control,
    JudgingFailed,
    NestingError,
    PayloadError,
    TemporalexError,
    UpdateRejected,
    WorkflowClosed,
)

if TYPE_CHECKING:
    from temporalex_django.core.executor import Executor
    from temporalex_django.core.ivar import IVar

logger = logging.getLogger("temporalex_django.workflow")

_NO_MESSAGES = RESOLUTIONS | {DELIVERED, "CancelRequested"}


def messages(
    executor: Executor, jobs: Sequence[Job], recorded: Recorded | None, carried: int
) -> tuple[list[Update], list[Job | Update]]:
    """Updates that waited since an earlier activation, and what arrives now, both in order of arrival.

    The first ``carried`` signals are in the mailbox before everything else: they are not among what arrives.
    """
    base = executor.mailbox.received + carried
    incoming: list[Job | Update] = []
    waiting: list[Update] = []
    if recorded is not None:
        accepted = [event.attributes for event in recorded.outputs if event.kind == "UpdateAccepted"]
        updates = [
            Update(a["id"], a["name"], a["args"], a["after"], accepted=True, sender=senders.of(a)) for a in accepted
        ]
        updates.sort(key=lambda update: update.after)
        waiting = [update for update in updates if update.after < base]
        rest = updates[len(waiting) :]
        signals = [job for job in jobs if job.kind == "SignalReceived"][carried:]
        for count in range(len(signals) + 1):
            incoming.extend(update for update in rest if update.after == base + count)
            incoming.extend(signals[count : count + 1])
        return waiting, incoming
    count = base - carried
    for job in jobs:
        if job.kind == "SignalReceived":
            count += 1
            if count > base:
                incoming.append(job)
        elif job.kind == "UpdateRequested":
            attributes = job.attributes
            after = attributes.get("after")
            update = Update(
                attributes["id"],
                attributes["name"],
                attributes["args"],
                base if after is None else after,  # of a new one: see ``arrive``
                accepted=False,
                sender=senders.of(attributes),
            )
            if after is None:
                incoming.append(update)
            else:
                waiting.append(update)
        elif job.kind == "ResumeRequested":
            incoming.append(job)
        elif job.kind not in _NO_MESSAGES:
            raise TemporalexError(f"{executor.info.id}: {job.kind!r} is nothing that can be delivered to a run")
    waiting.sort(
        key=lambda update: update.after
    )  # as a replay does: ids of an inbox need not be in order of arrival (D-24)
    return waiting, incoming


def arrive(executor: Executor, message: Job | Update) -> None:
    """Put one message in its place: to a unit that waits for it, or in the mailbox."""
    if isinstance(message, Update):
        if not message.accepted:
            message.after = executor.mailbox.received  # signals of the same activation that were refused do not count
        executor.mailbox.updates.append(message)
        return
    if message.kind == "ResumeRequested":
        payload = executor.resume(message.attributes["id"], message.attributes["request"])
        if payload is None:
            return
        noted = senders.recorded(senders.of(message.attributes))
        message = Job("SignalReceived", {"name": RESUME, "payload": payload, **noted})
    name = message.attributes["name"]
    sender = senders.of(message.attributes)
    permission = _permission(executor, name)
    if (
        permission is not None
        and not executor.replaying
        and not _permitted(executor, permission, sender, f"signal {name!r}")
    ):
        assert sender is not None
        executor.refuse(Refusal(name=name, sender=sender, permission=permission, job=message))
        return
    if name == RESUME and executor.resumes is not None:
        executor.record(message)
        executor.mailbox.received += 1
        executor.resumes.resumed(message.attributes["payload"])
        return
    keep(executor, message, permission=permission)
    match_waiters(executor, name)


def keep(executor: Executor, signal: Job, *, permission: str | None = None) -> None:
    """Put a signal in the mailbox. ``permission``: the one that its sender was judged by."""
    executor.record(signal)
    name, payload = signal.attributes["name"], signal.attributes.get("payload")
    executor.mailbox.add_signal(name, payload, sender=senders.of(signal.attributes), permission=permission)


def _permission(executor: Executor, name: str) -> str | None:
    """What the handler asks for that takes signals of that name now."""
    phase = executor.phase
    if phase is None or phase.leaving is not None or name not in phase.signals:
        return None
    return phase.signals[name].permission


def _permitted(executor: Executor, permission: str, sender: Sender | None, message: str) -> bool:
    """Whether the host's judge lets somebody send that; code may send everything. The judge may use the database.

    Raises ``JudgingFailed`` with what the judge raised as its cause.
    """
    if sender is None:
        return True
    if executor.judge is None:
        return False
    try:
        with places.nowhere(None):
            return executor.judge(sender.key, permission, message)
    except Exception as exc:
        raise JudgingFailed(
            f"judging {message} of {sender.name!r} for {permission!r} failed: {name_of(type(exc))}: {message_of(exc)}"
        ) from exc


def run(executor: Executor) -> None:
    """Run units, and dispatch what the open phase takes, until nothing moves."""
    mailbox, before = executor.mailbox, executor.dispatched
    while True:
        executor.scheduler.let_waiters_through()
        executor.scheduler.run()
        if executor.scheduler.parked:
            if not _go_on(executor, before):
                return
            continue
        phase = executor.phase
        if phase is None or phase.leaving is not None:
            if not executor.between_runs:
                refuse_updates(executor)
            return
        if phase.busy is not None:
            if executor.admits:
                _admit_waiting(executor, phase)
            return
        message = mailbox.first(phase.signals)
        if message is None or executor.has_enough(since=before):
            return
        if isinstance(message, Update):
            mailbox.updates.popleft()
            _judge(executor, phase, message)
        else:
            mailbox.take_signal(message.name)
            executor.dispatched += 1
            _signal(executor, phase, message)


def next_waiter(executor: Executor) -> Unit | None:
    """Whose condition holds; nobody while there is nothing to record: a refused update must not move a run (its stamp could)."""
    if not executor.conditions.open or not executor.recording:
        return None
    with executor.pure("predicate"):
        return executor.conditions.first()


def eligible(executor: Executor, name: str, unit: Unit) -> bool:
    """Whether ``unit`` may take a buffered signal: a handler for the name comes first, except inside a busy handler (D-05)."""
    phase = executor.phase
    if phase is None or phase.leaving is not None or name not in phase.signals:
        return True
    return phase.busy is not None and unit.within(phase.busy)


def match_waiters(executor: Executor, name: str) -> None:
    """Give buffered signals to the units that wait for them, oldest wait first."""
    for unit, ivar in list(executor.mailbox.waiters(name)):
        if eligible(executor, name, unit):
            signal = executor.mailbox.take_signal(name)
            if signal is None:
                return
            executor.mailbox.waiters(name).remove((unit, ivar))
            _fill(unit, ivar, signal)


def give(executor: Executor, name: str, unit: Unit, ivar: IVar) -> None:
    """Give the oldest buffered signal to a wait that came when it was there."""
    signal = executor.mailbox.take_signal(name)
    assert signal is not None
    executor.dispatched += 1
    _fill(unit, ivar, signal)


def _fill(unit: Unit, ivar: IVar, signal: Signal) -> None:
    unit.sender = signal.sender
    ivar.hand = (*ivar.hand, signal)
    ivar.put(copied(signal.payload))


def _go_on(executor: Executor, before: int) -> bool:
    """Let the first of the parked units have its signal, or wait when others took it. False when the host has enough."""
    scheduler, mailbox = executor.scheduler, executor.mailbox
    name, unit, ivar = scheduler.parked[0]
    if mailbox.has_signal((name,)) and eligible(executor, name, unit):
        if executor.has_enough(since=before):
            return False
        scheduler.parked.popleft()
        scheduler.resumed = unit
        give(executor, name, unit, ivar)
    else:
        scheduler.parked.popleft()
        ivar.hand = ()
        mailbox.wait(name, unit, ivar)
    return True


def put_back(executor: Executor, hand: tuple[Signal, ...]) -> None:
    """Signals whose taker was not the one that returned: they stay in the mailbox, in their order, for whoever wants them."""
    for signal in hand:
        executor.mailbox.put_back(signal)
    for name in {signal.name: None for signal in hand}:
        match_waiters(executor, name)


def leave(executor: Executor, phase: Phase, reason: Any) -> None:
    """Begin to leave: nothing is dispatched any more, the timer goes, updates that wait are refused."""
    if phase.leaving is not None:
        return
    phase.leaving = reason
    if phase.timer is not None and reason != "timeout":
        executor.cancel_timer(phase.timer)
    refuse_updates(executor)
    for name in executor.mailbox.waited_for():
        match_waiters(executor, name)


def refuse_updates(executor: Executor) -> None:
    """Reject what waits in the mailbox, fail what was admitted. On replay accepted updates stay: their phase is still to open."""
    updates = executor.mailbox.updates
    kept = [update for update in updates if update.accepted and not update.admitted]
    for update in updates:
        if update.admitted:
            late = UpdateRejected(f"the phase ended before the update {update.name!r} had its turn")
            _failed(executor, f"update {update.name}", update.id, late)
        elif not update.accepted:
            executor.reject(update.id, _not_now(executor, update.name))
    updates.clear()
    updates.extend(kept)


def _not_now(executor: Executor, name: str) -> UpdateRejected:
    if executor.closed is not None:
        return WorkflowClosed(f"{executor.info.workflow} {executor.info.id} is closed")
    takes = ", ".join(executor.accepts["updates"]) or "none"
    info = executor.info
    return UpdateRejected(
        f"{info.workflow} {info.id} is not accepting the update {name!r} at this time (accepted now: {takes})"
    )


def _judge(executor: Executor, phase: Phase, update: Update) -> None:
    if update.admitted or _admit(executor, phase, update):
        executor.dispatched += 1
        _call(executor, phase, "update", update, phase.updates[update.name], update.args)


def _admit_waiting(executor: Executor, phase: Phase) -> None:
    """Answer the updates behind a busy handler now, by the state of this moment; those that are accepted stay in their place."""
    updates = executor.mailbox.updates
    waiting = list(updates)
    updates.clear()
    updates.extend(update for update in waiting if update.admitted or _admit(executor, phase, update))


def _admit(executor: Executor, phase: Phase, update: Update) -> bool:
    """Judge an update: accepted (its arguments decoded from here on), or rejected without a trace."""
    handler = phase.updates.get(update.name)
    if handler is None:
        if not update.accepted:  # else: the code no longer has it, which matching reports
            executor.reject(update.id, _not_now(executor, update.name))
        return False
    if not update.accepted and (refusal := _refusal(executor, handler, update)) is not None:
        executor.reject(update.id, refusal)
        return False
    judged = inherited(phase.host.context)  # thrown away: of those that are refused a replay knows nothing
    what = f"the arguments of update {update.name!r}"
    try:
        args = judged.run(payloads.fit, copied(update.args), handler.args_type, what=what)
        if not update.accepted:
            judged.run(_validate, executor, handler, update, args, phase)
    except UpdateRejected as exc:
        executor.reject(update.id, exc)
        return False
    except PayloadError as exc:
        executor.reject(update.id, UpdateRejected(exc.message))
        return False
    executor.open_updates[update.id] = update.name
    attributes = {"id": update.id, "name": update.name, "args": update.args, "after": update.after}
    executor.emit("AcceptUpdate", None, {**attributes, **senders.recorded(update.sender)})
    update.admitted, update.args = True, args
    return True


def _refusal(executor: Executor, handler: Handler, update: Update) -> ActionNotPermitted | None:
    """Why the sender may not send an update, when he may not."""
    permission, what = handler.permission, f"update {update.name!r}"
    if permission is None or _permitted(executor, permission, update.sender, what):
        return None
    run = f"{executor.info.workflow} {executor.info.id}"
    return ActionNotPermitted(f"{run}: {update.sender} may not send the {what}: that takes the permission {permission}")


def _validate(executor: Executor, handler: Handler, update: Update, args: Any, phase: Phase) -> None:
    if handler.validator is None:
        return
    try:
        executor.validated = update.sender
        with executor.pure("validator"):
            verdict = handler.validator(copied(args), copied(phase.state))
    except (MemoryError, RecursionError):
        raise
    except Exception as exc:
        raise UpdateRejected(message_of(exc) or type(exc).__name__) from exc
    if verdict is None or isinstance(verdict, Ok):
        return
    if isinstance(verdict, Err):
        reason = verdict.reason
        raise UpdateRejected(reason if isinstance(reason, str) and reason else repr(reason))
    if inspect.iscoroutine(verdict):
        verdict.close()
    raise UpdateRejected(
        f"the validator of update {update.name!r} returned {verdict!r}; it must return None, Ok(...) or Err(reason), and not be async"
    )


def _signal(executor: Executor, phase: Phase, signal: Signal) -> None:
    name = signal.name
    handler = phase.signals[name]
    if _refused_late(executor, signal, handler.permission):
        return
    try:
        args = payloads.fit(copied(signal.payload), handler.args_type, what=f"the payload of signal {name!r}")
    except PayloadError as exc:
        complain(executor, f"the handler of signal {name}", exc)
        return
    _call(executor, phase, "signal", signal, handler, args)


def _refused_late(executor: Executor, signal: Signal, permission: str | None) -> bool:
    """Whether a signal that came before its phase was open goes nowhere. Its event is in the history: which one it was is recorded."""
    if permission is None or signal.sender is None or signal.permission == permission:
        return False
    if executor.replaying:
        return signal.number in executor.refused
    if _permitted(executor, permission, signal.sender, f"signal {signal.name!r}"):
        return False
    executor.refuse(Refusal(name=signal.name, sender=signal.sender, permission=permission, number=signal.number))
    return True


def _call(executor: Executor, phase: Phase, kind: str, message: Signal | Update, handler: Handler, args: Any) -> None:
    name, update = message.name, message.id if isinstance(message, Update) else None

    def finished(value: Any, error: BaseException | None) -> None:
        phase.busy = None
        _answered(executor, phase, kind, name, update, unit, value, error)

    unit = Unit(executor.scheduler, "sync handler", f"{kind} {name}", finished, phase.host)
    unit.sender = message.sender
    phase.busy = unit
    try:
        value = executor.scheduler.call(unit, lambda: handler.fn(args, copied(phase.state)))
    except KeyboardInterrupt:
        raise  # the process is meant
    except BaseException as exc:  # noqa: BLE001 - the handler's failure is its sender's
        finished(None, exc)
        return
    if inspect.isawaitable(value) or unit.generators:
        executor.scheduler.spawn(unit, _given(value))
    else:
        finished(value, not_awaited(unit))


def _answered(
    executor: Executor,
    phase: Phase,
    kind: str,
    name: str,
    update: str | None,
    handler: Unit,
    value: Any,
    error: BaseException | None,
) -> None:
    response = None
    if error is None:
        try:
            check_shape(kind, name, value)
            if update is not None and not isinstance(value, Async):
                response = executor.plain(value.response, f"the response of update {name!r}")
        except (TypeError, PayloadError) as exc:
            error = exc
    if error is not None:
        _failed(executor, f"{kind} {name}", update, error)
    else:
        phase.state = copied(value.state)  # the handler may have kept a reference
        if isinstance(value, Async):
            _spawn(executor, phase, kind, name, update, handler, value.fn)
        elif update is not None:
            _complete(executor, update, response)
        if isinstance(value, Stop):
            leave(executor, phase, "stop")
    delayed, phase.delayed = phase.delayed, []
    for apply in delayed:
        apply()
    phase.settle()


def _spawn(
    executor: Executor,
    phase: Phase,
    kind: str,
    name: str,
    update: str | None,
    handler: Unit,
    fn: Callable[[], Any],
) -> None:
    def finished(value: Any, error: BaseException | None) -> None:
        phase.running -= 1
        if error is None and isinstance(value, Async):
            error = NestingError(f"the async handler of {kind} {name!r} returned Async: it cannot start another one")
        if error is None and update is not None:
            try:
                _complete(executor, update, executor.plain(value, f"the response of update {name!r}"))
            except PayloadError as exc:
                error = exc
        if error is not None:
            _failed(executor, f"{kind} {name}", update, error)
        phase.settle()

    phase.running += 1
    unit = Unit(executor.scheduler, "async handler", f"async {kind} {name}", finished, phase.host)
    unit.sender = handler.sender
    executor.scheduler.spawn(unit, invoke(fn))


def _complete(executor: Executor, update: str, response: Any) -> None:
    name = executor.open_updates.pop(update)
    executor.emit("CompleteUpdate", None, {"id": update, "name": name, "result": response})


def _failed(executor: Executor, what: str, update: str | None, error: BaseException) -> None:
    if isinstance(error, (MemoryError, RecursionError)) or (
        isinstance(error, Control) and not isinstance(error, Cancelled)
    ):
        raise error
    if update is not None:
        name = executor.open_updates.pop(update)
        executor.emit("FailUpdate", None, {"id": update, "name": name, **describe(error)})
    elif not isinstance(error, Cancelled):
        complain(executor, f"the handler of {what}", error)


def complain(executor: Executor, what: str, error: BaseException) -> None:
    """An error that has no caller to go to: logged once, when it happens first."""
    if not executor.replaying:
        info = executor.info
        logger.error("%s %s: %s failed: %s", info.workflow, info.id, what, told(error))


async def _given(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def invoke(fn: Callable[[], Any] | Awaitable[Any]) -> Any:
    """Run a branch or an async handler: a callable without arguments, or an awaitable."""
    guard.watch(fn)
    return await _given(fn() if callable(fn) else fn)
