"""Sentences about a human task: its question, who asked for it and when, its claim, and its end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django.utils.translation import gettext as _

from temporalex_django.present.formatting import format_at, format_time, humanize_name, join_with_and

_MAX_REASONS = 5


class Absent(NamedTuple):
    """Somebody whom a human task asks and who is not there.

    ``kind`` says why: a "user" who is gone or inactive, a "group" that does not exist, an "empty_group" without an
    active member, or a permission ("perm") that nobody has.
    """

    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """The facts about a human task that its sentence needs.

    ``about`` is the text of the object that the run is about, or empty. Names of people are empty where code acted.
    ``ending`` is the end of a closed task: decided (see ``outcome`` and ``decided_by``), overdue, cancelled or
    run_closed. ``nobody_left`` is True if four eyes exclude everybody who could decide it. ``absent`` are those whom it
    asks, if none of them is there.
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
    absent: Sequence[Absent] = ()


def absent_sentence(absent: Sequence[Absent]) -> str:
    """Return the sentence that says why nobody can decide a human task; the task asks only people who are absent."""
    texts = {
        "user": _("the user %(name)s is gone or inactive"),
        "group": _("the group %(name)s does not exist"),
        "empty_group": _("the group %(name)s has no active member"),
        "perm": _("nobody has the permission %(name)s"),
    }
    reasons = [texts[entry.kind] % {"name": entry.name} for entry in dict.fromkeys(absent)]
    shown_reasons = reasons[:_MAX_REASONS]
    if len(reasons) > len(shown_reasons):
        shown_reasons.append(_("%(count)d more are absent") % {"count": len(reasons) - len(shown_reasons)})
    return _("Nobody can decide it: %(reasons)s.") % {"reasons": join_with_and(shown_reasons)}


def candidate_names(candidates: Iterable[str]) -> list[str]:
    """Return the candidates of a human task as people read them, each once: ``ann``, ``the group managers``.

    ``candidates`` are texts as in ``HumanTask.asked``: ``user:ann``, ``group:managers``, ``perm:shop.approve``.
    """
    texts = {
        "user": "%(name)s",
        "group": _("the group %(name)s"),
        "perm": _("anyone with the permission %(name)s"),
    }
    parts = [candidate.partition(":") for candidate in dict.fromkeys(candidates)]
    return [texts.get(kind, "%(name)s") % {"name": name or kind} for kind, _colon, name in parts]


def step_name(key: str) -> str:
    """Return the name, in words, of the graph step that opened the human task with that key.

    It is empty for a task that ``api.approval`` opened.
    """
    # The key of a call is its number; a step that asks again appends a number to its key.
    name = key.partition("#")[0]
    if not name or name.isdigit():
        return ""
    return humanize_name(name)


def describe_task(task: TaskView, *, now: datetime) -> str:
    """Return a few whole sentences about a human task as it is at ``now``."""
    sentences = [_question_sentence(task)]
    if task.closed_at is not None:
        return " ".join([*sentences, _ending_sentence(task, task.closed_at, now)])
    words = {"who": task.requested_by, "at": format_at(task.opened_at, now)}
    sentences.append((_("Requested by %(who)s %(at)s.") if task.requested_by else _("Requested %(at)s.")) % words)
    if task.due_at is not None:
        due_text = _("Decide by %(due)s.") if task.due_at > now else _("It was due %(at)s.")
        sentences.append(due_text % {"due": format_time(task.due_at, now), "at": format_at(task.due_at, now)})
    if task.escalated_at is not None:
        sentences.append(
            _("Nobody decided by %(at)s, so more people may decide now.") % {"at": format_time(task.escalated_at, now)}
        )
    # A claim that ran out has no effect any more, although its columns stay set.
    if task.claimed_until is not None and task.claimed_until > now:
        words = {"who": task.claimed_by, "until": format_time(task.claimed_until, now)}
        sentences.append(_("%(who)s has claimed it until %(until)s.") % words)
    if task.nobody_left:
        sentences.append(_("Nobody is left who may decide it, because every candidate took part in the run."))
    if task.absent:
        sentences.append(absent_sentence(task.absent))
    return " ".join(sentences)


def _question_sentence(task: TaskView) -> str:
    title = task.title.rstrip(".")
    if task.about:
        # The object comes between the question and its mark, so the mark is dropped.
        return _("%(title)s (%(about)s).") % {"title": title.rstrip("?!"), "about": task.about}
    if title.endswith(("?", "!")):
        return title
    return f"{title}."


def _ending_sentence(task: TaskView, closed_at: datetime, now: datetime) -> str:
    words = {"who": task.decided_by, "outcome": task.outcome, "at": format_at(closed_at, now)}
    match task.ending:
        case "decided" if task.decided_by:
            return _("%(who)s decided “%(outcome)s” %(at)s.") % words
        case "decided":
            return _("It was decided %(at)s: “%(outcome)s”.") % words
        case "overdue":
            return _("Nobody decided in time, so it became overdue %(at)s.") % words
        case "cancelled":
            return _("The run stopped waiting for it %(at)s.") % words
    return _("The run closed %(at)s, before anybody decided.") % words
