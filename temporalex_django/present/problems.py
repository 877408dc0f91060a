"""Sentences about problems: failing, silent and unclaimed activities, blocks, switches, pauses, groups of failures."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Literal

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from temporalex_django.core.failures import MAX_LENGTH, AttemptFailure
from temporalex_django.present.formatting import capitalize, format_at, format_duration, format_time
from temporalex_django.present.project_view import FailureGroup
from temporalex_django.present.view_models import (
    DUE_GRACE_PERIOD,
    ActivityView,
    BlockedView,
    Diagnosis,
    PausedView,
    Remedy,
    SwitchView,
)

#: Code of a run that is blocked because its class was switched off.
_SWITCHED_OFF = "switched_off"

ActivityState = Literal["running", "queued", "failing", "silent", "no_worker", "off"]


def activity_state(activity_view: ActivityView, now: datetime) -> ActivityState:
    """Return the state of an activity at ``now`` as one word, which selects the sentence about it.

    "silent" means that its heartbeats stopped, "no_worker" that no worker can run it, and "off" that a switch keeps it
    from starting. The other words are "running", "queued" and "failing".
    """
    task = activity_view.activity
    if task.owner is not None:
        heartbeat_timeout = task.heartbeat_timeout
        last_beat_at = task.beat_at or task.started_at
        # Silent only after the whole timeout: a worker stores the heartbeats of several activities together.
        if (
            heartbeat_timeout is not None
            and last_beat_at is not None
            and now - last_beat_at > timedelta(seconds=heartbeat_timeout)
        ):
            return "silent"
        if task.last_failure is None:
            return "running"
        return "failing"
    if activity_view.switch is not None:
        return "off"
    # An activity that has just become due is no problem yet: workers look at the tables every few seconds.
    if task.waits_for or (activity_view.has_worker is False and task.due_at <= now - DUE_GRACE_PERIOD):
        return "no_worker"
    if task.last_failure is None:
        return "queued"
    return "failing"


def error_text(activity_view: ActivityView) -> str:
    """Return the last failure of an activity in a few words; empty if it has not failed."""
    failure = activity_view.activity.last_failure
    if failure is None:
        return ""
    if failure.message:
        return f"{failure.type}: {_first_line(failure.message)}"
    return failure.type


def _retry_later_text(failure: AttemptFailure, words: Mapping[str, object]) -> str:
    """Return the sentence about a later attempt, with its reason if the reader may see it."""
    reason = _first_line(failure.message)
    if not reason:
        return _("%(activity)s asked to be retried later (%(last)s).") % words
    text = _("%(activity)s asked to be retried later (%(last)s): %(reason)s.")
    return text % {**words, "reason": reason}


def failing_sentence(activity_view: ActivityView, now: datetime) -> str:
    """Return the sentence that says how often an activity has failed, with which error, and when it is retried.

    The activity must have a ``last_failure``.
    """
    task, failure = activity_view.activity, activity_view.activity.last_failure
    assert failure is not None
    words = {
        "activity": capitalize(activity_view.noun or activity_view.title),
        "count": failure.attempt,
        "since": format_time(failure.since or failure.at, now),
        "error": error_text(activity_view),
        "last": format_time(failure.at, now),
        "at": format_at(failure.at, now),
        "next": format_at(task.due_at, now),
        "most": task.max_attempts,
        "worker": activity_view.worker,
    }
    if failure.retry_later:
        text = _retry_later_text(failure, words)
    elif failure.attempt > 1:
        text = _("%(activity)s has failed %(count)d times since %(since)s. Last error: %(error)s (%(last)s).") % words
    else:
        text = _("%(activity)s failed %(at)s: %(error)s.") % words
    # A new attempt is running, so the due time of the row is not that of a retry.
    if task.owner is not None:
        return f"{text} {_('It is being retried on %(worker)s.') % words}"
    if task.due_at <= now:
        return f"{text} {_('The next attempt is due now.')}"
    if task.max_attempts:
        limit_text = ngettext(
            "Next attempt %(next)s; gives up after %(most)d attempt.",
            "Next attempt %(next)s; gives up after %(most)d attempts.",
            task.max_attempts,
        )
        return f"{text} {limit_text % words}"
    return f"{text} {_('Next attempt %(next)s.') % words}"


def silent_sentence(activity_view: ActivityView, now: datetime) -> str:
    """Return the sentence that says that a running activity has missed its heartbeat timeout.

    It also says when another worker retries the activity.
    """
    task = activity_view.activity
    last_beat_at = task.beat_at or task.started_at or now
    words = {
        "activity": capitalize(activity_view.noun or activity_view.title),
        "span": format_duration(now - last_beat_at),
        "limit": format_duration(task.heartbeat_timeout or 0),
        "until": format_at(task.expires_at or now, now),
    }
    return (
        _(
            "%(activity)s has not sent a heartbeat for %(span)s (limit: %(limit)s). Its worker is considered lost "
            "%(until)s; then another worker retries it."
        )
        % words
    )


def untaken_sentence(activity_view: ActivityView, now: datetime) -> str:
    """Return the sentence that says that no live worker can run a due activity, and what the workers lack."""
    task = activity_view.activity
    words = {
        "activity": capitalize(activity_view.noun or activity_view.title),
        "since": format_time(task.due_at, now),
        "queue": task.queue,
        "lacks": task.waits_for,
    }
    if task.waits_for:
        return _("%(activity)s is waiting for a worker with %(lacks)s.") % words
    if activity_view.pollers:
        ready_text = _("%(activity)s has been waiting for a worker since %(since)s.") % words
        return f"{ready_text} {no_code_text(task.activity, queue=task.queue, pollers=activity_view.pollers)}."
    if activity_view.last_poller is None:
        text = _(
            "%(activity)s has been waiting for a worker since %(since)s. No live worker polls the queue %(queue)s."
        )
        return text % words
    # The machine of the last worker of the queue is the place to look at first.
    worker, last_seen_at = activity_view.last_poller
    text = _(
        "%(activity)s has been waiting for a worker since %(since)s. No live worker polls the queue %(queue)s (last "
        "seen: %(worker)s, %(at)s)."
    )
    return text % {**words, "worker": worker, "at": format_time(last_seen_at, now)}


def no_poller_text(queue: str) -> str:
    """Return the clause "no live worker polls the queue …", for use in a sentence."""
    return _("no live worker polls the queue %(queue)s") % {"queue": repr(queue)}


def no_code_text(code: str, *, queue: str, pollers: int) -> str:
    """Return a clause for use in a sentence: live workers poll the queue, but none of them has the code.

    ``code`` names it, and ``pollers`` is the number of these workers.
    """
    text = ngettext(
        "%(count)d worker polls the queue %(queue)s; it lacks the code of %(code)s",
        "%(count)d workers poll the queue %(queue)s; none has the code of %(code)s",
        pollers,
    )
    return text % {"count": pollers, "queue": queue, "code": code}


def short_activity(activity_view: ActivityView, now: datetime) -> tuple[bool, str]:
    """Return ``(trouble, text)``: True if a person should look at the activity, and its state in a few words."""
    state, failure = activity_state(activity_view, now), activity_view.activity.last_failure
    count = failure.attempt if failure else 0
    words = {"activity": activity_view.noun or activity_view.title, "count": count}
    if failure is not None and failure.retry_later and state == "failing":
        return False, _("%(activity)s (asked to be retried later)") % words
    if state == "failing":
        return True, ngettext(
            "%(activity)s (retrying after %(count)d failure)", "%(activity)s (retrying after %(count)d failures)", count
        ) % words
    if state == "silent":
        return True, _("%(activity)s (no heartbeat)") % words
    if state == "off":
        is_held = activity_view.switch is not None and activity_view.switch.until is not None
        return False, (_("%(activity)s (held back)") if is_held else _("%(activity)s (switched off)")) % words
    if state == "no_worker":
        return True, _("%(activity)s (no worker)") % words
    return False, (_("%(activity)s (running)") if state == "running" else _("%(activity)s (queued)")) % words


# -- runs that do not continue ----------------------------------------------------------------------------------------


def stopped_sentence(blocked: BlockedView, *, now: datetime) -> str:
    """Return the sentences that say why a run is blocked, and what has to be done.

    A reader also learns that nothing is lost, when the next attempt is, and how many other runs have the problem.
    """
    words: dict[str, object] = {
        "since": "?" if blocked.since is None else format_time(blocked.since, now),
        "error": _first_line(blocked.error),
        "place": blocked.place,
        "lacks": blocked.waits_for,
        "event": blocked.event,
        "recorded": blocked.recorded,
        "produced": blocked.produced,
    }
    sentences = [_cause_sentence(blocked, words)]
    # The switch is on again here (``switched_off_sentence`` covers the time before): nothing needs to be corrected.
    if blocked.code == _SWITCHED_OFF:
        return sentences[0]
    # It is not retried by itself: its code ended several processes (see decision 22).
    if blocked.code == "crash":
        sentences.append(_("Once you have fixed the code, try it again: a single worker then runs only this run."))
    elif blocked.waits_for is None:
        sentences.append(_("Nothing is lost. It continues by itself once the code is fixed."))
    if blocked.tries and blocked.next_try is not None:
        tries_text = ngettext(
            "Tried %(count)d time; next attempt %(next)s.",
            "Tried %(count)d times; next attempt %(next)s.",
            blocked.tries,
        )
        # Beside the time of the first block: people see that the run is not forgotten.
        if blocked.tries > 1 and blocked.last is not None:
            sentences.append(_("Last attempt %(last)s.") % {"last": format_at(blocked.last, now)})
        sentences.append(tries_text % {"count": blocked.tries, "next": format_at(blocked.next_try, now)})
    elif blocked.tries > 1 and blocked.last is not None and blocked.code != "crash":
        # A cluster does not say when it tries the run again.
        sentences.append(
            _("Tried %(count)d times, the last time %(last)s.")
            % {"count": blocked.tries, "last": format_at(blocked.last, now)}
        )
    if blocked.others:
        others_text = ngettext(
            "%(count)d other run has the same problem.",
            "%(count)d other runs have the same problem.",
            blocked.others,
        )
        sentences.append(others_text % {"count": blocked.others})
    return " ".join(sentences)


def missing_step(code: str, lacks: str) -> str:
    """Return the next step for runs that wait for ``lacks``, a class or a key that no worker has.

    ``code`` is the code of the error that blocks them.
    """
    if code == "key_missing":
        return _("Start a worker whose codec has %(lacks)s") % {"lacks": lacks}
    return _(
        "Deploy code that has %(lacks)s, and start a worker with it: manage.py temporalex worker; or move the runs to "
        "another version: manage.py temporalex migrate"
    ) % {"lacks": lacks}


def _cause_sentence(blocked: BlockedView, words: dict[str, object]) -> str:
    """Return the sentence that says since when and why a run is blocked."""
    if blocked.code == "crash":
        return _("Blocked since %(since)s: %(error)s.") % words
    if blocked.code == _SWITCHED_OFF:
        return (
            _(
                "Waiting since %(since)s, when its workflow class was switched off. The class has been switched on "
                "again, so the run will continue soon."
            )
            % words
        )
    if blocked.waits_for is not None:
        return _("Waiting since %(since)s for a worker with %(lacks)s.") % words
    if blocked.code == "nondeterminism" and blocked.recorded and blocked.place:
        return (
            _(
                "Blocked since %(since)s: the code no longer matches what this run has already done. Event "
                "%(event)s recorded %(recorded)s; the code now asks for %(produced)s (%(place)s)."
            )
            % words
        )
    if blocked.code == "nondeterminism" and blocked.recorded:
        return (
            _(
                "Blocked since %(since)s: the code no longer matches what this run has already done. Event "
                "%(event)s recorded %(recorded)s; the code now asks for %(produced)s."
            )
            % words
        )
    if blocked.place:
        return _("Blocked since %(since)s: %(error)s in %(place)s.") % words
    return _("Blocked since %(since)s: %(error)s.") % words


def switched_off_sentence(switch: SwitchView, title: str, *, now: datetime) -> str:
    """Return the sentences that say what is switched off, by whom and why, and that it can be switched on again.

    ``title`` is the title of the workflow class or activity; a queue is called by its name. For activities that are
    only kept back until a given time, the sentences say so.
    """
    if switch.until is not None:
        return _held_sentence(switch, switch.until, now=now)
    words = {
        "name": switch.name, "title": capitalize(title), "who": switch.actor or _("somebody"), "at": format_at(switch.since, now),
        "reason": _first_line(switch.reason),
    }  # fmt: skip
    # Whole sentences for each combination, because parts cannot be translated on their own.
    if switch.kind == "queue" and switch.reason:
        text = _("The queue %(name)s was switched off by %(who)s %(at)s (%(reason)s).")
    elif switch.kind == "queue":
        text = _("The queue %(name)s was switched off by %(who)s %(at)s.")
    elif switch.reason:
        text = _("%(title)s was switched off by %(who)s %(at)s (%(reason)s).")
    else:
        text = _("%(title)s was switched off by %(who)s %(at)s.")
    return f"{text % words} {_('Work continues when it is switched on again.')}"


def unstopped_text(kind: str) -> str:
    """Return a sentence about what a switch of this kind does not stop on a Temporal cluster; empty: nothing."""
    if kind != "activity":
        return ""
    return _(
        "Runs on the Temporal cluster still call the activity. To stop them, switch off their queue or their class."
    )


def _held_sentence(switch: SwitchView, until: datetime, *, now: datetime) -> str:
    """Return until when activities of a queue are kept back, who asked for that, and why."""
    words = {
        "queue": switch.name, "key": switch.key, "at": format_at(until, now), "who": switch.actor,
        "reason": _first_line(switch.reason),
    }  # fmt: skip
    if switch.key:
        text = _("Activities of the queue %(queue)s with the key %(key)s are held back; they continue %(at)s.")
    else:
        text = _("Activities of the queue %(queue)s are held back; they continue %(at)s.")
    request_text = _("Requested by %(who)s: %(reason)s.") if switch.reason else _("Requested by %(who)s.")
    return f"{text % words} {request_text % words}"


def paused_sentence(pause: PausedView, *, now: datetime) -> str:
    """Return the sentences that say who paused a run and why, and how many messages are waiting."""
    since = "?"
    if pause.since is not None:
        since = format_time(pause.since, now)
    words = {"who": pause.actor or _("somebody"), "since": since, "reason": _first_line(pause.reason)}
    if pause.reason:
        text = _("Paused by %(who)s since %(since)s (%(reason)s).") % words
    else:
        text = _("Paused by %(who)s since %(since)s.") % words
    if not pause.messages:
        return text
    waiting_text = ngettext("%(count)d message is waiting.", "%(count)d messages are waiting.", pause.messages)
    return f"{text} {waiting_text % {'count': pause.messages}}"


def _first_line(text: str) -> str:
    """Return the first line that is not blank, without a period at its end, and not endless."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "").rstrip(".")
    return line if len(line) <= MAX_LENGTH else f"{line[: MAX_LENGTH - 1]}…"


