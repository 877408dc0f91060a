"""Where a run stands, in a sentence or two: what it does, since when, what it waits for, whether it is in trouble.

Each message is whole, so that it can be translated; where two belong together they are two sentences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from temporalex_django.present import endings, troubles
from temporalex_django.present.facts import LATE, PATIENCE, ActivityNow, RunNow, WaitNow
from temporalex_django.present.words import all_of, any_of, shortened, span, when, whole

_NAMED = 3
#: Waits that somebody ends who decides.
_DECIDED = frozenset({"step", "human_task"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What is said of a run.

    ``state`` is a word for programs and styles. ``trouble``: somebody should look at it. ``text`` is whole, ``short``
    the same in at most 140 characters. ``since`` is when it came into that state, ``until`` when it leaves it by
    itself, as far as that is known.
    """

    state: str
    text: str
    trouble: bool = False
    since: datetime | None = None
    until: datetime | None = None

    @property
    def short(self) -> str:
        return shortened(self.text)


def summary(run: RunNow, *, now: datetime) -> Summary:
    """Where it stands at ``now``."""
    found = _summary(run, now)
    if not run.failed_messages:
        return found
    failed = ngettext(
        "%(count)d signal failed in its handler and is kept: deliver it again, or discard it.",
        "%(count)d signals failed in their handler and are kept: deliver them again, or discard them.",
        run.failed_messages,
    ) % {"count": run.failed_messages}
    return replace(found, text=f"{failed} {found.text}", trouble=True)


def _summary(run: RunNow, now: datetime) -> Summary:
    if run.closed_at is not None:
        return Summary(
            state=run.status,
            text=endings.ended(run, now=now),
            trouble=run.status in ("failed", "timed_out"),
            since=run.closed_at,
        )
    if run.off is not None:
        text = troubles.switched_off(run.off, run.title, now=now)
        return Summary(state="off", text=text, since=run.off.since)
    if run.blocked is not None:
        text = troubles.stopped(run.blocked, now=now)
        return Summary(state="blocked", text=text, trouble=True, since=run.blocked.since, until=run.blocked.next_try)
    if run.paused is not None:
        return Summary(state="paused", text=troubles.paused(run.paused, now=now), since=run.paused.since)
    return _open(run, now) if run.taken_up else _not_taken_up(run, now)


def _open(run: RunNow, now: datetime) -> Summary:
    """One that goes on, or waits for something."""
    if run.due_since is not None and run.workers is not None and (untaken := _untaken(run, run.due_since, now)):
        return untaken
    waits = [wait for wait in run.waits if wait.kind != "other"]
    count = len(waits) + len(run.activities) + run.more_activities
    if count > 1:
        return _several(run, waits, count, now)
    if run.activities:
        return _activity(run.activities[0], now)
    if waits:
        return _wait(waits[0], now, may_decide=run.may_decide)
    since = run.started_at or run.created_at
    text = _("Under way since %(since)s (%(span)s).") % {"since": when(since, now), "span": span(now - since)}
    return Summary(state="running", text=text, since=since)


def _untaken(run: RunNow, since: datetime, now: datetime) -> Summary | None:
    """One that is due, and that no worker takes up; None where it is too early to say so."""
    assert run.workers is not None
    words = {"since": when(since, now), "span": span(now - since), "missing": run.workers.missing}
    if run.workers.missing is not None and now - since >= PATIENCE:
        text = _("Due since %(since)s, and no live worker takes it up: it waits for %(missing)s.") % words
        return Summary(state="no_worker", text=text, trouble=True, since=since)
    if now - since >= LATE:
        text = _("Due for %(span)s, although a live worker could take it up.") % words
        return Summary(state="late", text=text, trouble=True, since=since)
    return None


def _not_taken_up(run: RunNow, now: datetime) -> Summary:
    waited = now - run.created_at
    words = {"span": span(waited), "title": run.title, "version": run.version}
    if waited < PATIENCE or run.workers is None:
        text = _("Started %(span)s ago, not taken up yet.") % words
        return Summary(state="not_taken_up", text=text, since=run.created_at)
    if run.workers.missing is not None:
        said = _("Started %(span)s ago, not taken up yet: %(missing)s.") % {**words, "missing": run.workers.missing}
    else:
        said = _("Started %(span)s ago, not taken up yet, although a live worker could.") % words
    alive = ngettext("%(count)d worker is alive.", "%(count)d workers are alive.", run.workers.alive)
    text = f"{said} {alive % {'count': run.workers.alive}}"
    return Summary(state="not_taken_up", text=text, trouble=True, since=run.created_at)


# -- one thing --------------------------------------------------------------------------------------------------------


