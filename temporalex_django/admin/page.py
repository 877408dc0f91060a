"""What the page of a run shows, read with a fixed number of statements however long the run is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from django.db.models import Max, Q, QuerySet
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from temporalex_django import errors
from temporalex_django.actions.describe import live_workers
from temporalex_django.admin.shown import Value, duration, status_badge, value
from temporalex_django.admin.steering import Tool
from temporalex_django.authoring.viewing import View
from temporalex_django.models import ActivityTask, Chain, HistoryEvent, Instance, Message, OperatorAction
from temporalex_django.models.fields import Payload

EVENTS_A_PAGE = 100
MOST = 50
_FAMILY = ("id", "chain_id", "workflow_id", "workflow", "status", "created_at", "closed_at")

#: What kind of thing an event is, for its colour; the kind itself is always written out.
_FAMILIES = (
    ("fail", ("Failed", "TimedOut", "Terminated")),
    ("done", ("Completed",)),
    ("message", ("Signal", "Update", "Cancel", "External")),
    ("time", ("Timer",)),
    ("work", ("Activity", "Child")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An event."""

    seq: int
    kind: str
    family: str
    summary: str
    data: Value


@dataclass(slots=True, kw_only=True)
class ShownActivation:
    """Events that were stored together. ``since`` is the time from the activation before it on the page."""

    number: int
    at: datetime
    since: str = ""
    seq: int | None = None  # of its ActivationStarted, which is its heading
    rows: list[Row] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Where in the history the page is. Without a number the last page is shown: what happened last."""

    number: int
    count: int

    @property
    def previous(self) -> int | None:
        return self.number - 1 if self.number > 1 else None

    @property
    def next(self) -> int | None:
        return self.number + 1 if self.number < self.count else None


def page_of(
    run: Instance,
    *,
    page: str,
    alias: str,
    view: View,
    there: QuerySet[Instance],
    tools: Callable[[ActivityTask], list[Tool]],
) -> dict[str, Any]:
    """The context of the template: what ``view`` shows of the run, and those of its family that are in ``there``.

    ``tools`` gives the buttons of an activity.
    """
    chain = run.chain
    current = chain.run_id == run.pk
    now = timezone.now()
    activations, pages = _history(run, page=page, alias=alias, view=view)
    activities = [*ActivityTask.objects.using(alias).filter(run_id=run.pk).order_by("seq")[: MOST + 1]]
    messages = _inbox(chain, alias=alias)
    family = there.filter(Q(chain_id=chain.pk) | Q(parent_run_id=run.pk)).only(*_FAMILY).order_by("-id")[: 4 * MOST]
    runs = [one for one in family if one.chain_id == chain.pk]
    children = [one for one in family if one.chain_id != chain.pk]
    audit = OperatorAction.objects.using(alias).filter(run_id=run.pk)
    acted = [*audit.order_by("automatic", "-id")[: 2 * MOST]]  # what people did comes first
    due = (
        current
        and not chain.closed
        and (
            (chain.due_at is not None and chain.due_at <= now)
            or any(message.fresh for message in messages)
            or any(task.owner is None for task in activities)
        )
    )
    missing = None
    shown = [{**_activity(task, view, now=now), "tools": tools(task)} for task in activities[:MOST]]
    if due and not run.blocked:
        missing = live_workers(alias=alias).missing(workflow=run.workflow, version=run.version, queue=run.queue)
    return {
        "badge": status_badge(run.status, blocked=bool(run.blocked)),
        "current": current,
        "chain": chain,
        "blocked": _blocked(view.blocked(run.blocked), due_at=chain.due_at if current else None),
        "missing": missing,
        "waits": list(run.waiting_for or []),
        "accepts": run.accepts or {},
        "took": duration((run.closed_at or now) - run.created_at),
        "payloads": _payloads(run, view),
        "open": view.open,
        "activations": activations,
        "pages": pages,
        "activities": shown,
        "failing": [row for row in shown if row["failure"] is not None],
        "failed": _failed(run, view),
        "children": [{"run": child, "badge": status_badge(child.status)} for child in children[:MOST]],
        "more_children": len(children) > MOST,
        "more_activities": len(activities) > MOST,
        "inbox": [_message(message, view) for message in messages[:MOST]],
        "more_messages": len(messages) > MOST,
        "runs": [
            {"run": other, "badge": status_badge(other.status), "shown": other.pk == run.pk} for other in runs[:MOST]
        ],
        "more_runs": len(runs) > MOST,
        "acted": [row for row in acted if not row.automatic],
        "automatic": [row for row in acted if row.automatic],
        "limit": MOST,
    }


def _failed(run: Instance, view: View) -> dict[str, str] | None:
    """Why a run failed: the type of the exception (or nothing), and what it or the reason says."""
    closing = run.closing_value
    if run.status != "failed" or not isinstance(closing, dict):
        return None
    shown = view.attributes(closing)
    said = shown.get("reason") if closing.get("reason") is not None else shown.get("message")
    text = said if isinstance(said, str) else value(said).preview
    return {"type": str(closing.get("type") or ""), "message": text if view.open else view.text("")}


def _inbox(chain: Chain, *, alias: str) -> list[Message]:
    """What waits first, then what was answered, newest first.

    Of an open chain by its two partial indexes; only a closed one can have signals that were never delivered, which
    have none.
    """
    messages = Message.objects.using(alias).filter(chain_id=chain.pk)
    if chain.closed:
        return [*messages.order_by("settled", "-id")[: MOST + 1]]
    open_ones = [*messages.filter(settled=False).order_by("-id")[: MOST + 1]]
    answered = messages.filter(settled=True, request_id__isnull=False).order_by("-id")
    return [*open_ones, *answered[: MOST + 1 - len(open_ones)]]


def _history(run: Instance, *, page: str, alias: str, view: View) -> tuple[list[ShownActivation], Pages]:
    events = HistoryEvent.objects.using(alias).filter(run_id=run.pk)
    chain = run.chain
    length = chain.length if chain.run_id == run.pk else events.aggregate(last=Max("seq"))["last"] or 0
    count = max(1, -(-length // EVENTS_A_PAGE))
    number = min(max(int(page), 1), count) if page.isascii() and page.isdigit() and len(page) < 10 else count
    first = (number - 1) * EVENTS_A_PAGE
    found: list[ShownActivation] = []
    for event in events.filter(seq__gt=first, seq__lte=first + EVENTS_A_PAGE).order_by("seq"):
        if not found or found[-1].number != event.activation:
            since = "+" + duration(event.at - found[-1].at) if found else ""
            found.append(ShownActivation(number=event.activation, at=event.at, since=since))
        if event.kind == "ActivationStarted":
            found[-1].seq = event.seq
        else:
            found[-1].rows.append(_row(event, view))
    return found, Pages(number=number, count=count)


def _row(event: HistoryEvent, view: View) -> Row:
    family = next((name for name, marks in _FAMILIES if any(mark in event.kind for mark in marks)), "plain")
    data = _shown(event.data, partial(view.attributes, kind=event.kind), view)
    return Row(seq=event.seq, kind=event.kind, family=family, summary=_summary(data), data=value(data))


def _shown(payload: Any, show: Callable[[Any], Any], view: View) -> Any:
    """What cannot be read says so, to whoever may read it."""
    return payload if isinstance(payload, Payload) and view.open else show(payload)


def _summary(data: Any) -> str:
    """The few words of an event's attributes that tell it from others of its kind."""
    if not isinstance(data, dict):
        return ""
    parts = []
    if "seq" in data:
        parts.append(f"#{data['seq']}")
    for name in ("activity", "workflow", "name", "message", "reason", "id"):
        found = data.get(name)
        if isinstance(found, (str, int)) and found != "":
            parts.append(str(found)[:80])
    return " · ".join(parts[:3])


