"""Sentences about the state of a run: what it does or waits for, since when, and whether a person should look at it.

Each translated text is a whole sentence. Two facts that belong together are two sentences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from temporalex_django.present import problems
from temporalex_django.present.formatting import (
    capitalize,
    format_at,
    format_duration,
    format_time,
    join_with_and,
    join_with_or,
    shorten,
)
from temporalex_django.present.view_models import DUE_GRACE_PERIOD, LATE_PERIOD, ActivityView, RunView, WaitView


def ending_sentence(run: RunView, *, now: datetime) -> str:
    """Return the sentence about how and when a closed run ended.

    An example is "Completed at 14:02 after 3 min." For a completed run it also contains the fields of the result that
    the class declares for its summary.
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
    if run.started_at is None:
        return _("Timed out %(at)s, before it began.") % words
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
    if run.started_at is None:
        return _cancelled_early_sentence(run, words)
    # Code may cancel a run, too: then there is no actor.
    if run.end.actor and run.end.reason:
        return _("Cancelled by %(who)s %(at)s: %(reason)s. Cleanup finished.") % words
    if run.end.actor:
        return _("Cancelled by %(who)s %(at)s. Cleanup finished.") % words
    if run.end.reason:
        return _("Cancelled %(at)s: %(reason)s. Cleanup finished.") % words
    return _("Cancelled %(at)s. Cleanup finished.") % words


def _cancelled_early_sentence(run: RunView, words: dict[str, object]) -> str:
    if run.end.actor and run.end.reason:
        return _("Cancelled by %(who)s %(at)s, before it began: %(reason)s.") % words
    if run.end.actor:
        return _("Cancelled by %(who)s %(at)s, before it began.") % words
    if run.end.reason:
        return _("Cancelled %(at)s, before it began: %(reason)s.") % words
    return _("Cancelled %(at)s, before it began.") % words


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


