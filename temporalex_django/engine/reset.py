"""A reset: the plan, which is made without a lock, and its application."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from temporalex_django.authoring import activity
from temporalex_django.authoring.activity_options import SEPARATOR, Unique, check_id
from temporalex_django.authoring.workflow import Workflow, fork_options
from temporalex_django.core.failures import error_data, error_line
from temporalex_django.core.history import events as kinds
from temporalex_django.core.history.activation import FailedSignal
from temporalex_django.core.history.events import DELIVERED, HistoryEvent, end_kinds_of
from temporalex_django.core.history.prefix import (
    COPIED,
    HistoryPrefix,
    PendingMessage,
    build_copy_mark,
    count_activations,
    deduplicate,
    is_closed_by_code,
    read_prefix,
)
from temporalex_django.core.history.replay import try_replay
from temporalex_django.core.human_tasks import fork_snapshot
from temporalex_django.core.messages.sender import Sender
from temporalex_django.core.names import quoted
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.codec import deep_copy
from temporalex_django.engine import activity_policy
from temporalex_django.engine.activity_policy import failed_outcome
from temporalex_django.engine.contracts.records import (
    RESULT_KINDS,
    InboxMessage,
    NewEvent,
    NewTask,
    Outcome,
    RunRecord,
    RunState,
    RunWrite,
    TaskState,
)
from temporalex_django.engine.contracts.storage import RunStorage
from temporalex_django.engine.external_messages import NewMessage
from temporalex_django.engine.operator_overrides import (
    REDELIVER,
    allows_overrides,
    input_digests,
    pending_timers,
    skip_message_id,
)
from temporalex_django.engine.run_closing import close_for_reset
from temporalex_django.engine.run_start import RunStart
from temporalex_django.engine.watchdog import watchdog
from temporalex_django.errors import ActionNotPossible, ActivityNotFound, InvalidId, PayloadError, WorkflowClosed

# --- plan -------------------------------------------------------------------------------------------------------------
#
# The plan of a reset or a fork: where in a run's history to continue, checked against its history and its code.
#
# Pure, except that it replays the code of the run within limits of time.


#: Later runs of the chain whose messages can be delivered again (see decision 43).
_MAX_SUCCESSORS = 100


def successors(runs: Sequence[tuple[UUID, str]], *, forked: bool, run_label: str) -> list[UUID]:
    """Return the ids of the runs that followed a run by continue-as-new, whose messages a reset delivers again, too.

    ``runs`` are the run and those after it in its chain, as pairs of run id and status. Raises ``ActionNotPossible`` if
    one of them was reset, because its messages cannot be told from those that were delivered again. For a fork
    (``forked``) the runs end there instead. Raises it for too many runs, too. ``run_label`` names the run. See decision
    43.
    """
    last = next((n for n, (_, status) in enumerate(runs) if status != "continued_as_new"), len(runs) - 1)
    if not forked and last < len(runs) - 1:
        raise ActionNotPossible(
            f"reset of {run_label} refused: the run {runs[last][0]} has been reset since, so it is not known which "
            "messages came later: reset the newest run of the chain, or drop the messages (messages='drop')"
        )
    if last > _MAX_SUCCESSORS:
        raise ActionNotPossible(
            f"{'fork' if forked else 'reset'} of {run_label} refused: the chain has more than {_MAX_SUCCESSORS} later "
            "runs: drop their messages (messages='drop'), or reset or fork a later run"
        )
    return [run for run, _ in runs[1 : last + 1]]


def fork_id(source_id: str, id: str | None, unique: Unique | None, *, suffix: Callable[[], str]) -> str:
    """Return the business id of a fork: ``id`` or, if that is None or empty, one made of the id of its source.

    ``unique`` is what the class declares about its ids, if anything. ``suffix`` returns a random text. Raises
    ``InvalidId``.
    """
    if id is not None and id != "":
        if unique is None:
            return check_id(id)
        return unique.check(id)
    if unique is None:
        return check_id(f"{source_id[:180]}-fork-{suffix()}")
    # Without a scope any number of runs may share the value, so a suffix is enough. Else the id would be taken.
    if unique.scope != "none":
        raise InvalidId(
            f"runs of this class have ids of the form {unique.key}{SEPARATOR}value: give the fork an id (id=)"
        )
    return unique.run_id_for(unique.value_of(source_id), suffix)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetPlan:
    """A plan to continue from the run ``record`` with the beginning ``prefix`` of its history.

    - ``redeliver``: True delivers messages that came after ``prefix`` again, False drops them.
    - ``edited_inputs``: args and kwargs of open activities by command number; these activities get a new key.
    - ``seed``: the random seed of the new run from there on.
    - ``atomic``: True if turns run atomic activities, False if the process that claims activities does.
    - ``search_attributes``: those that the run started with.
    - ``unread``: results that the run had received and not read when it was closed.
    """

    record: RunRecord
    prefix: HistoryPrefix
    seed: int
    redeliver: bool = True
    edited_inputs: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    tags: Sequence[str] | None = None
    metadata: Mapping[str, Any] | None = None
    atomic: bool = True
    search_attributes: Mapping[str, Any] | None = None
    unread: Sequence[InboxMessage] = ()

    @property
    def edited_activities(self) -> list[str]:
        """The names of the open activities that get another input."""
        return [self.prefix.activities[number].attributes["activity"] for number in sorted(self.edited_inputs)]

    @property
    def edited_digests(self) -> dict[str, dict[str, str]]:
        """The digests of the old and the new input of each edited activity, by command number."""
        old = {number: self.prefix.activities[number].attributes for number in sorted(self.edited_inputs)}
        return {
            str(number): input_digests(was["args"], was.get("kwargs", {}), self.edited_inputs[number])
            for number, was in old.items()
        }


@dataclass(frozen=True, slots=True)
class ReplayCheck:
    """The result of a replay that checks how far the code follows the history.

    ``activation_count`` is the number of activations that the code repeats as recorded, and ``error`` is what stopped
    it then. ``key`` names the run, the class and the last activation of the check. The result stays true, because
    histories only grow (see decision 42).
    """

    key: tuple[UUID, type[Workflow], int]
    activation_count: int
    error: BaseException | None


def check_replay(
    events: Sequence[HistoryEvent],
    run_id: UUID,
    code: type[Workflow],
    *,
    to: int | None,
    limit: float | None,
    max_seconds: float | None,
) -> ReplayCheck:
    """Replay the history up to activation ``to`` (None: the last), and return how far the code follows it.

    ``limit`` is the largest number of seconds for each activation, and ``max_seconds`` that for all of them; None sets
    none. Raises ``ActionNotPossible`` if there is no such activation, or if the replay takes too long.
    """
    last = _last_activation(events, to)
    reset_point = read_prefix(events, last if to is None else to)
    return ReplayCheck(
        (run_id, code, reset_point.activation), *_count_replayable(code, reset_point, limit, max_seconds)
    )


def _last_activation(events: Sequence[HistoryEvent], to: int | None) -> int:
    """Return the last activation that did not close the run. Raises ``ActionNotPossible`` for a wrong ``to``."""
    count = count_activations(events)
    last = count - is_closed_by_code(events)
    if to is not None and not (type(to) is int and 0 <= to <= last):
        closes = ""
        if last < count:
            closes = f"; activation {count} closed it"
        raise ActionNotPossible(
            f"there is no activation {to!r} to go back to: the run has activations 0 (its start) to {last}{closes}"
        )
    return last


def make_plan(
    events: Sequence[HistoryEvent],
    record: RunRecord,
    code: type[Workflow],
    *,
    to: int | None,
    redeliver: bool,
    edited_inputs: Any,
    editable: bool,
    seed: int,
    in_trouble: bool,
    limit: float | None,
    atomic: bool,
    successor_histories: Iterable[Sequence[HistoryEvent]] = (),
    tasks: Iterable[TaskState] = (),
    replay_check: ReplayCheck | None = None,
    max_seconds: float | None = None,
) -> ResetPlan:
    """Plan a reset or fork that continues after activation ``to`` of a run's history, with the code of this process.

    ``to`` None means the last activation that the code repeats as recorded and that did not close the run. If the code
    repeats all of them, the run must be ``in_trouble`` (blocked or closed, or the plan is for a fork). ``redeliver``,
    ``seed`` and ``atomic`` are those of ``ResetPlan``. ``edited_inputs`` maps command numbers to the new inputs of
    activities. ``editable`` is False for a class whose inputs cannot be edited. ``limit`` and ``max_seconds`` are
    limits of the replay in seconds. An earlier ``replay_check`` saves the replay if it is about this point.
    ``successor_histories`` are the histories of the runs by which the run was continued, and ``tasks`` are its
    activities in their present state.

    Raises ``ActionNotPossible`` with the reason, and ``PayloadError`` for an edited input that does not fit.
    """
    last = _last_activation(events, to)
    if replay_check is None or replay_check.key != (record.run_id, code, last if to is None else to):
        replay_check = check_replay(events, record.run_id, code, to=to, limit=limit, max_seconds=max_seconds)
    _require_reproducible(replay_check, to=to, last=last, in_trouble=in_trouble)
    reset_point = read_prefix(events, replay_check.activation_count if to is None else to)
    for history in successor_histories if redeliver else ():
        reset_point.later_messages += read_prefix(history, 0).later_messages
    reset_point.later_messages = deduplicate(reset_point.later_messages)
    _apply_edited_inputs(reset_point, tasks)
    return ResetPlan(
        record=record,
        prefix=reset_point,
        seed=seed,
        redeliver=redeliver,
        edited_inputs=_parse_edits(edited_inputs, reset_point, editable=editable),
        tags=list(code.tags) or None,
        metadata=dict(code.metadata) or None,
        atomic=atomic,
        search_attributes=_first_search_attributes(events, record),
        unread=_unread_results(events, record),
    )


def plan_of_run(
    storage: RunStorage,
    tasks: Iterable[TaskState],
    run: RunState,
    record: RunRecord,
    code: type[Workflow],
    *,
    later_runs: Callable[[], Sequence[tuple[UUID, str]]],
    forks: bool,
    messages: str = REDELIVER,
    **options: Any,
) -> ResetPlan:
    """Plan a reset, or a fork (``forks``), of the run ``record`` in the chain whose locked state is ``run``.

    ``tasks`` are the activities of the run. ``later_runs()`` returns pairs of run id and status, of the run and those
    after it in its chain. ``options`` are further arguments of ``make_plan``, which raises the errors.
    """
    histories: Iterable[Sequence[HistoryEvent]] = ()
    # Messages that later runs of the chain have read come again, too (see decision 43).
    if messages == REDELIVER and record.run_id != run.run_id:
        label = f"{record.workflow} {record.workflow_id}"
        later_ids = successors(later_runs(), forked=forks, run_label=label)
        histories = (storage.histories({run_id: 0})[run_id] for run_id in later_ids)
    return make_plan(
        storage.histories({record.run_id: 0})[record.run_id],
        record,
        code,
        redeliver=messages == REDELIVER,
        successor_histories=histories,
        tasks=tasks,
        in_trouble=forks or run.closed or run.failed_tries > 0 or record.run_id != run.run_id,
        **options,
    )


def start_of_fork(
    plan: ResetPlan,
    code: type[Workflow],
    id: str | None,
    *,
    sender: Sender | None,
    tags: Any,
    suffix: Callable[[], str],
) -> RunStart:
    """Return the values of the run that a fork starts; ``id`` is its business id, or None.

    ``sender`` is the person who forks, and ``tags`` are those of the run whose history is forked. ``suffix`` returns a
    random text. Raises ``InvalidId``.
    """
    record = plan.record
    return RunStart(
        workflow_id=fork_id(record.workflow_id, id, code.unique, suffix=suffix),
        args=record.args,
        # A copied history replays only under the seed with which it was recorded; the mark behind it sets the new one.
        # A fork from the start has no history, so it draws its own numbers.
        seed=record.seed if plan.prefix.activation else plan.seed,
        snapshot=fork_snapshot(record.snapshot, sender),
        search_attributes=plan.search_attributes,
        scheduled_for=record.scheduled_for,
        headers=record.headers,
        **fork_options(code, tags=tags or ()),
    )


def _require_reproducible(replay_check: ReplayCheck, *, to: int | None, last: int, in_trouble: bool) -> None:
    """Raise ``ActionNotPossible`` if the code does not repeat the history, or if nothing is wrong."""
    good_count, error = replay_check.activation_count, replay_check.error
    if to is None and not in_trouble and good_count == last:
        raise ActionNotPossible("the run has no problem: name the activation to go back to")
    if to is not None and good_count < to:
        raise ActionNotPossible(
            f"its code does not reproduce activation {good_count + 1} as recorded "
            f"({error and error_line(error)}): correct the code, or go back to activation {good_count} or earlier"
        )


def _first_search_attributes(events: Sequence[HistoryEvent], record: RunRecord) -> Mapping[str, Any] | None:
    if not events:
        return record.search_attributes
    return kinds.WORKFLOW_STARTED.read(events[0]).get("search_attributes")


def _unread_results(events: Sequence[HistoryEvent], record: RunRecord) -> list[InboxMessage]:
    """Return results that had come and were unread when the run was closed from outside."""
    unread = events[-1].attributes.get("unread", ()) if events else ()
    return [
        InboxMessage(id=0, run_id=record.run_id, kind=message["kind"], name=message["name"], payload=message["body"])
        for message in unread
    ]


class _ReplayTimeout(Exception):
    """Raised when the replay of the activations takes longer than ``max_seconds``."""


def _count_replayable(
    code: type[Workflow], reset_point: HistoryPrefix, limit: float | None, max_seconds: float | None
) -> tuple[int, BaseException | None]:
    """Return how many activations the code repeats, and what stopped it. Later events may hold patch answers."""
    label = f"the replay of {code.name}"
    bounded = partial(watchdog.run, limit=limit, label=label)
    if max_seconds is None:
        until = float("inf")
    else:
        until = time.monotonic() + max_seconds
    last_error: BaseException | None = None

    def check_budget() -> None:
        watchdog.note_all_blocked()
        if time.monotonic() > until:
            raise _ReplayTimeout

    while True:
        good_count, error = try_replay(code.definition, reset_point.events, run=bounded, on_activation=check_budget)
        if isinstance(error, _ReplayTimeout):
            raise ActionNotPossible(
                f"its code takes longer than {max_seconds:g} s to replay {reset_point.activation} activations "
                f"(it reached {good_count}): go back to an earlier one, or make the code faster"
            )
        last_error = error or last_error
        if good_count == reset_point.activation:
            return good_count, last_error
        # A shorter prefix may lack the mark of a patch, and the code then takes another path: replay it, too.
        reset_point = read_prefix(reset_point.events, good_count)


def _apply_edited_inputs(reset_point: HistoryPrefix, tasks: Iterable[TaskState]) -> None:
    """Give open activities the input and the idempotency key that people gave them later."""
    for task in tasks:
        open_activity = reset_point.activities.get(task.seq)
        if open_activity is not None and isinstance(task.options.get("edited"), Mapping):
            key = activity_policy.idempotency_key(task)
            call = activity_policy.edited_input(task.args, task.kwargs, task.options, key=key)
            reset_point.activities[task.seq] = open_activity.with_input(call)


def _parse_edits(edited_inputs: Any, reset_point: HistoryPrefix, *, editable: bool) -> dict[int, dict[str, Any]]:
    """Return ``{number: {"args": […], "kwargs": {…}}}``; people may give a list of arguments instead.

    Raises ``ActionNotPossible`` if an input may not be edited, and ``PayloadError`` for a wrong form or input.
    """
    if edited_inputs is None:
        return {}
    if not isinstance(edited_inputs, Mapping):
        raise PayloadError("edited inputs must map the numbers of activities to their inputs: {number: [argument, …]}")
    edits: dict[int, dict[str, Any]] = {}
    for name, call_input in edited_inputs.items():
        number = None
        if isinstance(name, int | str) and str(name).isdecimal():
            number = int(name)
        open_activity = None
        if number is not None:
            open_activity = reset_point.activities.get(number)
        if number is None or open_activity is None:
            open_numbers = ", ".join(map(str, sorted(reset_point.activities))) or "none"
            raise ActionNotPossible(
                f"no activity {quoted(name)} is open at activation {reset_point.activation} (open: {open_numbers})"
            )
        if not editable:
            raise ActionNotPossible(
                f"activity {number} is a step: its input comes from the steps before it, so you cannot edit it"
            )
        if not allows_overrides(open_activity.attributes.get("options") or {}):
            raise ActionNotPossible(f"activity {number}: its code does not allow edits of its input (by_hand=False)")
        edits[number] = _parse_call(call_input, number)
        _check_input(edits[number], open_activity.attributes["activity"], number)
    return edits


def _parse_call(call_input: Any, number: int) -> dict[str, Any]:
    """Return an input with ``args`` and ``kwargs``. Raises ``PayloadError`` for another form."""
    if isinstance(call_input, list):
        call = {"args": call_input, "kwargs": {}}
    else:
        call = call_input
    if (
        not isinstance(call, Mapping)
        or not set(call) <= {"args", "kwargs"}
        or not isinstance(call.get("args", []), list)
        or not isinstance(call.get("kwargs", {}), Mapping)
    ):
        raise PayloadError(
            f"the edited input of activity {number} must be a list of arguments, or {{'args': […], 'kwargs': {{…}}}}"
        )
    label = f"the edited input of activity {number}"
    plain: dict[str, Any] = codec.to_plain(
        {"args": call.get("args", []), "kwargs": call.get("kwargs", {})}, label=label
    )
    return plain


def _check_input(call: Mapping[str, Any], name: str, number: int) -> None:
    """Raise ``PayloadError`` for an input that does not fit, ``ActionNotPossible`` if the code is missing."""
    try:
        code = activity.find(name)
    except ActivityNotFound as exc:
        raise ActionNotPossible(
            f"this process lacks the code of activity {number} ({quoted(name)}), so it cannot check the edited input"
        ) from exc
    try:
        code.decode(deep_copy(call["args"]), deep_copy(call["kwargs"]))
    except PayloadError as exc:
        raise PayloadError(f"the edited input of activity {number} does not fit: {exc.message}") from exc


# --- apply ------------------------------------------------------------------------------------------------------------
#
# Reset and fork: a new run continues from a point of another run's history, in the same chain or in a new one.
#
# The new run has the history up to the point, and then an event that gives it a new seed and names the source.
# Everything that was open at the point is open again: activities are scheduled again with their idempotency keys, and
# timers keep their time. Results that had come and were never read come again, since a person may have given them.
# Children stay with the run that started them: the result of one that ended is given again, and one that has not ended
# counts as failed. All of it happens inside the open transaction, on chains that it has locked. See decisions 42 and
# 43.


#: Type of the failure of a child that had not ended when its parent was reset or forked.
CHILD_LEFT = "ChildLeft"


def reset(storage: RunStorage, run: RunState, plan: ResetPlan, *, run_id: UUID) -> list[RunWrite]:
    """Close a locked run as terminated, if it is open, and continue its chain with a new run.

    Returns the changes (``RunWrite``) that were stored. The new run gets the id ``run_id`` and continues from the point
    of the history that ``plan`` names. If the chain was closed, it is open again, and the caller has to reserve its
    business id (``reopen``).
    """
    record, now = plan.record, storage.now()
    current_record = storage.run_records([run.run_id])[run.run_id]
    pending_results = _pending_results(storage.inbox([run.chain_id])[run.chain_id], plan)
    failed_signals = _failed_to_copy(storage, run.chain_id, plan, excluded_statuses=("unread", "failed"))
    closing_write = close_for_reset(
        run, new=_successor_run(plan, run_id), reset_run_id=plan.record.run_id, now=now, record=current_record
    )
    closing_write.outcomes.update(_unfinished_updates(storage, run, plan))
    storage.write([closing_write])
    new_state = _initial_state(run, run_id, closing_write.run.activated_at or now, record)
    writes = [closing_write]
    if plan.prefix.activation:
        identity: dict[str, Any] = {"id": record.workflow_id, "parent": record.parent, "snapshot": record.snapshot}
        writes.append(
            _write_restored_run(
                storage,
                new_state,
                plan,
                "reset",
                pending_results=pending_results,
                failed_signals=failed_signals,
                **identity,
            )
        )
    storage.prepend_messages(
        run.chain_id, plan.prefix.later_messages if plan.redeliver else (), received=plan.prefix.signal_count
    )
    return writes


def fork(
    storage: RunStorage,
    run: RunState,
    plan: ResetPlan,
    *,
    source_chain: UUID,
    id: str,
    snapshot: Mapping[str, Any] | None,
) -> list[RunWrite]:
    """Let ``run``, which the open transaction has just started, continue from a point of another run's history.

    Returns the changes (``RunWrite``) that were stored. ``id`` (business id) and ``snapshot`` are those of ``run``. The
    other run (``plan.record``, of the chain ``source_chain``) stays as it is.
    """
    pending_results, writes = _pending_results(storage.inbox([source_chain])[source_chain], plan), []
    failed_signals, carried_ids = _failed_to_copy(storage, source_chain, plan), plan.prefix.carried
    if plan.prefix.activation:
        identity: dict[str, Any] = {"id": id, "parent": None, "snapshot": snapshot}
        writes.append(
            _write_restored_run(
                storage, run, plan, "fork", pending_results=pending_results, failed_signals=failed_signals, **identity
            )
        )
    # From its start the fork has no copied history that names failed messages, but it carries those of the source.
    elif plan.record.carried_messages is not None:
        carried_ids = {message["id"] for message in plan.record.carried_messages.get("failed", ())}
    storage.copy_failed_messages(source_chain, run.chain_id, carried_ids)
    storage.store_settled_messages(run.chain_id, _settled_messages(plan.prefix))
    storage.prepend_messages(
        run.chain_id, plan.prefix.later_messages if plan.redeliver else (), received=plan.prefix.signal_count
    )
    return writes


def _failed_to_copy(
    storage: RunStorage, chain: UUID, plan: ResetPlan, *, excluded_statuses: Sequence[str] = ()
) -> list[FailedSignal]:
    """Return failed messages for the chain of the new run. Discarded ones leave the plan (see decision 46)."""
    prefix = plan.prefix
    ids = {
        message.message_id for message in prefix.later_messages if message.message_id is not None
    } | prefix.failed.keys()
    statuses = storage.message_statuses(chain, ids)
    prefix.later_messages = [
        m for m in prefix.later_messages if m.message_id is None or statuses.get(m.message_id) != "discarded"
    ]
    excluded_statuses = ("discarded", *excluded_statuses)
    return [failed for message, failed in prefix.failed.items() if statuses.get(message) not in excluded_statuses]


def _settled_messages(prefix: HistoryPrefix) -> list[tuple[PendingMessage, Outcome]]:
    """Return updates and signals with ids, without failed ones: the chain of a fork has no rows of them."""
    outcomes: dict[str, Outcome] = {}
    for event in prefix.events:
        match event.kind:
            case "UpdateCompleted":
                answer = kinds.UPDATE_COMPLETED.read(event)
                outcomes[answer["id"]] = Outcome(status="completed", value=answer["result"])
            case "UpdateFailed":
                outcomes[kinds.UPDATE_FAILED.read(event)["id"]] = failed_outcome(event.attributes)
    updates = [
        (update, outcomes.get(update_id, Outcome(status="accepted"))) for update_id, update in prefix.updates.items()
    ]
    return updates + [(signal, Outcome(status="completed")) for signal in prefix.signals.values()]


def _pending_results(unread: Iterable[InboxMessage], plan: ResetPlan) -> dict[int, InboxMessage]:
    """Return unread results, by command number, of what was open at the point and has no edited input."""
    prefix = plan.prefix
    timers = pending_timers((event.kind, event.attributes) for event in prefix.events)
    open_numbers = {*prefix.activities, *timers, *prefix.children, *prefix.unconfirmed} - set(plan.edited_inputs)
    results = (m for m in (*plan.unread, *unread) if m.kind in RESULT_KINDS and m.run_id == plan.record.run_id)
    return {m.payload["seq"]: m for m in results if m.payload["seq"] in open_numbers}


def _successor_run(plan: ResetPlan, run_id: UUID) -> RunRecord:
    """Return the new run. It has the seed of the old one if it copies history, else that of the plan."""
    record = plan.record
    return record.successor(
        run_id,
        seed=record.seed if plan.prefix.activation else plan.seed,
        carried_messages=record.carried_messages,
        snapshot=record.snapshot,
        search_attributes=plan.search_attributes,
    )


def _initial_state(run: RunState, run_id: UUID, now: datetime, record: RunRecord) -> RunState:
    """Return the chain's state with a new run, which has no history and is due now."""
    return RunState(
        chain_id=run.chain_id,
        run_id=run_id,
        queue=run.queue,
        head_token=None,
        length=0,
        activations=0,
        activated_at=now,
        due_at=now,
        deadline=record.deadline(now),
    )


