"""How a run ended."""

from __future__ import annotations

from datetime import datetime

from django.utils.translation import gettext as _

from temporalex_django.present.facts import RunNow
from temporalex_django.present.words import span, when


def ended(run: RunNow, *, now: datetime) -> str:
    """One sentence; a completed run tells the fields of its result that its class names."""
    end, at = run.end, run.closed_at
    assert at is not None
    words = {
        "at": when(at, now),
        "span": span(at - run.created_at),
        "who": end.who,
        "reason": end.reason,
        "error": end.error,
        "where": end.at,
        "attempts": end.attempts,
        "number": end.number,
        "limit": "" if end.limit is None else span(end.limit),
        "summary": ", ".join(f"{name} {value}" for name, value in end.summary),
    }
    return _TEXTS.get(run.status, _continued)(run, words)


def _completed(run: RunNow, words: dict[str, object]) -> str:
    if run.end.summary:
        return _("Completed %(at)s after %(span)s: %(summary)s.") % words
    return _("Completed %(at)s after %(span)s.") % words


def _timed_out(run: RunNow, words: dict[str, object]) -> str:
    if run.end.limit is not None:
        return _("Ran out of time %(at)s (limit %(limit)s).") % words
    return _("Ran out of time %(at)s.") % words


def _continued(run: RunNow, words: dict[str, object]) -> str:
    if run.end.number is not None:
        return _("Goes on in run %(number)d of this chain.") % words
    return _("Goes on in the next run of this chain.")


def _failed(run: RunNow, words: dict[str, object]) -> str:
    end = run.end
    if end.at and end.attempts > 1:
        return _("Failed %(at)s at %(where)s: %(error)s (after %(attempts)d attempts).") % words
    if end.at:
        return _("Failed %(at)s at %(where)s: %(error)s.") % words
    if end.error:
        return _("Failed %(at)s: %(error)s.") % words
    return _("Failed %(at)s.") % words


def _cancelled(run: RunNow, words: dict[str, object]) -> str:
    if run.end.who and run.end.reason:
        return _("Cancelled by %(who)s %(at)s: %(reason)s. Clean-up is done.") % words
    if run.end.who:
        return _("Cancelled by %(who)s %(at)s. Clean-up is done.") % words
    if run.end.reason:
        return _("Cancelled %(at)s: %(reason)s. Clean-up is done.") % words
    return _("Cancelled %(at)s. Clean-up is done.") % words


def _terminated(run: RunNow, words: dict[str, object]) -> str:
    if run.end.who and run.end.reason:
        return _("Terminated by %(who)s %(at)s (%(reason)s): nothing was cleaned up.") % words
    if run.end.who:
        return _("Terminated by %(who)s %(at)s: nothing was cleaned up.") % words
    if run.end.reason:
        return _("Terminated %(at)s (%(reason)s): nothing was cleaned up.") % words
    return _("Terminated %(at)s: nothing was cleaned up.") % words


_TEXTS = {
    "completed": _completed,
    "failed": _failed,
    "cancelled": _cancelled,
    "terminated": _terminated,
    "timed_out": _timed_out,
}
