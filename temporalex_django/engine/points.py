"""At which point a run is taken up by another one, with what: said by people, checked against its history and its code.

Pure, but for the code of the run, which is replayed within limits of time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from temporalex_django.authoring import activity
from temporalex_django.authoring.unique import SEPARATOR, Unique, check_id
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.core import payloads
from temporalex_django.core.copying import deep_copy
from temporalex_django.core.error_text import error_line
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
from temporalex_django.engine import activity_policy
from temporalex_django.engine.by_hand import input_digests, takes_hands
from temporalex_django.engine.storage import InboxMessage, RunFacts, TaskState
from temporalex_django.engine.watchdog import watchdog
from temporalex_django.errors import ActionNotPossible, ActivityNotFound, InvalidId, PayloadError

#: Runs of a chain behind the one that is taken up whose messages are delivered again.
_MOST_LATER = 100
#: What becomes of messages behind the point.
AGAIN, DROP = "again", "drop"


def is_again(messages: object) -> bool:
    """Whether messages behind the point are delivered again. Raises ``PayloadError`` for what says neither."""
    if messages not in (AGAIN, DROP):
        raise PayloadError(f"messages={messages!r}: say {AGAIN!r} (deliver them again) or {DROP!r}")
    return messages == AGAIN


def gone_on(runs: Sequence[tuple[UUID, str]], *, forked: bool) -> list[UUID]:
    """Of a run and those after it in its chain, with their status: as which it has gone on, whose messages are later.

    Raises ``ActionNotPossible`` where one of them was reset: its messages cannot be told from those that were delivered
    again. A fork (``forked``) is of the run as it went on before that.
    """
    last = next((n for n, (_, status) in enumerate(runs) if status != "continued_as_new"), len(runs) - 1)
    if not forked and last < len(runs) - 1:
        raise ActionNotPossible(
            f"the run {runs[last][0]} was reset since, and it cannot be told which messages came later: reset the newest "
            f"run of the chain, or drop them (messages={DROP!r})"
        )
    if last > _MOST_LATER:
        raise ActionNotPossible(
            f"more than {_MOST_LATER} runs of the chain came later: drop their messages (messages={DROP!r}), or take up a "
            "later one"
        )
    return [run for run, _ in runs[1 : last + 1]]


def fork_id(of: str, id: str | None, unique: Unique | None, *, suffix: Callable[[], str]) -> str:
    """The id of a fork: the one that is given; without one, or an empty one, one made of that of the run.

    Raises ``InvalidId``.
    """
    if id is not None and id != "":
        return check_id(id) if unique is None else unique.check(id)
    if unique is None:
        return check_id(f"{of[:180]}-fork-{suffix()}")
    if unique.scope != "none":
        raise InvalidId(
            f"the runs of this class have an id of the form {unique.key}{SEPARATOR}value: give the fork an id="
        )
    return unique.run_id_for(unique.value_of(of), suffix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which run is taken up (``facts``), where (``prefix``), and how.

    ``again``: messages behind the point are delivered again, else dropped. ``edited``: args and kwargs of open
    activities by the number of the command; they get a new key. ``seed`` is that of the run from there on. ``atomic``:
    turns run atomic activities (else whoever claims activities does). ``search_attributes``: those that the run began
    with. ``unread``: results that had come and that it had not read when it was closed.
    """

    facts: RunFacts
    prefix: HistoryPrefix
    seed: int
    again: bool = True
    edited: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    tags: Sequence[str] | None = None
    metadata: Mapping[str, Any] | None = None
    atomic: bool = True
    search_attributes: Mapping[str, Any] | None = None
    unread: Sequence[InboxMessage] = ()

    @property
    def edited_activities(self) -> list[str]:
        """The names of the activities that get another input."""
        return [self.prefix.activities[number].attributes["activity"] for number in sorted(self.edited)]

    @property
    def edited_digests(self) -> dict[str, dict[str, str]]:
        """The digests of their old and new inputs, by the number of the command."""
        old = {number: self.prefix.activities[number].attributes for number in sorted(self.edited)}
        return {
            str(number): input_digests(was["args"], was.get("kwargs", {}), self.edited[number])
            for number, was in old.items()
        }


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """``good``: through how many activations of a run its code goes as they are recorded, and ``why`` not further.

    Of the run, the class and the number of activations that ``what`` names: that does not change, histories only grow.
    """

    what: tuple[UUID, type[Workflow], int]
    good: int
    why: BaseException | None