def _unfinished_updates(storage: RunStorage, run: RunState, plan: ResetPlan) -> dict[str, Outcome]:
    """Return the outcome "failed" for updates that a reset drops: their senders wait for one."""
    events = storage.histories({run.run_id: 0})[run.run_id]
    open_ids = {kinds.UPDATE_ACCEPTED.read(event)["id"] for event in events if event.kind == "UpdateAccepted"}
    open_ids -= {event.attributes["id"] for event in events if event.kind in end_kinds_of("update")}
    visible_ids = plan.prefix.updates.keys() | {
        message.message_id for message in plan.prefix.later_messages if plan.redeliver
    }
    error = WorkflowClosed(
        f"{plan.record.workflow} {plan.record.workflow_id} was reset to a point before the update, which is dropped"
    )
    return {
        update: Outcome(status="failed", value=error_data(error)) for update in open_ids if update not in visible_ids
    }


def _write_restored_run(
    storage: RunStorage,
    run: RunState,
    plan: ResetPlan,
    mode: str,
    *,
    pending_results: Mapping[int, InboxMessage],
    failed_signals: Sequence[FailedSignal],
    id: str,
    parent: str | None,
    snapshot: Mapping[str, Any] | None,
) -> RunWrite:
    """Store the copied history, the event that marks the copy, and everything that was open."""
    prefix, now = plan.prefix, max(storage.now(), plan.prefix.events[-1].at)
    copy_mark = build_copy_mark(
        mode=mode,
        source_run_id=str(plan.record.run_id),
        activation=prefix.activation,
        run_id=str(run.run_id),
        id=id,
        parent=parent,
        snapshot=snapshot,
    )
    rescheduled = {number: activity for number, activity in prefix.activities.items() if number not in pending_results}
    inputs = {
        number: plan.edited_inputs.get(number) or activity.edited_input for number, activity in rescheduled.items()
    }
    if edited_calls := {str(number): dict(call) for number, call in inputs.items() if call is not None}:
        copy_mark["edited"] = edited_calls
    # The mark is an activation of its own behind the copied history: a replay draws from the new seed after it.
    run.length = len(prefix.events) + 1
    run.activations = prefix.activation + 1
    run.activated_at = run.due_at = now
    run.head_token = storage.new_token()
    stamp = {"head": run.head_token, "seed": plan.seed, COPIED: copy_mark}
    events = [_copy_event(number, event) for number, event in enumerate(prefix.events, 1)]
    events.append(
        NewEvent(number=run.length, activation=run.activations, kind="ActivationStarted", at=now, attributes=stamp)
    )
    tasks = [_new_task(run, plan, number, id, now) for number in rescheduled]
    if plan.atomic and any(task.atomic for task in tasks):
        run.atomic_due = now
    write = RunWrite(run=run, events=events, tasks=tasks, messages=_result_messages(run, prefix, pending_results))
    write.instance = {"started_at": now}
    write.failed_signals = [*failed_signals]
    storage.write([write])
    return write


