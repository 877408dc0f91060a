"""What the page of a run shows, read with a fixed number of statements however long the run is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db.models import Case, Count, Q, QuerySet, Subquery, When
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from temporalex_django import errors
from temporalex_django.actions.deciding import mark_nobody_left
from temporalex_django.actions.inbox import awaited_tasks, candidates_of
from temporalex_django.actions.live_workers import LiveWorkers, live_workers_from
from temporalex_django.actions.seeing import redact_tasks
from temporalex_django.actions.summary import PreloadedRows, leading_tasks, summarize_run
from temporalex_django.admin import history as histories
from temporalex_django.admin.graph_picture import graph_of, graph_picture
from temporalex_django.admin.shown import Value, duration, status_badge, value
from temporalex_django.admin.steering import Tool
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.redaction import Redactor
from temporalex_django.core.attributes import to_readable
from temporalex_django.models import ActivityTask, Chain, Instance, Message, OperatorAction, Worker
from temporalex_django.models.fields import UnreadablePayload
from temporalex_django.models.message import ATTENTION
from temporalex_django.present.human_tasks import candidate_names, step_name

MOST = 50
_OTHERS = 1000
_UNREAD = ("args", "carried_messages", "snapshot", "published", "closing", "metadata", "search_attributes")


def page_of(
    run: Instance,
    *,
    page: str,
    alias: str,
    user: Person,
    view: Redactor,
    there: QuerySet[Instance],
    tools: Callable[..., list[Tool]],
    message_tools: Callable[[str], list[Tool]],
    row_tools: Callable[[int], list[Tool]],
    switch: Callable[[str, str], str | None],
    may_decide: bool,
) -> dict[str, Any]:
    """The context of the template: what ``view`` shows of the run, and those of its family that are in ``there``.

    ``tools`` gives the buttons of an activity or a timer (see ``steering.part_tools``), ``message_tools`` those of a
    failed message, by its id, ``row_tools`` those of a row of the history, by its activation, ``switch`` the address
    where something is switched off. At most six statements, one more for an earlier run of a chain.
    """
    chain = run.chain
    current = chain.run_id == run.pk
    now = timezone.now()
    graph = graph_of(run)
    history = histories.read(run, page=page, alias=alias, view=view, now=now, whole=graph is not None, tools=row_tools)
    messages = _inbox(chain, alias=alias)
    family = [*_family(run, there)]
    runs = [one for one in family if one.chain_id == chain.pk]
    children = [one for one in family if one.chain_id != chain.pk]
    audit = OperatorAction.objects.using(alias).filter(run_id=run.pk)
    acted = [*audit.order_by("automatic", "-id")[: 2 * MOST]]  # what people did comes first
    known = _known(run, family, children, messages, acted, alias=alias)
    tasks = known.tasks.get(run.pk, ())
    live = live_workers_from(known.workers, now=now)
    missing = live.missing_if_overdue(run, since=_due_since(run, messages), now=now)
    shown = [
        {
            **_activity(task, view, now=now),
            "tools": tools("activity", task.seq, taken=task.atomic or not _lacks_code(live, task)),
            "switch": None if task.atomic else switch("activity", task.activity),
        }
        for task in tasks[:MOST]
    ]
    return {
        "badge": status_badge(run.status, blocked=bool(run.blocked)),
        "said": summarize_run(run, redactor=view, may_decide=may_decide, preloaded=known),
        "current": current,
        "chain": chain,
        "blocked": _blocked(view.redact_blocked(run.blocked), due_at=chain.due_at if current else None),
        "missing": missing,
        "switch_class": switch("workflow", run.workflow) if run.is_open else None,
        "switch_queue": switch("queue", run.queue) if run.is_open else None,
        "pollers": live.count_pollers(run.queue),
        "waits": view.redact_waiting_for(run.waiting_for or [], run.waits),
        "accepts": run.accepts or {},
        "took": duration((run.closed_at or now) - run.created_at),
        "payloads": _payloads(run, view),
        "open": view.shows_payloads,
        "history": history,
        "events_open": bool(page),
        "graph": None if graph is None else graph_picture(graph, history.whole),
        "timers": [{"row": row, "tools": tools("timer", row.seq or 0)} for row in history.timers[:MOST]],
        "more_timers": len(history.timers) > MOST,
        "human_tasks": [
            (task, step_name(task.key), ", ".join(candidate_names(candidates_of(task))))
            for task in mark_nobody_left(*redact_tasks(awaited_tasks(run, limit=MOST), user))
        ],
        "activities": shown,
        "failing": [row for row in shown if row["failure"] is not None],
        "failed": _failed(run, view),
        "children": [{"run": child, "badge": status_badge(child.status)} for child in children[:MOST]],
        "more_children": len(children) > MOST,
        "more_activities": len(tasks) > MOST,
        "inbox": [_message(message, view, message_tools=message_tools) for message in messages[:MOST]],
        "more_messages": len(messages) > MOST,
        "runs": [{"run": other, "badge": status_badge(other.status), "this": other.pk == run.pk} for other in runs],
        "more_runs": len(runs) > MOST,
        "acted": [row for row in acted if not row.automatic],
        "automatic": [row for row in acted if row.automatic],
        "limit": MOST,
    }


def _lacks_code(live: LiveWorkers, task: ActivityTask) -> bool:
    """Whether workers poll the queue of the activity, and none of them has its code: a retry would change nothing."""
    return live.count_pollers(task.queue) > 0 and not live.can_run_activity(task.activity, queue=task.queue)


def _family(run: Instance, there: QuerySet[Instance]) -> QuerySet[Instance]:
    """Runs of its chain and its children. Of a blocked one each says how many others are blocked like it."""
    found = there.filter(Q(chain_id=run.chain_id) | Q(parent_run_id=run.pk)).defer(*_UNREAD).select_related("chain")
    if run.blocked and run.is_open:
        same = Instance.objects.using(found.db).filter(workflow=run.workflow, blocked__isnull=False)
        first = same.filter(blocked__code=run.blocked.get("code")).exclude(pk=run.pk).order_by().values("pk")[:_OTHERS]
        counted = Instance.objects.using(found.db).filter(pk__in=first).order_by().values("workflow")
        found = found.annotate(others=Subquery(counted.annotate(count=Count("pk")).values("count")))
    return found.order_by("-id")[: 4 * MOST]


def _known(
    run: Instance,
    family: Sequence[Instance],
    children: Sequence[Instance],
    messages: Sequence[Message],
    acted: Sequence[OperatorAction],
    *,
    alias: str,
) -> PreloadedRows:
    """What the sentence about it is made of: read here are the activities and the workers."""
    waits = run.waits or []
    seq = waits[0].get("seq") if len(waits) == 1 and waits[0].get("kind") == "child" else None
    waited = next((child.pk for child in children if seq is not None and child.parent_seq == seq), None)
    tasks: dict[UUID, list[ActivityTask]] = defaultdict(list)
    workers: list[Worker] = []
    if run.is_open:
        for task in leading_tasks([run.pk] if waited is None else [run.pk, waited], alias=alias, limit=MOST + 1):
            tasks[task.run_id].append(task)
        since = _due_since(run, messages)
        if (
            tasks or waited is not None or since is not None or run.started_at is None
        ):  # else nobody could take anything
            workers = [*Worker.objects.using(alias)]
    ended = next((row for row in acted if row.action in ("cancel", "terminate") and not row.denied), None)
    return PreloadedRows(
        tasks=tasks,
        workers=workers,
        children=children,
        others=next((getattr(one, "others", None) or 0 for one in family), 0),
        unread=sum(not message.settled for message in messages),
        unread_since=_unread_since(messages),
        failed_messages=sum(message.failed for message in messages),
        closing_action=("", "") if ended is None else (ended.actor_name, ended.reason),
    )


def _due_since(run: Instance, messages: Sequence[Message]) -> datetime | None:
    """Since when it waits for a worker; None where it does not."""
    if run.chain.run_id != run.pk or not run.is_open or run.blocked or run.paused:
        return None
    moments = (run.chain.due_at, _unread_since(messages))
    return min((at for at in moments if at is not None and at <= timezone.now()), default=None)


def _unread_since(messages: Sequence[Message]) -> datetime | None:
    """Since when a message waits that no worker has looked at."""
    return min((message.created_at for message in messages if message.fresh and not message.settled), default=None)


def _failed(run: Instance, view: Redactor) -> dict[str, str] | None:
    """Why a run failed: the type of the exception (or nothing), and what it or the reason says."""
    closing = run.closing_value
    if run.status != "failed" or not isinstance(closing, dict):
        return None
    shown = view.redact_attributes(closing)
    said = shown.get("reason") if closing.get("reason") is not None else shown.get("message")
    text = said if isinstance(said, str) else value(said).preview
    return {"type": str(closing.get("type") or ""), "message": text if view.shows_payloads else view.redact_text("")}


def _inbox(chain: Chain, *, alias: str) -> list[Message]:
    """The messages of a chain: those that failed first, then what waits, then what was answered, newest first.

    Of an open chain by its partial indexes; only a closed one can have signals that were never delivered, which have
    none.
    """
    order: list[Any] = [Case(When(ATTENTION, then=0), default=1), "settled", "-id"]
    messages = Message.objects.using(alias).filter(chain_id=chain.pk)
    if chain.closed:
        return [*messages.order_by(*order)[: MOST + 1]]
    unread = messages.filter(settled=False).order_by("-id").values("pk")
    answered = messages.filter(settled=True, request_id__isnull=False).order_by("-id").values("pk")
    rows = Message.objects.using(alias)
    failed = messages.filter(ATTENTION).order_by("-id").values("pk")
    several = (unread, answered, failed)
    first, *others = (rows.filter(pk__in=some[: MOST + 1]).order_by().values("pk") for some in several)
    return [*rows.filter(pk__in=first.union(*others)).order_by(*order)[: MOST + 1]]


def _shown(payload: Any, show: Callable[[Any], Any], view: Redactor) -> Any:
    """What cannot be read says so, to whoever may read it."""
    return payload if isinstance(payload, UnreadablePayload) and view.shows_payloads else show(payload)


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
        "crash": _(
            "Look into the workers' logs: whoever activated this run died. Correct the code, then press Try again now: one "
            "worker tries it, alone. Or terminate it."
        ),
    }


def _payloads(run: Instance, view: Redactor) -> list[tuple[str, Value]]:
    def shown(payload: Any) -> Value:
        return value(_shown(payload, view.redact_payload, view))

    found = [(_("Input"), shown(run.input))]
    if run.published is not None:
        found.append((_("Published state"), shown(run.published_state)))
    closing = run.closing_value
    if isinstance(closing, UnreadablePayload):
        found.append((_("Result"), shown(closing)))
    elif isinstance(closing, dict):
        if run.status == "completed":
            found.append((_("Result"), shown(closing.get("result"))))
        else:
            found.append((_("How it ended"), value(view.redact_attributes(closing))))
    if run.search_attributes:
        found.append((_("Search attributes"), value(to_readable(run.search_attributes))))
    if run.tags:
        found.append((_("Tags"), value(run.tags)))
    if run.metadata:
        found.append((_("Metadata"), value(run.metadata)))
    return found


def _activity(task: ActivityTask, view: Redactor, *, now: datetime) -> dict[str, Any]:
    failure = view.redact_activity(task.as_open).last_failure
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
        "arguments": value(_shown(task.arguments, view.redact_payload, view)),
        "heartbeat": value(_shown(task.heartbeat_details, view.redact_payload, view))
        if task.heartbeat is not None
        else None,
    }


def _message(message: Message, view: Redactor, *, message_tools: Callable[[str], list[Tool]]) -> dict[str, Any]:
    def shown(payload: Any) -> Value:
        return value(_shown(payload, partial(view.redact_payload, message_name=message.name), view))

    state: str | SafeString
    if message.outcome_status:
        state = {
            "accepted": _("accepted, not done"),
            "completed": _("completed"),
            "failed": _("failed"),
            "rejected": _("rejected"),
            "undelivered": _("not delivered"),
            "fault": _("its validator failed"),
            "discarded": _("failed, discarded"),
        }.get(message.outcome_status, message.outcome_status)
    elif message.fresh:
        state = _("not read yet")
    else:
        state = _("waits in the inbox")
    return {
        "message": message,
        "state": state,
        "wrong": message.failed or message.outcome_status == "fault",
        "tools": message_tools(str(message.request_id)) if message.failed else [],
        "payload": shown(message.payload),
        "outcome": shown(message.outcome_value) if message.outcome is not None else None,
    }