def rehearsed(
    events: Sequence[HistoryEvent],
    run_id: UUID,
    code: type[Workflow],
    *,
    to: int | None,
    limit: float | None,
    most: float | None,
) -> Rehearsal:
    """What a replay up to the point finds.

    ``limit``: seconds for each activation, ``most`` for all of them. Raises ``ActionNotPossible``.
    """
    last = _last(events, to)
    point = read_prefix(events, last if to is None else to)
    return Rehearsal((run_id, code, point.activation), *_goes_through(code, point, limit, most))


def _last(events: Sequence[HistoryEvent], to: int | None) -> int:
    """The last activation that can be gone back to. Raises ``ActionNotPossible`` where ``to`` is behind it."""
    count = count_activations(events)
    last = count - is_closed_by_code(events)
    if to is not None and not (type(to) is int and 0 <= to <= last):
        closes = f"; the activation {count} closed it" if last < count else ""
        raise ActionNotPossible(
            f"there is no activation {to!r} to go back to: the run has 0 (its start) to {last}{closes}"
        )
    return last


def planned(
    events: Sequence[HistoryEvent],
    facts: RunFacts,
    code: type[Workflow],
    *,
    to: int | None,
    again: bool,
    edited: Any,
    editable: bool,
    seed: int,
    in_trouble: bool,
    limit: float | None,
    atomic: bool,
    later: Iterable[Sequence[HistoryEvent]] = (),
    tasks: Iterable[TaskState] = (),
    rehearsal: Rehearsal | None = None,
    most: float | None = None,
) -> Plan:
    """How to take up a run with the code that is here, behind the activation ``to``.

    None: the last one that its code goes through as it is recorded and that did not close it; only of a run that is
    ``in_trouble``. ``edited`` as people give it: see ``_edits``, of a class whose activities are ``editable``.
    ``limit``, ``most``: as of ``rehearsed``, whose findings are used if they are of this point. ``later``: histories of
    the runs as which it has gone on. ``tasks``: its activities as they stand.

    Raises ``ActionNotPossible`` with the reason, and ``PayloadError``.
    """
    last = _last(events, to)
    if rehearsal is None or rehearsal.what != (facts.run_id, code, last if to is None else to):
        rehearsal = rehearsed(events, facts.run_id, code, to=to, limit=limit, most=most)
    good, why = rehearsal.good, rehearsal.why
    if to is None and not in_trouble and good == last:
        raise ActionNotPossible("the run is in no trouble: say to which activation")
    if to is not None and good < to:
        raise ActionNotPossible(
            f"its code does not go through the activation {good + 1} as it is recorded ({why and error_line(why)}): put the code "
            f"right, or go back to {good} or before"
        )
    point = read_prefix(events, good if to is None else to)
    for history in later if again else ():
        point.later_messages += read_prefix(history, 0).later_messages
    point.later_messages = deduplicate(point.later_messages)
    _as_they_stand(point, tasks)
    return Plan(
        facts=facts,
        prefix=point,
        seed=seed,
        again=again,
        edited=_edits(edited, point, editable=editable),
        tags=list(code.tags) or None,
        metadata=dict(code.metadata) or None,
        atomic=atomic,
        search_attributes=events[0].attributes.get("search_attributes") if events else facts.search_attributes,
        unread=[
            InboxMessage(id=0, run_id=facts.run_id, **one)
            for one in (events[-1].attributes.get("unread", ()) if events else ())
        ],
    )


class _TakesTooLong(Exception):
    """There are more activations than there is time for."""