def _copy_event(number: int, event: HistoryEvent) -> NewEvent:
    return NewEvent(
        number=number, activation=event.activation, kind=event.kind, at=event.at, attributes=event.attributes
    )


def _new_task(run: RunState, plan: ResetPlan, number: int, id: str, now: datetime) -> NewTask:
    """Return an activity that was open in the copied history, to schedule it again."""
    activity = plan.prefix.activities[number]
    edited = plan.edited_inputs.get(number)
    attributes = {**activity.attributes, **(edited or {})}
    options: dict[str, Any] = dict(attributes.get("options") or {})
    if edited is not None:
        options["edited"] = True
    else:
        # The key of the source: what it has done once under that key is not to be done again.
        options |= {"key": activity.key, **({"edited": activity.edited} if activity.edited else {})}
    return NewTask(
        run_id=run.run_id,
        chain_id=run.chain_id,
        workflow_id=id,
        workflow=plan.record.workflow,
        seq=number,
        activity=attributes["activity"],
        args=attributes["args"],
        kwargs=attributes.get("kwargs", {}),
        options=options,
        queue=options.get("queue") or run.queue,
        atomic=bool(options.get("atomic")),
        scheduled_at=now,
        tags=plan.tags,
        metadata=plan.metadata,
        headers=plan.record.headers,
    )


