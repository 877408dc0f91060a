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
_WHY: Final = {
    STARTED: "they started the run",
    FORKED: "they forked the run",
    DECIDED: "they decided an earlier approval",
    ORIGIN: "they started a run that this one comes from",
}
#: Reasons that hold for one run alone, too.
_OF_RUN: Final = (STARTED, FORKED)
_STARTER: Final = ("started_by", "started_as")

Snapshot = Mapping[str, Any] | None


def scope_of(wanted: object) -> str | None:
    """The scope that code asks for with ``four_eyes=``; None for a value that names none."""
    if isinstance(wanted, bool):
        return CHAIN if wanted else ""
    return wanted if isinstance(wanted, str) and wanted in (CHAIN, RUN) else None


def barred(scope: str, snapshot: Snapshot, decided: Iterable[str]) -> dict[str, str]:
    """Everybody who may not decide a task of that scope, by key, with the reason as a sentence.

    ``decided`` are the people who have decided a task of the run itself.
    """
    if not scope:
        return {}
    found = _excluded(snapshot)
    if scope == RUN:
        found = {key: why for key, why in found.items() if why in _OF_RUN}
    found |= dict.fromkeys((key for key in decided if key not in found), DECIDED)
    if starter := (snapshot or {}).get("started_by"):
        found[starter] = STARTED
    return {key: _WHY[why] for key, why in found.items()}


def for_next_run(snapshot: Snapshot, decided: Iterable[str]) -> dict[str, Any] | None:
    """The snapshot of the next run of a chain, as far as it is about people: who started it, and who is shut out."""
    starter = {name: snapshot[name] for name in _STARTER if name in snapshot} if snapshot else {}
    found = _excluded(snapshot)
    found |= dict.fromkeys((key for key in decided if key not in found), DECIDED)
    return {**starter, EXCLUDED: found} if found else starter or None


def for_child(snapshot: Snapshot, decided: Iterable[str]) -> dict[str, Any] | None:
    """The snapshot of a child: everybody whom its parent shuts out when it starts the child."""
    found = {key: why if why == DECIDED else ORIGIN for key, why in _excluded(snapshot).items()}
    found |= dict.fromkeys((key for key in decided if key not in found), DECIDED)
    if starter := (snapshot or {}).get("started_by"):
        found[starter] = ORIGIN
    return {EXCLUDED: found} if found else None


def for_fork(snapshot: Snapshot, forker: Sender | None) -> dict[str, Any] | None:
    """The snapshot of a fork: that of the run which is forked, without the person who forks it."""
    if forker is None or not forker.key:
        return None if snapshot is None else dict(snapshot)
    return {**(snapshot or {}), EXCLUDED: {**_excluded(snapshot), forker.key: FORKED}}


def marked(snapshot: Snapshot) -> dict[str, Any]:
    """The people whom a run shuts out that takes up another one, as its mark has them; nothing where there are none."""
    found = _excluded(snapshot)
    return {EXCLUDED: found} if found else {}


def behind_mark(snapshot: Snapshot, mark: Mapping[str, Any]) -> dict[str, Any] | None:
    """A snapshot behind such a mark."""
    if not (more := mark.get(EXCLUDED)):
        return None if snapshot is None else dict(snapshot)
    return {**(snapshot or {}), EXCLUDED: {**_excluded(snapshot), **more}}


def _excluded(snapshot: Snapshot) -> dict[str, str]:
    return dict((snapshot or {}).get(EXCLUDED) or {})
