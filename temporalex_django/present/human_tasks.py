"""What a human task says: what is asked, about which object, at whose request, since when and until when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.utils.translation import gettext as _

from temporalex_django.present.words import spelt, when


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskNow:
    """A human task at a moment. ``about`` is what the object calls itself, empty for none; names are empty for code.

    ``ending`` is what became of a closed one: decided (``outcome``, by ``decided_by``), overdue, cancelled, run_closed.
    ``nobody_left``: four eyes shut everybody out whom it asks.
    """

    title: str
    about: str
    requested_by: str
    opened_at: datetime
    due_at: datetime | None = None
    escalated_at: datetime | None = None
    claimed_by: str = ""
    claimed_until: datetime | None = None
    closed_at: datetime | None = None
    ending: str = ""
    outcome: str = ""
    decided_by: str = ""
    nobody_left: bool = False


def people_of(words: Iterable[str]) -> list[str]:
    """Name for readers the people that a task asks, from words as ``HumanTask.asked`` has them; each once."""
    texts = {
        "user": "%(name)s",
        "group": _("the group %(name)s"),
        "perm": _("anyone with the permission %(name)s"),
    }
    split = [word.partition(":") for word in dict.fromkeys(words)]
    return [texts.get(kind, "%(name)s") % {"name": name or kind} for kind, _colon, name in split]


def step_of(key: str) -> str:
    """The step of a graph that asks, as words, from the key of a human task; empty where a call asks."""
    name = key.partition("#")[0]
    return "" if not name or name.isdigit() else spelt(name)


def asked(task: TaskNow, *, now: datetime) -> str:
    """In a few whole sentences."""
    said = [_question(task)]
    if task.closed_at is not None:
        return " ".join([*said, _ended(task, task.closed_at, now)])
    words = {"who": task.requested_by, "since": when(task.opened_at, now)}
    said.append((_("Asked by %(who)s, %(since)s.") if task.requested_by else _("Asked %(since)s.")) % words)
    if task.due_at is not None:
        due = _("It is to be decided by %(due)s.") if task.due_at > now else _("It was due %(due)s.")
        said.append(due % {"due": when(task.due_at, now)})
    if task.escalated_at is not None:
        said.append(_("Nobody had decided by %(at)s, so others may as well.") % {"at": when(task.escalated_at, now)})
    if task.claimed_until is not None and task.claimed_until > now:
        words = {"who": task.claimed_by, "until": when(task.claimed_until, now)}
        said.append(_("%(who)s has claimed it until %(until)s.") % words)
    if task.nobody_left:
        said.append(_("Nobody is left who may decide it: everybody whom it asks has had a part in the run."))
    return " ".join(said)


def _question(task: TaskNow) -> str:
    title = task.title.rstrip(".")
    if task.about:
        return _("%(title)s (%(about)s).") % {"title": title.rstrip("?!"), "about": task.about}
    return title if title.endswith(("?", "!")) else f"{title}."


def _ended(task: TaskNow, at: datetime, now: datetime) -> str:
    words = {"who": task.decided_by, "outcome": task.outcome, "at": when(at, now)}
    match task.ending:
        case "decided" if task.decided_by:
            return _("%(who)s decided “%(outcome)s”, %(at)s.") % words
        case "decided":
            return _("“%(outcome)s” was decided, %(at)s.") % words
        case "overdue":
            return _("Nobody had decided by %(at)s, when it was due.") % words
        case "cancelled":
            return _("The run did not wait for it any more, %(at)s.") % words
    return _("The run ended before somebody decided, %(at)s.") % words
