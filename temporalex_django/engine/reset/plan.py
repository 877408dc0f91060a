"""The plan of a reset or a fork: where in a run's history to continue, checked against its history and its code.

Pure, except that it replays the code of the run within limits of time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from temporalex_django.authoring import activity
from temporalex_django.authoring.activity_options import SEPARATOR, Unique, check_id
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.core.failures import error_line
from temporalex_django.core.history import events as kinds
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.history.prefix import (
    HistoryPrefix,
    count_activations,
    deduplicate,
    is_closed_by_code,
    read_prefix,
)
from temporalex_django.core.history.replay import try_replay
from temporalex_django.core.names import quoted
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.codec import deep_copy
from temporalex_django.engine import activity_policy
from temporalex_django.engine.contracts.records import InboxMessage, RunRecord, TaskState
from temporalex_django.engine.operator_overrides import allows_overrides, input_digests
from temporalex_django.engine.watchdog import watchdog
from temporalex_django.errors import ActionNotPossible, ActivityNotFound, InvalidId, PayloadError

#: Later runs of the chain whose messages can be delivered again (see decision 43).
_MAX_SUCCESSORS = 100
#: Choices for the messages behind the point.
REDELIVER, DROP = "again", "drop"


def should_redeliver(messages: object) -> bool:
    """Return True if the option ``messages`` is "again", and False if it is "drop".

    It says whether messages that came after the point of a reset or fork are delivered again. Raises ``PayloadError``
    for any other value.
    """
    if messages not in (REDELIVER, DROP):
        raise PayloadError(
            f"messages={messages!r} is not a valid choice: use {REDELIVER!r} (deliver them again) or {DROP!r}"
        )
    return messages == REDELIVER


def successors(runs: Sequence[tuple[UUID, str]], *, forked: bool) -> list[UUID]:
    """Return the ids of the runs that followed a run by continue-as-new, whose messages a reset delivers again, too.

    ``runs`` are the run and those after it in its chain, as pairs of run id and status. Raises ``ActionNotPossible`` if
    one of them was reset, because its messages cannot be told from those that were delivered again. For a fork
    (``forked``) the runs end there instead. Raises it for too many runs, too. See decision 43.
    """
    last = next((n for n, (_, status) in enumerate(runs) if status != "continued_as_new"), len(runs) - 1)
    if not forked and last < len(runs) - 1:
        raise ActionNotPossible(
            f"the run {runs[last][0]} has been reset since, so it is not known which messages came later: reset the "
            f"newest run of the chain, or drop the messages (messages={DROP!r})"
        )
    if last > _MAX_SUCCESSORS:
        raise ActionNotPossible(
            f"the chain has more than {_MAX_SUCCESSORS} later runs: drop their messages (messages={DROP!r}), or "
            "reset or fork a later run"
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
    """Return the number of the last activation after which a new run can continue.

    The last activation does not count if it closed the run. Raises ``ActionNotPossible`` if ``to`` is not one of these.
    """
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


def _require_reproducible(replay_check: ReplayCheck, *, to: int | None, last: int, in_trouble: bool) -> None:
    """Raise ``ActionNotPossible`` if the code does not repeat the history up to ``to``, or if nothing is wrong.

    ``to`` is the activation that was asked for, or None, and ``last`` the last one from which a run can continue.
    Without ``to``, the run must be ``in_trouble`` or the code must differ from the history.
    """
    good_count, error = replay_check.activation_count, replay_check.error
    if to is None and not in_trouble and good_count == last:
        raise ActionNotPossible("the run has no problem: name the activation to go back to")
    if to is not None and good_count < to:
        raise ActionNotPossible(
            f"its code does not reproduce activation {good_count + 1} as recorded "
            f"({error and error_line(error)}): correct the code, or go back to activation {good_count} or earlier"
        )


def _first_search_attributes(events: Sequence[HistoryEvent], record: RunRecord) -> Mapping[str, Any] | None:
    """Return the search attributes with which the run started, from the first of its ``events``."""
    if not events:
        return record.search_attributes
    return kinds.WORKFLOW_STARTED.read(events[0]).get("search_attributes")


def _unread_results(events: Sequence[HistoryEvent], record: RunRecord) -> list[InboxMessage]:
    """Return the results that had come and that the run had not read when it was closed from outside."""
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
    """Return ``(number, error)``: how many activations the code repeats as recorded, and what stopped it, or None.

    Only events of ``reset_point``, the beginning of the history, are replayed, since later ones may include answers of
    patches.
    """
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
    """Give the open activities of ``reset_point`` the input and the idempotency key that people gave them later.

    ``tasks`` are the activities of the run in their present state.
    """
    for task in tasks:
        open_activity = reset_point.activities.get(task.seq)
        if open_activity is not None and isinstance(task.options.get("edited"), Mapping):
            key = activity_policy.idempotency_key(task)
            call = activity_policy.edited_input(task.args, task.kwargs, task.options, key=key)
            reset_point.activities[task.seq] = open_activity.with_input(call)


def _parse_edits(edited_inputs: Any, reset_point: HistoryPrefix, *, editable: bool) -> dict[int, dict[str, Any]]:
    """Return the edited inputs by command number: ``{number: {"args": […], "kwargs": {…}}}``.

    People may give a list of arguments instead of the inner dict. Raises ``ActionNotPossible`` if an input may not be
    edited, and ``PayloadError`` if it does not have this form or does not fit its activity.
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
    """Return an edited input as plain data with ``args`` and ``kwargs``.

    Raises ``PayloadError`` if it is neither a list of arguments nor a dictionary with these keys.
    """
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
    """Check that an edited input fits the activity of this ``name``; ``number`` is that of its command.

    Raises ``PayloadError`` if it does not fit, and ``ActionNotPossible`` if this process lacks the code.
    """
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