# -- groups of failures -----------------------------------------------------------------------------------------------

#: Codes of diagnoses, by the kinds of groups.
_CODES = {
    "activity": "failing",
    "run": "failed",
    "blocked": "blocked",
    "task": "failed_task",
    "dead_letter": "dead_letters",
}


def failure_diagnosis(group: FailureGroup, now: datetime) -> Diagnosis:
    """Return the diagnosis of one group of failures."""
    return Diagnosis(
        severity="error" if group.kind in ("blocked", "dead_letter") else "warning",
        code=_CODES[group.kind],
        text=f"{_group_text(group, now)} {_times_text(group, now)}".strip(),
        next_step=group_step(group),
        evidence=[group.example] if group.example else [],
        # By this text, alerts recognize a problem again: it has no line, which a deploy may move.
        about=group.workflow if group.kind == "dead_letter" else f"{group.workflow} {group.fault}",
        count=group.count,
        headline=_group_headline(group),
        since=group.since,
        next_attempt=group.next_attempt,
        remedy=None if _is_running(group) else _group_remedy(group),
    )


def failure_diagnoses(
    groups: Collection[FailureGroup], now: datetime, *, kinds: Collection[str]
) -> Iterator[Diagnosis]:
    """Yield a diagnosis for each of the groups that is of one of the ``kinds``."""
    return (failure_diagnosis(group, now) for kind in kinds for group in groups if group.kind == kind)