def _blocked(blocked: dict[str, Any] | None, *, due_at: datetime | None) -> dict[str, Any] | None:
    """Cause and next step."""
    if not blocked:
        return None
    code = str(blocked.get("code", ""))
    since = blocked.get("since")
    return {
        "code": code,
        "error": blocked.get("error", ""),
        "since": datetime.fromisoformat(since) if isinstance(since, str) else None,
        "attempt": blocked.get("attempt"),
        "due_at": due_at,
        "next_step": _next_steps().get(code, ""),
    }


def _next_steps() -> dict[str, str]:
    found: dict[str, str] = {}
    waiting: list[type[errors.TemporalexError]] = [errors.TemporalexError]
    while waiting:
        cls = waiting.pop()
        found[cls.code] = getattr(cls, "next_step", "")
        waiting += cls.__subclasses__()
    # the worker died, so there is no class of an error
    return {
        **found,
        "crash": _("Look into the workers' logs: whoever activated this run died. Correct the code, or terminate it."),
    }


def _payloads(run: Instance, view: View) -> list[tuple[str, Value]]:
    def shown(payload: Any) -> Value:
        return value(_shown(payload, view.value, view))

    found = [(_("Input"), shown(run.input))]
    if run.published is not None:
        found.append((_("Published state"), shown(run.published_state)))
    closing = run.closing_value
    if isinstance(closing, Payload):
        found.append((_("Result"), shown(closing)))
    elif isinstance(closing, dict):
        if run.status == "completed":
            found.append((_("Result"), shown(closing.get("result"))))
        else:
            found.append((_("How it ended"), value(view.attributes(closing))))
    if run.tags:
        found.append((_("Tags"), value(run.tags)))
    if run.metadata:
        found.append((_("Metadata"), value(run.metadata)))
    return found


def _activity(task: ActivityTask, view: View, *, now: datetime) -> dict[str, Any]:
    failure = view.activity(task.as_open).last_failure
    if task.owner is not None:
        state, since = _("running"), task.started_at or now
    elif task.due_at > now:
        state, since = _("tried again at"), task.due_at
    else:
        state, since = _("queued since"), task.due_at
    of = f" / {task.max_attempts}" if task.max_attempts else ""
    return {
        "task": task,
        "failure": failure,
        "state": state,
        "since": since,
        "attempt": f"{task.attempt}{of}",
        "arguments": value(_shown(task.arguments, view.value, view)),
        "heartbeat": value(_shown(task.heartbeat_details, view.value, view)) if task.heartbeat is not None else None,
    }


def _message(message: Message, view: View) -> dict[str, Any]:
    def shown(payload: Any) -> Value:
        return value(_shown(payload, partial(view.value, under=message.name), view))

    state: str | SafeString
    if message.outcome_status:
        state = {
            "accepted": _("accepted, not done"),
            "completed": _("completed"),
            "failed": _("failed"),
            "rejected": _("rejected"),
            "undelivered": _("not delivered"),
        }.get(message.outcome_status, message.outcome_status)
    elif message.fresh:
        state = _("not read yet")
    else:
        state = _("waits in the inbox")
    return {
        "message": message,
        "state": state,
        "payload": shown(message.payload),
        "outcome": shown(message.outcome_value) if message.outcome is not None else None,
    }
