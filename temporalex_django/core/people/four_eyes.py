"""Four eyes: the people who may not decide a human task, because a different person must decide. See decision 49.

A run excludes people by their keys. It starts with some of them: its snapshot names who started its chain, and has the
other excluded users under ``EXCLUDED``, with a reason. People who decide its human tasks are added when they decide.
All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from temporalex_django.core.messages.sender import Sender

#: Scopes of four eyes: the chain with the runs that it comes from, or one run. An empty text means no four eyes.
CHAIN: Final = "chain"
RUN: Final = "run"
#: The key in a snapshot, and in the mark of a reset or fork, of the mapping from user keys to reasons.
EXCLUDED: Final = "excluded"
STARTED, FORKED, DECIDED, ORIGIN, SCHEDULED = "started", "forked", "decided", "origin", "scheduled"
_REASON_TEXTS: Final = {
    STARTED: "they started the run",
    FORKED: "they forked the run",
    DECIDED: "they decided an earlier approval",
    ORIGIN: "they started a run that this one comes from",
    SCHEDULED: "they triggered, backfilled or edited the schedule of the run",
}
#: Reasons that also count in the scope of one run.
_RUN_REASONS: Final = (STARTED, FORKED, SCHEDULED)
_STARTER_KEYS: Final = ("started_by", "started_as")

Snapshot = Mapping[str, Any] | None


def parse_scope(option: object) -> str | None:
    """Return the scope that the option ``four_eyes=`` names: ``CHAIN``, ``RUN``, or an empty text for no four eyes.

    True means ``CHAIN``, and False no four eyes. Returns None for an invalid value.
    """
    if isinstance(option, bool):
        return CHAIN if option else ""
    return option if isinstance(option, str) and option in (CHAIN, RUN) else None


def barred_people(scope: str, snapshot: Snapshot, deciders: Iterable[str]) -> dict[str, str]:
    """Return the users who are excluded from a human task: the reason as a sentence, by the key of the user.

    ``scope`` is the scope of its four eyes; with an empty scope nobody is excluded. ``deciders`` are the keys of people
    who have decided a task of the same run.
    """
    if not scope:
        return {}
    reasons = _exclusions_of(snapshot)
    if scope == RUN:
        reasons = {key: reason for key, reason in reasons.items() if reason in _RUN_REASONS}
    reasons |= dict.fromkeys((key for key in deciders if key not in reasons), DECIDED)
    if starter := (snapshot or {}).get("started_by"):
        reasons[starter] = STARTED
    return {key: _REASON_TEXTS[reason] for key, reason in reasons.items()}


def next_run_snapshot(snapshot: Snapshot, deciders: Iterable[str]) -> dict[str, Any] | None:
    """Return the starter of a chain and the users who may not decide in it, to pass them to its next run.

    They are a part of the snapshot: the data that a run starts with besides its input. ``snapshot`` is that of this
    run, and ``deciders`` are the keys of people who decided its human tasks. Returns None if there is nothing to pass
    on.
    """
    starter = {name: snapshot[name] for name in _STARTER_KEYS if name in snapshot} if snapshot else {}
    reasons = _exclusions_of(snapshot)
    reasons |= dict.fromkeys((key for key in deciders if key not in reasons), DECIDED)
    return {**starter, EXCLUDED: reasons} if reasons else starter or None


def child_snapshot(snapshot: Snapshot, deciders: Iterable[str]) -> dict[str, Any] | None:
    """Return the users whom a run excludes from decisions when it starts a child; None if it excludes nobody.

    The child gets them in its snapshot, the data that it starts with besides its input. ``snapshot`` is that of the
    parent, and ``deciders`` are the keys of people who decided its human tasks.
    """
    # The reasons of the parent become ``ORIGIN``: these people did not start or fork the child itself.
    reasons = {key: reason if reason == DECIDED else ORIGIN for key, reason in _exclusions_of(snapshot).items()}
    reasons |= dict.fromkeys((key for key in deciders if key not in reasons), DECIDED)
    if starter := (snapshot or {}).get("started_by"):
        reasons[starter] = ORIGIN
    return {EXCLUDED: reasons} if reasons else None


def fork_snapshot(snapshot: Snapshot, forker: Sender | None) -> dict[str, Any] | None:
    """Return the snapshot of a fork: the one of the forked run, with the person who forks it as an excluded user.

    ``forker`` is None if code forks the run. A snapshot is data that a run starts with besides its input; it names the
    users who may not decide.
    """
    if forker is None or not forker.key:
        return None if snapshot is None else dict(snapshot)
    return {**(snapshot or {}), EXCLUDED: {**_exclusions_of(snapshot), forker.key: FORKED}}


def add_starter(snapshot: Snapshot, starter: Sender) -> dict[str, Any]:
    """Return the snapshot of a run that has not begun, after one more person (``starter``) has started it.

    From then on this person counts as the one who started the run. Those who did so before stay excluded from its
    decisions.
    """
    reasons = _exclusions_of(snapshot)
    if earlier := (snapshot or {}).get("started_by"):
        reasons[earlier] = STARTED
    reasons.pop(starter.key, None)
    people = {EXCLUDED: reasons} if reasons else {}
    others = {name: value for name, value in (snapshot or {}).items() if name != EXCLUDED}
    return {**others, **people, "started_by": starter.key, "started_as": starter.name}


def add_schedulers(snapshot: Snapshot, keys: Iterable[str]) -> dict[str, Any] | None:
    """Return the snapshot of a run that a schedule starts, with the users who had a part in that as excluded users.

    ``keys`` are the keys of those who triggered or backfilled it, or edited its times or its input.
    """
    starter = (snapshot or {}).get("started_by")
    reasons = {key: SCHEDULED for key in keys if key and key != starter}
    if not reasons:
        return None if snapshot is None else dict(snapshot)
    return {**(snapshot or {}), EXCLUDED: {**_exclusions_of(snapshot), **reasons}}


def mark_attributes(snapshot: Snapshot) -> dict[str, Any]:
    """Return the users whom ``snapshot`` excludes, as attributes of the mark in a copied history.

    The mark follows the part of the history that a reset or fork copies. The result is empty if nobody is excluded.
    """
    reasons = _exclusions_of(snapshot)
    return {EXCLUDED: reasons} if reasons else {}


def snapshot_after_mark(snapshot: Snapshot, mark: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the snapshot of a run that was reset or forked, once its replay has passed the mark.

    ``snapshot`` is the one that holds for the copied part of the history. ``mark`` has the attributes from
    ``mark_attributes``.
    """
    if not (exclusions := mark.get(EXCLUDED)):
        return None if snapshot is None else dict(snapshot)
    return {**(snapshot or {}), EXCLUDED: {**_exclusions_of(snapshot), **exclusions}}


def _exclusions_of(snapshot: Snapshot) -> dict[str, str]:
    return dict((snapshot or {}).get(EXCLUDED) or {})