def count_text(group: FailureGroup) -> str:
    """Return the number of failures in a group; it says if there may be more than were counted."""
    if group.is_bounded:
        return _("More than %(count)s") % {"count": f"{group.count:,}"}
    return str(group.count)


def _group_text(group: FailureGroup, now: datetime) -> str:
    words = {
        "count": count_text(group),
        "workflow": group.workflow,
        "cause": group.cause,
        "since": "?" if group.since is None else format_time(group.since, now),
    }
    match group.kind:
        case "activity":
            text = ngettext(
                "%(count)s activity of %(workflow)s has been failing since %(since)s and is being retried: %(cause)s.",
                "%(count)s activities of %(workflow)s have been failing since %(since)s and are being retried: "
                "%(cause)s.",
                group.count,
            )
        case "run":
            text = ngettext(
                "%(count)s run of %(workflow)s has failed since %(since)s: %(cause)s.",
                "%(count)s runs of %(workflow)s have failed since %(since)s: %(cause)s.",
                group.count,
            )
        case "blocked":
            text = ngettext(
                "%(count)s run of %(workflow)s is blocked (%(cause)s). Nothing is lost, but it cannot continue until "
                "you fix the cause.",
                "%(count)s runs of %(workflow)s are blocked (%(cause)s). Nothing is lost, but they cannot continue "
                "until you fix the cause.",
                group.count,
            )
        case "task" if group.activity is not None:
            text = ngettext(
                "%(count)s background task %(workflow)s has been failing since %(since)s and is being retried: "
                "%(cause)s.",
                "%(count)s background tasks %(workflow)s have been failing since %(since)s and are being retried: "
                "%(cause)s.",
                group.count,
            )
        case "task":
            text = ngettext(
                "%(count)s background task %(workflow)s has failed since %(since)s: %(cause)s.",
                "%(count)s background tasks %(workflow)s have failed since %(since)s: %(cause)s.",
                group.count,
            )
        case _:
            words["cause"] = group.code
            text = ngettext(
                "%(count)s message to %(workflow)s was refused: %(cause)s.",
                "%(count)s messages to %(workflow)s were refused. The oldest: %(cause)s.",
                group.count,
            )
    return text % words


