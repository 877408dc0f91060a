"""Four eyes: who may not decide a human task, since somebody else has to.

A run shuts people out by their keys. It begins with some of them: its snapshot names who started its chain, and under
``EXCLUDED`` who is shut out besides, with the reason. The people who decide its human tasks are added as they decide.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from temporalex_django.core.senders import Sender

#: The scopes of four eyes: the whole chain and the runs that it comes from, or one run. "" is without four eyes.
CHAIN: Final = "chain"
RUN: Final = "run"
#: The name in a snapshot, and in the mark of a reset or fork: reasons, by the keys of people.
EXCLUDED: Final = "excluded"
STARTED, FORKED, DECIDED, ORIGIN = "started", "forked", "decided", "origin"
_REASON_TEXTS: Final = {
    STARTED: "they started the run",
    FORKED: "they forked the run",
    DECIDED: "they decided an earlier approval",
    ORIGIN: "they started a run that this one comes from",
}
#: Reasons that hold for one run alone, too.
_RUN_REASONS: Final = (STARTED, FORKED)
_STARTER_KEYS: Final = ("started_by", "started_as")

Snapshot = Mapping[str, Any] | None


def parse_scope(option: object) -> str | None:
    """The scope that code asks for with ``four_eyes=``; None for a value that names none."""
    if isinstance(option, bool):
        return CHAIN if option else ""
    return option if isinstance(option, str) and option in (CHAIN, RUN) else None


def barred_people(scope: str, snapshot: Snapshot, deciders: Iterable[str]) -> dict[str, str]:
    """Everybody who may not decide a task of that scope, by key, with the reason as a sentence.

    ``deciders`` are the people who have decided a task of the run itself.
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
    """The snapshot of the next run of a chain, as far as it is about people: who started it, and who is shut out."""
    starter = {name: snapshot[name] for name in _STARTER_KEYS if name in snapshot} if snapshot else {}
    reasons = _exclusions_of(snapshot)
    reasons |= dict.fromkeys((key for key in deciders if key not in reasons), DECIDED)
    return {**starter, EXCLUDED: reasons} if reasons else starter or None


def child_snapshot(snapshot: Snapshot, deciders: Iterable[str]) -> dict[str, Any] | None:
    """The snapshot of a child: everybody whom its parent shuts out when it starts the child."""
    reasons = {key: reason if reason == DECIDED else ORIGIN for key, reason in _exclusions_of(snapshot).items()}
    reasons |= dict.fromkeys((key for key in deciders if key not in reasons), DECIDED)
    if starter := (snapshot or {}).get("started_by"):
        reasons[starter] = ORIGIN
    return {EXCLUDED: reasons} if reasons else None


def fork_snapshot(snapshot: Snapshot, forker: Sender | None) -> dict[str, Any] | None:
    """The snapshot of a fork: that of the run which is forked, without the person who forks it."""
    if forker is None or not forker.key:
        return None if snapshot is None else dict(snapshot)
    return {**(snapshot or {}), EXCLUDED: {**_exclusions_of(snapshot), forker.key: FORKED}}


def mark_attributes(snapshot: Snapshot) -> dict[str, Any]:
    """The people whom a run shuts out that takes up another one, as its mark has them; nothing where there are none."""
    reasons = _exclusions_of(snapshot)
    return {EXCLUDED: reasons} if reasons else {}


def snapshot_after_mark(snapshot: Snapshot, mark: Mapping[str, Any]) -> dict[str, Any] | None:
    """A snapshot behind such a mark."""
    if not (exclusions := mark.get(EXCLUDED)):
        return None if snapshot is None else dict(snapshot)
    return {**(snapshot or {}), EXCLUDED: {**_exclusions_of(snapshot), **exclusions}}


def _exclusions_of(snapshot: Snapshot) -> dict[str, str]:
    return dict((snapshot or {}).get(EXCLUDED) or {})