def _goes_through(
    code: type[Workflow], point: HistoryPrefix, limit: float | None, most: float | None
) -> tuple[int, BaseException | None]:
    """How many activations of a prefix the code goes through.

    Without what comes behind it, which may tell of patches.
    """
    what = f"the replay of {code.name}"
    bounded = partial(watchdog.run, limit=limit, what=what)
    until = float("inf") if most is None else time.monotonic() + most
    why: BaseException | None = None

    def between() -> None:
        watchdog.all_blocked()
        if time.monotonic() > until:
            raise _TakesTooLong

    while True:
        good, error = try_replay(code.definition, point.events, run=bounded, on_activation=between)
        if isinstance(error, _TakesTooLong):
            raise ActionNotPossible(
                f"its code takes longer than {most:g} s to go through {point.activation} activations (it came to {good}): "
                "go back to an earlier one, or make the code quicker"
            )
        why = error or why
        if good == point.activation:
            return good, why
        point = read_prefix(point.events, good)


def _as_they_stand(point: HistoryPrefix, tasks: Iterable[TaskState]) -> None:
    """What is open there has the input, and the key, that somebody has given it since."""
    for task in tasks:
        under_way = point.activities.get(task.seq)
        if under_way is not None and isinstance(task.options.get("edited"), Mapping):
            key = activity_policy.idempotency_key(task)
            call = activity_policy.last_input(task.args, task.kwargs, task.options, key=key)
            point.activities[task.seq] = under_way.with_input(call)


def _edits(edited: Any, point: HistoryPrefix, *, editable: bool) -> dict[int, dict[str, Any]]:
    """Of activities that are open there: ``{number: [arg, …]}``, or ``{number: {"args": […], "kwargs": {…}}}``."""
    if edited is None:
        return {}
    if not isinstance(edited, Mapping):
        raise PayloadError("edited inputs are given by the number of the activity: {number: [argument, …]}")
    found: dict[int, dict[str, Any]] = {}
    for name, given in edited.items():
        number = int(name) if isinstance(name, int | str) and str(name).isdecimal() else None
        under_way = None if number is None else point.activities.get(number)
        if number is None or under_way is None:
            there = ", ".join(map(str, sorted(point.activities))) or "none"
            raise ActionNotPossible(
                f"no activity {quoted(name)} is open at activation {point.activation} (open: {there})"
            )
        if not editable:
            raise ActionNotPossible(
                f"activity {number} is a step: it takes its input from the steps before it, and cannot be edited"
            )
        if not takes_hands(under_way.attributes.get("options") or {}):
            raise ActionNotPossible(f"activity {number}: its code lets nobody edit its input (by_hand=False)")
        call = {"args": given, "kwargs": {}} if isinstance(given, list) else given
        if (
            not isinstance(call, Mapping)
            or not set(call) <= {"args", "kwargs"}
            or not isinstance(call.get("args", []), list)
            or not isinstance(call.get("kwargs", {}), Mapping)
        ):
            raise PayloadError(
                f"the edited input of activity {number} is to be a list of arguments, or {{'args': […], 'kwargs': {{…}}}}"
            )
        what = f"the edited input of activity {number}"
        found[number] = payloads.to_plain({"args": call.get("args", []), "kwargs": call.get("kwargs", {})}, label=what)
        _fits(found[number], under_way.attributes["activity"], number)
    return found


def _fits(call: Mapping[str, Any], name: str, number: int) -> None:
    """Raises ``PayloadError`` for what its code does not take, ``ActionNotPossible`` where that is not here."""
    try:
        code = activity.find(name)
    except ActivityNotFound as exc:
        raise ActionNotPossible(
            f"this process lacks the code of activity {number} ({quoted(name)}), and cannot check what is given"
        ) from exc
    try:
        code.decode(deep_copy(call["args"]), deep_copy(call["kwargs"]))
    except PayloadError as exc:
        raise PayloadError(f"the edited input of activity {number} does not fit: {exc.message}") from exc