def _group_headline(group: FailureGroup) -> str:
    """Return how many of what have failed, and the cause."""
    words = {"count": count_text(group), "workflow": group.workflow, "cause": group.cause}
    match group.kind:
        case "activity":
            text = ngettext(
                "%(count)s activity of %(workflow)s: %(cause)s",
                "%(count)s activities of %(workflow)s: %(cause)s",
                group.count,
            )
        case "task":
            text = ngettext(
                "%(count)s background task %(workflow)s: %(cause)s",
                "%(count)s background tasks %(workflow)s: %(cause)s",
                group.count,
            )
        case "dead_letter":
            words["cause"] = group.code
            text = ngettext(
                "%(count)s message to %(workflow)s was refused: %(cause)s",
                "%(count)s messages to %(workflow)s were refused: %(cause)s",
                group.count,
            )
        case _:
            text = ngettext(
                "%(count)s run of %(workflow)s: %(cause)s", "%(count)s runs of %(workflow)s: %(cause)s", group.count
            )
    return text % words


def _is_running(group: FailureGroup) -> bool:
    """Return True if the next attempt of each activity or background task of a group is running."""
    is_open = group.kind == "activity" or (group.kind == "task" and group.example != "")
    return is_open and group.next_attempt is None


def _group_remedy(group: FailureGroup) -> Remedy:
    """Return the action that helps all failures of a group."""
    filters = {"workflow": group.workflow, "cause": group.cause}
    words = {"count": count_text(group).lower(), "lacks": group.waits_for}
    match group.kind:
        case "activity":
            label = ngettext("Retry it…", "Retry all %(count)s…", group.count) % words
            return Remedy(kind="bulk", action="retry_activity", filters=filters, label=label)
        case "blocked" if group.waits_for is not None:
            return Remedy(kind="workers", label=_("Start a worker with %(lacks)s") % words)
        case "blocked":
            label = ngettext("Try it again…", "Try all %(count)s again…", group.count) % words
            return Remedy(kind="bulk", action="try_again", filters=filters, label=label)
        case "task":
            label = ngettext("Retry it…", "Retry all %(count)s…", group.count) % words
            task_filters = {"task": group.workflow, "cause": group.cause}
            if group.next_attempt is not None:
                return Remedy(kind="background_tasks", action="run_task_now", filters=task_filters, label=label)
            task_filters["status"] = "FAILED"
            return Remedy(kind="background_tasks", action="retry_task", filters=task_filters, label=label)
        case "dead_letter":
            return Remedy(kind="outbox", label=_("Send again or drop…"))
        case _:
            return runs_remedy(filters, group.count)