def _result_messages(
    run: RunState, prefix: HistoryPrefix, pending_results: Mapping[int, InboxMessage]
) -> list[NewMessage]:
    """Return messages with the results of what was open in the copied history.

    Without a result, a child counts as failed and a message as delivered: the new run does not start or send them
    again.
    """
    results = [(m.kind, m.name, m.payload) for m in pending_results.values()]
    for number, child in prefix.children.items():
        if number not in pending_results:
            results.append(("child", *(prefix.later_results.get(number) or _child_left_result(number, child))))
    sent_numbers = sorted(prefix.unconfirmed - set(pending_results))
    results += [
        ("external", *(prefix.later_results.get(number) or (DELIVERED, {"seq": number}))) for number in sent_numbers
    ]
    return [
        NewMessage(
            kind=kind,
            name=name,
            payload=payload,
            chain_id=run.chain_id,
            run_id=run.run_id,
            message_id=skip_message_id(run.run_id, payload["seq"]) if kind == "timer" else None,
        )
        for kind, name, payload in results
    ]


def _child_left_result(number: int, child: str) -> tuple[str, dict[str, Any]]:
    message = "it belongs to the run that was reset or forked; start another child if you need its result"
    return "ChildFailed", {"seq": number, "type": CHILD_LEFT, "message": f"child {child}: {message}", "status": "left"}
