"""Sentences about the end of a run."""

from __future__ import annotations

from datetime import datetime

from django.utils.translation import gettext as _

from temporalex_django.present.formatting import capitalize, format_at, format_duration
from temporalex_django.present.view_models import RunView


def ending_sentence(run: RunView, *, now: datetime) -> str:
    """Return one sentence about the end of a closed run.

    For a completed run it names the fields of the result that its class lists.
    """
    end, closed_at = run.end, run.closed_at
    assert closed_at is not None
    words = {
        "at": format_at(closed_at, now),
        "span": format_duration(closed_at - run.created_at),
        "who": end.actor,
        "reason": end.reason,
        "error": end.error,
        "where": end.failed_title,
        "attempts": end.attempts,
        "number": end.number,
        "limit": "" if end.limit is None else format_duration(end.limit),
        "summary": capitalize(", ".join(f"{name}: {text}" for name, text in end.summary)),
    }
    # The only other closed status is continued_as_new: the chain of the run continues.
    return _SENTENCES.get(run.status, _continued_sentence)(run, words)


def _completed_sentence(run: RunView, words: dict[str, object]) -> str:
    if run.end.summary:
        return _("Completed %(at)s after %(span)s. %(summary)s.") % words
    return _("Completed %(at)s after %(span)s.") % words


def _timed_out_sentence(run: RunView, words: dict[str, object]) -> str:
    if run.end.limit is not None:
        return _("Timed out %(at)s (limit: %(limit)s).") % words
    return _("Timed out %(at)s.") % words


def _continued_sentence(run: RunView, words: dict[str, object]) -> str:
    if run.end.number is not None:
        return _("Continued in run %(number)d of this chain.") % words
    return _("Continued in the next run of this chain.")


def _failed_sentence(run: RunView, words: dict[str, object]) -> str:
    end = run.end
    # A single attempt is the normal case, and is not worth a count.
    if end.failed_title and end.attempts > 1:
        return _("Failed %(at)s in “%(where)s”: %(error)s (%(attempts)d attempts).") % words
    if end.failed_title:
        return _("Failed %(at)s in “%(where)s”: %(error)s.") % words
    if end.error:
        return _("Failed %(at)s: %(error)s.") % words
    return _("Failed %(at)s.") % words


def _cancelled_sentence(run: RunView, words: dict[str, object]) -> str:
    # Code may cancel a run, too: then there is no actor.
    if run.end.actor and run.end.reason:
        return _("Cancelled by %(who)s %(at)s: %(reason)s. Cleanup finished.") % words
    if run.end.actor:
        return _("Cancelled by %(who)s %(at)s. Cleanup finished.") % words
    if run.end.reason:
        return _("Cancelled %(at)s: %(reason)s. Cleanup finished.") % words
    return _("Cancelled %(at)s. Cleanup finished.") % words


def _terminated_sentence(run: RunView, words: dict[str, object]) -> str:
    if run.end.actor and run.end.reason:
        return _("Terminated by %(who)s %(at)s: %(reason)s. No cleanup ran.") % words
    if run.end.actor:
        return _("Terminated by %(who)s %(at)s. No cleanup ran.") % words
    if run.end.reason:
        return _("Terminated %(at)s: %(reason)s. No cleanup ran.") % words
    return _("Terminated %(at)s. No cleanup ran.") % words


_SENTENCES = {
    "completed": _completed_sentence,
    "failed": _failed_sentence,
    "cancelled": _cancelled_sentence,
    "terminated": _terminated_sentence,
    "timed_out": _timed_out_sentence,
}