def _activity(one: ActivityNow, now: datetime) -> Summary:
    """How an activity stands."""
    state = troubles.state_of(one, now)
    if state == "failing":
        text, until = troubles.failing(one, now), one.activity.next_try
        return Summary(state=state, text=text, trouble=True, since=_failing_since(one), until=until)
    if state == "silent":
        return Summary(
            state=state, text=troubles.silent(one, now), trouble=True, since=one.activity.beat_at,
            until=one.activity.expires_at,
        )  # fmt: skip
    if one.off is not None and state == "off":
        return Summary(state=state, text=troubles.switched_off(one.off, one.title, now=now), since=one.off.since)
    if state == "no_worker":
        return Summary(state=state, text=troubles.untaken(one, now), trouble=True, since=one.activity.due_at)
    words = {"activity": whole(one.title), "attempt": one.activity.attempt, "worker": one.worker}
    if state == "queued":
        since = one.activity.due_at
        text = _("%(activity)s is to begin since %(since)s.") % {**words, "since": when(since, now)}
        return Summary(state="activity", text=text, since=since)
    began = one.activity.started_at or one.activity.due_at
    words["span"] = span(now - began)
    if one.activity.attempt > 1:
        text = _("%(activity)s: attempt %(attempt)d, running for %(span)s on %(worker)s.") % words
    else:
        text = _("%(activity)s: first attempt, running for %(span)s on %(worker)s.") % words
    return Summary(state="activity", text=text, since=began, until=one.activity.expires_at)


def _failing_since(one: ActivityNow) -> datetime | None:
    failure = one.activity.last_failure
    return None if failure is None else failure.since or failure.at


def _wait(wait: WaitNow, now: datetime, *, may_decide: bool) -> Summary:
    if wait.kind == "child":
        text = _child(wait)
    else:
        told = {"timer": _asleep, "step": _decision, "human_task": _decision}
        text = told.get(wait.kind, _phase)(wait, now)
    if may_decide and wait.kind in _DECIDED:
        text = f"{text} {_('You can decide.')}"
    state = "decision" if wait.kind in _DECIDED else wait.kind
    return Summary(state=state, text=text, since=wait.since, until=wait.until)


def _asleep(wait: WaitNow, now: datetime) -> str:
    until = "?" if wait.until is None else when(wait.until, now)
    if wait.then:
        return _("Asleep until %(until)s, then %(then)s.") % {"until": until, "then": wait.then}
    return _("Asleep until %(until)s.") % {"until": until}


def _child(wait: WaitNow) -> str:
    words = {"title": wait.title, "key": wait.key, "place": wait.place}
    if wait.place:
        return _("Waiting for %(title)s %(key)s: “%(place)s”") % words
    return _("Waiting for %(title)s %(key)s.") % words


def _decision(wait: WaitNow, now: datetime) -> str:
    since = "?" if wait.since is None else when(wait.since, now)
    words = {"title": wait.title, "events": any_of(wait.messages), "role": wait.role, "since": since}
    if wait.role:
        text = _("Waiting for a decision since %(since)s: %(events)s for %(title)s (%(role)s).") % words
    else:
        text = _("Waiting since %(since)s for %(title)s: %(events)s.") % words
    if wait.until is None:
        return text
    return f"{text} {_('Without one it goes on by itself %(until)s.') % {'until': when(wait.until, now)}}"


def _phase(wait: WaitNow, now: datetime) -> str:
    """A wait for messages, with what it is about where the code says so."""
    since = wait.since or now
    words = {
        "title": whole(wait.title), "messages": _messages(wait), "since": when(since, now), "span": span(now - since),
        "until": "" if wait.until is None else when(wait.until, now),
    }  # fmt: skip
    if wait.title and wait.until is not None:
        return _("%(title)s since %(since)s (%(span)s). Waiting for %(messages)s; gives up %(until)s.") % words
    if wait.title:
        return _("%(title)s since %(since)s (%(span)s). Waiting for %(messages)s.") % words
    if wait.until is not None:
        return _("Waiting for %(messages)s since %(since)s (%(span)s); gives up %(until)s.") % words
    return _("Waiting for %(messages)s since %(since)s (%(span)s).") % words


def _messages(wait: WaitNow) -> str:
    if wait.kind == "condition":
        return _("a condition")
    if wait.kind == "cancel":
        return _("somebody to cancel it")
    return any_of(wait.messages) or _("the end of its time")


# -- several things ---------------------------------------------------------------------------------------------------


def _several(run: RunNow, waits: list[WaitNow], count: int, now: datetime) -> Summary:
    things = [*_in_short(run, waits, now)]
    named = [text for _trouble, text in things[:_NAMED]]
    more = count - len(named)
    words = {"count": count, "things": all_of(named), "more": more}
    if more:
        listed = ", ".join(named)
        text = _("Waiting for %(count)d things: %(things)s, and %(more)d more.") % {**words, "things": listed}
    else:
        text = _("Waiting for %(count)d things: %(things)s.") % words
    trouble = any(bad for bad, _text in things)
    return Summary(state="several", text=text, trouble=trouble, since=run.started_at)


def _in_short(run: RunNow, waits: list[WaitNow], now: datetime) -> Iterator[tuple[bool, str]]:
    """Each thing with whether it is in trouble, those first."""
    found = [troubles.in_short(one, now) for one in run.activities]
    found += [(False, _wait_in_short(wait, now)) for wait in waits]
    yield from sorted(found, key=lambda one: not one[0])


def _wait_in_short(wait: WaitNow, now: datetime) -> str:
    words = {"title": wait.title, "events": any_of(wait.messages), "role": wait.role, "key": wait.key}
    if wait.kind == "timer":
        return _("the time %(until)s") % {"until": "?" if wait.until is None else when(wait.until, now)}
    if wait.kind == "child":
        return _("%(title)s %(key)s") % words
    if wait.kind in _DECIDED and wait.role:
        return _("%(events)s (anyone in %(role)s)") % words
    return any_of(wait.messages) or _messages(wait)