def runs_remedy(filters: Mapping[str, str], count: int) -> Remedy:
    """Return the remedy to look at the runs that match the filters."""
    return Remedy(kind="runs", filters=filters, label=ngettext("See the run", "See the runs", count))


def _times_text(group: FailureGroup, now: datetime) -> str:
    """Return the sentences about the times of several failures; one failure has them on its page."""
    if group.count < 2 or group.last is None or group.kind == "dead_letter":
        return ""
    words = {"last": format_at(group.last, now)}
    if group.next_attempt is None:
        return _("Last %(last)s.") % words
    if group.next_attempt <= now:
        return _("Last %(last)s; the next attempt is due now.") % words
    return _("Last %(last)s; next attempt %(next)s.") % {**words, "next": format_at(group.next_attempt, now)}


def group_step(group: FailureGroup) -> str:
    """Return the one action that helps all failures of a group."""
    words = {
        "filters": f"--workflow {shlex.quote(group.workflow)} --cause {shlex.quote(group.cause)}",
        "example": shlex.quote(group.example),
    }
    match group.kind:
        case "activity":
            return _("Fix the cause, then: manage.py temporalex bulk retry_activity %(filters)s") % words
        case "run":
            return _("See which: manage.py temporalex list %(filters)s") % words
        case "blocked" if group.waits_for is not None:
            return missing_step(group.code, group.waits_for)
        case "blocked":
            return _("See why: manage.py temporalex doctor %(example)s") % words
        case "task":
            return _("See why: manage.py temporalex enqueued") % words
        case _:
            return _("Send it again, or drop it: manage.py temporalex outbox again %(example)s") % words