_MAX_NAMES = 3
#: Kinds of waits that a person ends by a decision, or by an event.
_DECISION_KINDS = frozenset({"step", "human_task"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The state of a run: a text for people, and facts for programs.

    - ``state``: one word, for programs and styles.
    - ``text``: one or more sentences; ``short_text`` has at most 140 characters of them.
    - ``trouble``: True if a person should look at the run.
    - ``since``: the time at which the run came into this state, or None if unknown.
    - ``until``: the time at which it leaves the state by itself, or None if unknown.
    """

    state: str
    text: str
    trouble: bool = False
    since: datetime | None = None
    until: datetime | None = None

    @property
    def short_text(self) -> str:
        return shorten(self.text)


def build_summary(run: RunView, *, now: datetime) -> Summary:
    """Return the summary of a run as it is at ``now``; failed messages of its chain come first in the text."""
    run_summary = _state_summary(run, now)
    if not run.failed_messages:
        return run_summary
    failed_text = ngettext(
        "%(count)d signal failed in its handler and is kept: deliver it again, or discard it.",
        "%(count)d signals failed in their handler and are kept: deliver them again, or discard them.",
        run.failed_messages,
    ) % {"count": run.failed_messages}
    # A failed message does not stop its run (see decision 46), so it is easily overlooked: it comes first.
    return replace(run_summary, text=f"{failed_text} {run_summary.text}", trouble=True)


def _state_summary(run: RunView, now: datetime) -> Summary:
    """Return the summary of a run without its failed messages."""
    if run.closed_at is not None:
        return Summary(
            state=run.status,
            text=ending_sentence(run, now=now),
            trouble=run.status in ("failed", "timed_out"),
            since=run.closed_at,
        )
    # What keeps the run from continuing comes first: it hides what the run would wait for otherwise.
    if run.switch is not None:
        text = problems.switched_off_sentence(run.switch, run.noun or run.title, now=now)
        return Summary(state="off", text=text, since=run.switch.since)
    if run.blocked is not None:
        text = problems.stopped_sentence(run.blocked, now=now)
        return Summary(state="blocked", text=text, trouble=True, since=run.blocked.since, until=run.blocked.next_try)
    if run.paused is not None:
        return Summary(state="paused", text=problems.paused_sentence(run.paused, now=now), since=run.paused.since)
    if run.is_started:
        return _open_summary(run, now)
    return _unstarted_summary(run, now)


def _open_summary(run: RunView, now: datetime) -> Summary:
    """Return the summary of a started run that is neither blocked, paused nor switched off."""
    if run.due_since is not None and run.workers is not None and (due_summary := _due_summary(run, run.due_since, now)):
        return due_summary
    # A wait of the kind other has no name that means something to people.
    waits = [wait for wait in run.waits if wait.kind != "other"]
    count = len(waits) + len(run.activities) + run.more_activities
    if count > 1:
        return _several_summary(run, waits, count, now)
    if run.activities:
        return activity_summary(run.activities[0], now)
    if waits:
        return _wait_summary(waits[0], now, may_decide=run.may_decide)
    since = run.started_at or run.created_at
    text = _("Running since %(since)s (%(span)s).") % {
        "since": format_time(since, now),
        "span": format_duration(now - since),
    }
    return Summary(state="running", text=text, since=since)


def _due_summary(run: RunView, since: datetime, now: datetime) -> Summary | None:
    """Return None while the time is too short to mention: a live worker takes due work within seconds."""
    assert run.workers is not None
    words = {"since": format_time(since, now), "span": format_duration(now - since), "missing": run.workers.missing}
    # A worker may need a moment for what has just become due.
    if run.workers.missing is not None and now - since >= DUE_GRACE_PERIOD:
        text = _("Due since %(since)s. It is waiting for %(missing)s.") % words
        return Summary(state="no_worker", text=text, trouble=True, since=since)
    # Workers exist, so this is load or a stuck worker: wait longer before calling it trouble.
    if now - since >= LATE_PERIOD:
        text = _("Overdue by %(span)s. A live worker could run it, but none has picked it up.") % words
        return Summary(state="late", text=text, trouble=True, since=since)
    return None


def _unstarted_summary(run: RunView, now: datetime) -> Summary:
    """Return the summary of an open run that no worker has begun to run yet."""
    begin = run.starts_at or run.created_at
    if begin > now:
        return _future_summary(run, begin, now)
    wait_time = now - begin
    words = {"span": format_duration(wait_time), "title": run.title, "version": run.version}
    if wait_time < DUE_GRACE_PERIOD or run.workers is None:
        text = _("Started %(span)s ago; no worker has picked it up yet.") % words
        return Summary(state="not_taken_up", text=text, since=begin)
    if run.workers.missing is not None:
        start_text = _("Started %(span)s ago; no worker has picked it up yet. It is waiting for %(missing)s.") % {
            **words,
            "missing": run.workers.missing,
        }
    else:
        start_text = _("Started %(span)s ago; no worker has picked it up yet, although a live worker could.") % words
    alive_text = ngettext("%(count)d worker is alive.", "%(count)d workers are alive.", run.workers.alive_count)
    text = f"{start_text} {alive_text % {'count': run.workers.alive_count}}"
    return Summary(state="not_taken_up", text=text, trouble=True, since=begin)


def _future_summary(run: RunView, begin: datetime, now: datetime) -> Summary:
    text = _("Starts %(at)s.") % {"at": format_at(begin, now)}
    if run.start_limit is not None:
        count, seconds = run.start_limit
        limit_text = ngettext(
            "It is throttled: at most %(count)d run can start in any period of %(span)s.",
            "It is throttled: at most %(count)d runs can start in any period of %(span)s.",
            count,
        ) % {"count": count, "span": format_duration(seconds)}
        text = f"{text} {limit_text}"
    if run.start_before is not None:
        limit = format_time(run.start_before, now)
        text = f"{text} {_('Times out if it has not begun by %(limit)s.') % {'limit': limit}}"
    return Summary(state="not_begun", text=text, since=run.created_at, until=begin)


# -- one thing --------------------------------------------------------------------------------------------------------


def activity_summary(activity_view: ActivityView, now: datetime) -> Summary:
    """Return the summary of one activity: of a run that waits for nothing else, or of a background task."""
    state = problems.activity_state(activity_view, now)
    if state == "failing":
        text, until = problems.failing_sentence(activity_view, now), activity_view.activity.next_try
        # An activity that named the time of its next attempt is in no trouble.
        failure = activity_view.activity.last_failure
        trouble = failure is None or not failure.retry_later
        return Summary(state=state, text=text, trouble=trouble, since=_failing_since(activity_view), until=until)
    if state == "silent":
        return Summary(
            state=state, text=problems.silent_sentence(activity_view, now), trouble=True, since=activity_view.activity.beat_at,
            until=activity_view.activity.expires_at,
        )  # fmt: skip
    if activity_view.switch is not None and state == "off":
        return Summary(
            state=state,
            text=problems.switched_off_sentence(
                activity_view.switch, activity_view.noun or activity_view.title, now=now
            ),
            since=activity_view.switch.since,
            until=activity_view.switch.until,
        )
    if state == "no_worker":
        return Summary(
            state=state,
            text=problems.untaken_sentence(activity_view, now),
            trouble=True,
            since=activity_view.activity.due_at,
        )
    words = {
        "activity": capitalize(activity_view.title),
        "attempt": activity_view.activity.attempt,
        "worker": activity_view.worker,
    }
    if state == "queued" and (due_at := activity_view.activity.due_at) > now:
        text = _("%(activity)s starts %(at)s.") % {**words, "at": format_at(due_at, now)}
        return Summary(state="activity", text=text, until=due_at)
    if state == "queued":
        since, words["activity"] = activity_view.activity.due_at, capitalize(activity_view.noun or activity_view.title)
        text = _("%(activity)s has been waiting to start since %(since)s.") % {
            **words,
            "since": format_time(since, now),
        }
        return Summary(state="activity", text=text, since=since)
    started_at = activity_view.activity.started_at or activity_view.activity.due_at
    words["span"] = format_duration(now - started_at)
    text = _("%(activity)s: attempt %(attempt)d, running for %(span)s on %(worker)s.") % words
    return Summary(state="activity", text=text, since=started_at, until=activity_view.activity.expires_at)


def _failing_since(activity_view: ActivityView) -> datetime | None:
    failure = activity_view.activity.last_failure
    if failure is None:
        return None
    return failure.since or failure.at


def _wait_summary(wait: WaitView, now: datetime, *, may_decide: bool) -> Summary:
    """Return the summary of a run that waits for one thing, which is no activity."""
    # The summary of the child is quoted as it is, with its own times.
    if wait.kind == "child":
        text = _child_sentence(wait)
    else:
        step_sentence = _event_sentence if wait.is_event else _decision_sentence
        sentence_functions = {"timer": _timer_sentence, "step": step_sentence, "human_task": _decision_sentence}
        text = sentence_functions.get(wait.kind, _phase_sentence)(wait, now)
    if may_decide and wait.kind in _DECISION_KINDS:
        text = f"{text} {_('You can send it.') if wait.is_event else _('You can decide this.')}"
    # For programs and styles a step and a human task are the same: the run goes on by a resume from outside.
    state = "decision" if wait.kind in _DECISION_KINDS else wait.kind
    return Summary(state=state, text=text, since=wait.since, until=wait.until)


def _timer_sentence(wait: WaitView, now: datetime) -> str:
    """Return until when a run sleeps, and what its code does then."""
    until = "?"
    if wait.until is not None:
        until = format_time(wait.until, now)
    if wait.followed_by:
        return _("Sleeping until %(until)s. Then: %(then)s.") % {"until": until, "then": wait.followed_by}
    return _("Sleeping until %(until)s.") % {"until": until}


def _child_sentence(wait: WaitView) -> str:
    words = {"title": wait.noun or wait.title, "key": wait.key, "place": wait.place}
    if wait.place:
        return _("Waiting for %(title)s %(key)s: “%(place)s”") % words
    return _("Waiting for %(title)s %(key)s.") % words


def _event_sentence(wait: WaitView, now: datetime) -> str:
    """Return the sentences about a step that waits for an event."""
    since = "?" if wait.since is None else format_time(wait.since, now)
    words = {"title": wait.noun or wait.title, "events": join_with_or(wait.messages), "since": since}
    text = _("Waiting since %(since)s for an event of “%(title)s”: %(events)s.") % words
    if wait.until is None:
        return text
    until = format_time(wait.until, now)
    return f"{text} {_('If none comes by %(until)s, the run continues by itself.') % {'until': until}}"


def _decision_sentence(wait: WaitView, now: datetime) -> str:
    """Return the sentences about a wait for a decision."""
    since = "?"
    if wait.since is not None:
        since = format_time(wait.since, now)
    words = {"title": wait.title, "events": join_with_or(wait.messages), "role": wait.role, "since": since}
    if wait.role:
        text = _("Waiting since %(since)s for a decision by %(role)s on “%(title)s”: %(events)s.") % words
    else:
        text = _("Waiting since %(since)s for %(title)s: %(events)s.") % {**words, "title": wait.noun or wait.title}
    if wait.until is None:
        return text
    until = format_time(wait.until, now)
    return f"{text} {_('If nobody decides by %(until)s, the run continues by itself.') % {'until': until}}"


def _phase_sentence(wait: WaitView, now: datetime) -> str:
    """Return the sentence about a wait for messages, with the phase's title if the code has one."""
    since = wait.since or now
    words = {
        "title": capitalize(wait.title), "messages": _awaited_text(wait), "since": format_time(since, now), "span": format_duration(now - since),
        "until": "" if wait.until is None else format_at(wait.until, now),
    }  # fmt: skip
    if wait.title and wait.until is not None:
        return _("%(title)s since %(since)s (%(span)s). Waiting for %(messages)s. Times out %(until)s.") % words
    if wait.title:
        return _("%(title)s since %(since)s (%(span)s). Waiting for %(messages)s.") % words
    if wait.until is not None:
        return _("Waiting for %(messages)s since %(since)s (%(span)s). Times out %(until)s.") % words
    return _("Waiting for %(messages)s since %(since)s (%(span)s).") % words


def _awaited_text(wait: WaitView) -> str:
    if wait.kind == "condition":
        return _("a condition")
    if wait.kind == "cancel":
        return _("somebody to cancel it")
    return join_with_or(wait.messages) or _("its timeout")


# -- several things ---------------------------------------------------------------------------------------------------


def _several_summary(run: RunView, waits: list[WaitView], count: int, now: datetime) -> Summary:
    """Return the summary of a run that waits for ``count`` things, of which a few are named."""
    texts = [*_short_texts(run, waits, now)]
    # Troubled things come first, so the names that fit are the ones to look at.
    named_texts = [text for _trouble, text in texts[:_MAX_NAMES]]
    rest_count = count - len(named_texts)
    words = {"count": count, "things": join_with_and(named_texts), "more": rest_count}
    if rest_count:
        joined_names = ", ".join(named_texts)
        text = _("Waiting for %(count)d things: %(things)s, and %(more)d more.") % {**words, "things": joined_names}
    else:
        text = _("Waiting for %(count)d things: %(things)s.") % words
    trouble = any(is_trouble for is_trouble, _text in texts)
    return Summary(state="several", text=text, trouble=trouble, since=run.started_at)


def _short_texts(run: RunView, waits: list[WaitView], now: datetime) -> Iterator[tuple[bool, str]]:
    """Yield ``(trouble, text)`` for each thing that a run waits for, things to look at first."""
    texts = [problems.short_activity(activity_view, now) for activity_view in run.activities]
    texts += [(False, _short_wait(wait, now)) for wait in waits]
    # The sort is stable: within each group the things keep the order in which the code waits for them.
    yield from sorted(texts, key=lambda pair: not pair[0])


def _short_wait(wait: WaitView, now: datetime) -> str:
    words = {
        "title": wait.noun or wait.title,
        "events": join_with_or(wait.messages),
        "role": wait.role,
        "key": wait.key,
    }
    if wait.kind == "timer":
        return _("a timer (%(until)s)") % {"until": "?" if wait.until is None else format_time(wait.until, now)}
    if wait.kind == "child":
        return _("%(title)s %(key)s") % words
    if wait.kind in _DECISION_KINDS and wait.role:
        return _("a decision by %(role)s (%(events)s)") % words
    return join_with_or(wait.messages) or _awaited_text(wait)
