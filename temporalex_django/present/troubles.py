"""What is wrong with a run, and what becomes of it: failing, silent and untaken activities, stops, pauses."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from temporalex_django.present.facts import PATIENCE, ActivityNow, BlockedNow, PausedNow, SwitchNow
from temporalex_django.present.words import span, when, whole

#: The code of a run that was stopped because its class is off.
_OFF = "switched_off"

ActivityState = Literal["running", "queued", "failing", "silent", "no_worker", "off"]


def state_of(one: ActivityNow, now: datetime) -> ActivityState:
    """Which of the sentences an activity gets."""
    task = one.activity
    if task.owner is not None:
        beat = task.heartbeat_timeout
        last = task.beat_at or task.started_at
        # before half of it nobody is worried: a worker beats for several at once
        if beat is not None and last is not None and now - last > timedelta(seconds=beat):
            return "silent"
        return "running" if task.last_failure is None else "failing"
    if one.off is not None:
        return "off"
    if task.waits_for or (one.taken is False and task.due_at <= now - PATIENCE):
        return "no_worker"
    return "queued" if task.last_failure is None else "failing"


def error_of(one: ActivityNow) -> str:
    """Its last failure in a few words."""
    failure = one.activity.last_failure
    if failure is None:
        return ""
    return f"{failure.type}: {_line(failure.message)}" if failure.message else failure.type


def failing(one: ActivityNow, now: datetime) -> str:
    """How often it has failed, with what, and when it is tried again."""
    task, failure = one.activity, one.activity.last_failure
    assert failure is not None
    words = {
        "activity": whole(one.title),
        "count": failure.attempt,
        "since": when(failure.since or failure.at, now),
        "error": error_of(one),
        "at": when(failure.at, now),
        "next": when(task.due_at, now),
        "most": task.max_attempts,
        "worker": one.worker,
    }
    if failure.attempt > 1:
        text = _("%(activity)s has failed %(count)d times since %(since)s, last with %(error)s at %(at)s.") % words
    else:
        text = _("%(activity)s has failed with %(error)s at %(at)s.") % words
    if task.owner is not None:
        return f"{text} {_('It is being tried again on %(worker)s.') % words}"
    if task.due_at <= now:
        return f"{text} {_('It is to be tried again now.')}"
    if task.max_attempts:
        return f"{text} {_('Tries again at %(next)s; gives up after %(most)d attempts.') % words}"
    return f"{text} {_('Tries again at %(next)s.') % words}"


def silent(one: ActivityNow, now: datetime) -> str:
    """It owes heartbeats."""
    task = one.activity
    last = task.beat_at or task.started_at or now
    words = {
        "activity": whole(one.title),
        "span": span(now - last),
        "limit": span(task.heartbeat_timeout or 0),
        "until": when(task.expires_at or now, now),
    }
    return (
        _(
            "%(activity)s has not sent a heartbeat for %(span)s (limit %(limit)s): its worker is taken for lost at "
            "%(until)s, then another one tries."
        )
        % words
    )


def untaken(one: ActivityNow, now: datetime) -> str:
    """Nobody can run it."""
    task = one.activity
    words = {
        "activity": whole(one.title),
        "since": when(task.due_at, now),
        "queue": task.queue,
        "lacks": task.waits_for,
    }
    if task.waits_for:
        return _("%(activity)s waits for a worker with %(lacks)s.") % words
    if one.pollers:
        ready = _("%(activity)s is ready since %(since)s.") % words
        return f"{ready} {no_code(task.activity, queue=task.queue, pollers=one.pollers)}."
    text = _("%(activity)s is ready since %(since)s, and no live worker takes it from the queue %(queue)s.") % words
    if one.last_seen is None:
        return text
    worker, at = one.last_seen
    seen = _("Last seen: %(worker)s, %(at)s.") % {"worker": worker, "at": when(at, now)}
    return f"{text} {seen}"


def no_poller(queue: str) -> str:
    """That no live worker polls a queue, as a part of a sentence."""
    return _("none that is alive takes the queue %(queue)s") % {"queue": repr(queue)}


def no_code(code: str, *, queue: str, pollers: int) -> str:
    """That live workers poll a queue and lack some code, as a part of a sentence."""
    text = ngettext(
        "%(count)d worker polls the queue %(queue)s; it lacks the code of %(code)s",
        "%(count)d workers poll the queue %(queue)s; none has the code of %(code)s",
        pollers,
    )
    return text % {"count": pollers, "queue": queue, "code": code}


def in_short(one: ActivityNow, now: datetime) -> tuple[bool, str]:
    """Whether an activity is in trouble, and how it stands beside others."""
    state, failure = state_of(one, now), one.activity.last_failure
    count = failure.attempt if failure else 0
    words = {"activity": one.title, "count": count}
    if state == "failing":
        return True, ngettext(
            "%(activity)s (retrying, %(count)d failed)", "%(activity)s (retrying, %(count)d failed)", count
        ) % words
    if state == "silent":
        return True, _("%(activity)s (silent)") % words
    if state == "off":
        return False, _("%(activity)s (switched off)") % words
    if state == "no_worker":
        return True, _("%(activity)s (no worker)") % words
    return False, (_("%(activity)s (running)") if state == "running" else _("%(activity)s (queued)")) % words


# -- runs that stand still --------------------------------------------------------------------------------------------


def stopped(blocked: BlockedNow, *, now: datetime) -> str:
    """Why a run is stopped, that nothing is lost, and what comes next."""
    words: dict[str, object] = {
        "since": "?" if blocked.since is None else when(blocked.since, now),
        "error": _line(blocked.error),
        "place": blocked.place,
        "lacks": blocked.waits_for,
        "event": blocked.event,
        "recorded": blocked.recorded,
        "produced": blocked.produced,
    }
    sentences = [_cause(blocked, words)]
    if blocked.code == _OFF:
        return sentences[0]
    if blocked.code == "crash":
        sentences.append(_("Try it again when the code is put right: on one worker, alone, once."))
    elif blocked.waits_for is None:
        sentences.append(_("Nothing is lost; it goes on when the code is put right."))
    if blocked.tries and blocked.next_try is not None:
        tried = ngettext("Tried %(count)d time, next %(next)s.", "Tried %(count)d times, next %(next)s.", blocked.tries)
        sentences.append(tried % {"count": blocked.tries, "next": when(blocked.next_try, now)})
    if blocked.others:
        same = ngettext(
            "%(count)d other run is stopped for the same reason.",
            "%(count)d other runs are stopped for the same reason.",
            blocked.others,
        )
        sentences.append(same % {"count": blocked.others})
    return " ".join(sentences)


def _cause(blocked: BlockedNow, words: dict[str, object]) -> str:
    if blocked.code == "crash":
        return _("Stopped safely since %(since)s: %(error)s.") % words
    if blocked.code == _OFF:
        return (
            _("Stopped since %(since)s, when its workflow class was switched off; that is on again, and it goes on.")
            % words
        )
    if blocked.waits_for is not None:
        return _("Waiting since %(since)s for a worker with %(lacks)s.") % words
    if blocked.code == "nondeterminism" and blocked.recorded and blocked.place:
        return (
            _(
                "Stopped safely since %(since)s: the code no longer fits what this run has done (event %(event)s says "
                "%(recorded)s, the code now gives %(produced)s, %(place)s)."
            )
            % words
        )
    if blocked.code == "nondeterminism" and blocked.recorded:
        return (
            _(
                "Stopped safely since %(since)s: the code no longer fits what this run has done (event %(event)s says "
                "%(recorded)s, the code now gives %(produced)s)."
            )
            % words
        )
    if blocked.place:
        return _("Stopped safely since %(since)s: %(error)s in %(place)s.") % words
    return _("Stopped safely since %(since)s: %(error)s.") % words


def switched_off(switch: SwitchNow, title: str, *, now: datetime) -> str:
    """What is off, who did it, and what becomes of it. ``title``: of the class, or of the activity."""
    words = {
        "name": switch.name, "title": whole(title), "who": switch.who or _("somebody"), "since": when(switch.since, now),
        "reason": _line(switch.reason),
    }  # fmt: skip
    if switch.kind == "queue" and switch.reason:
        text = _("The queue %(name)s is switched off by %(who)s since %(since)s (%(reason)s).")
    elif switch.kind == "queue":
        text = _("The queue %(name)s is switched off by %(who)s since %(since)s.")
    elif switch.reason:
        text = _("%(title)s is switched off by %(who)s since %(since)s (%(reason)s).")
    else:
        text = _("%(title)s is switched off by %(who)s since %(since)s.")
    return f"{text % words} {_('It goes on when that is switched on.')}"


def paused(pause: PausedNow, *, now: datetime) -> str:
    """Who paused it, and what waits."""
    since = "?" if pause.since is None else when(pause.since, now)
    words = {"who": pause.who or _("somebody"), "since": since, "reason": _line(pause.reason)}
    if pause.reason:
        text = _("Paused by %(who)s since %(since)s (%(reason)s).") % words
    else:
        text = _("Paused by %(who)s since %(since)s.") % words
    if not pause.messages:
        return text
    waiting = ngettext("%(count)d message waits.", "%(count)d messages wait.", pause.messages)
    return f"{text} {waiting % {'count': pause.messages}}"


def _line(text: str) -> str:
    """The first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "").rstrip(".")
