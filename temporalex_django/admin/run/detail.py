"""The template context of the page of a run, read with a fixed number of statements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db.models import Case, QuerySet, When
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from temporalex_django import errors
from temporalex_django.access import VIEW
from temporalex_django.admin.base import claimed_by_name
from temporalex_django.admin.operator_views import ActionLink
from temporalex_django.admin.run import history as histories
from temporalex_django.admin.run.origin import origin_of, related_runs
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.redaction import Redactor
from temporalex_django.authoring.run_columns import ColumnType, Place, columns_shown_in
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.console.base import (
    FormattedPayload,
    format_call,
    format_duration,
    format_payload,
    format_time,
    progress_bar,
    shape,
    status_badge,
)
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.names import TABLES
from temporalex_django.core.payloads.search_attributes import to_readable
from temporalex_django.errors import TemporalexError
from temporalex_django.graph.projection import project
from temporalex_django.graph.render import states
from temporalex_django.graph.steps import StepRef, key_of
from temporalex_django.graph.workflow import GraphWorkflow
from temporalex_django.models import ActivityTask, Chain, Instance, Message, OperatorAction, Worker
from temporalex_django.models.fields import UnreadablePayload
from temporalex_django.models.messages import ATTENTION
from temporalex_django.operations.audit import READ
from temporalex_django.operations.base import storage
from temporalex_django.operations.fleet.outgoing import OutgoingMessage, describe_outgoing, outgoing_messages
from temporalex_django.operations.fleet.stats import LiveWorkers, live_workers_from
from temporalex_django.operations.fleet.switches import active_switches
from temporalex_django.operations.human_tasks.inbox import awaited_tasks, candidates_of, redact_tasks
from temporalex_django.operations.human_tasks.operations import mark_nobody_left
from temporalex_django.operations.read import describe
from temporalex_django.operations.read.describe import (
    history_or_error,
    open_tasks_or_error,
    read_block,
    unsaid_attempts,
)
from temporalex_django.operations.read.run_filters import leading_tasks
from temporalex_django.operations.read.run_summary import PreloadedRows, summarize_run
from temporalex_django.present.formatting import capitalize, localize_times
from temporalex_django.present.human_tasks import absent_sentence, candidate_names, step_name
from temporalex_django.present.picture import HEIGHT, WIDTH, Arrow, Box, Picture, draw_picture

#: Actions in the audit log with which a person only looked at something, or was refused to.
_LOOKS = (READ, VIEW.action)
MAX_ROWS = 50


def run_detail_context(
    run: Instance,
    *,
    page: str,
    alias: str,
    user: Person,
    redactor: Redactor,
    visible_runs: QuerySet[Instance],
    part_links: Callable[..., list[ActionLink]],
    message_links: Callable[[str], list[ActionLink]],
    history_links: Callable[[int], list[ActionLink]],
    switch_address: Callable[[str, str], str | None],
    may_decide: bool,
) -> dict[str, Any]:
    """Return the template context of the admin page of a run.

    ``page`` is the number of the page of its history, or empty for the last one. The texts are redacted by
    ``redactor``. Related runs are shown if they are in ``visible_runs``. ``may_decide`` is True if the user may decide
    what the run is waiting for.

    - ``part_links`` takes "activity" or "timer" and a command number, and returns the buttons for that part of the run.
    - ``message_links`` takes the id of a failed message and returns its buttons.
    - ``history_links`` takes the number of an activation and returns the buttons of its row in the history.
    - ``switch_address`` takes the kind and the name of a switch and returns the URL that switches it off, or None.

    At most six statements, and one more for an earlier run of a chain. For a run on a cluster, the cluster is asked for
    the open activities and the history, which takes four seconds at most.
    """
    chain = run.chain
    is_current = chain.run_id == run.pk
    now = timezone.now()
    graph_class = graph_class_of(run)
    answers = _ask_cluster(run)
    read_history = partial(histories.read_history, alias=alias, with_all_events=graph_class is not None)
    if answers.on_cluster:
        read_history = partial(histories.told_history, events=answers.events, why_not=answers.why_no_events)
    history = read_history(run, page=page, redactor=redactor, now=now, action_links=history_links)
    messages = _load_messages(chain, alias=alias)
    # One statement for both: the runs of the chain, and the children, which are in chains of their own.
    family = [*related_runs(run, visible_runs, limit=4 * MAX_ROWS)]
    audit = OperatorAction.objects.using(alias).filter(run_id=run.pk)
    # What people did first, then what they looked at, so that thousands of automatic ones cannot push them out.
    audit_rows = [*audit.order_by("automatic", Case(When(action__in=_LOOKS, then=1), default=0), "-id")[: 2 * MAX_ROWS]]
    preloaded = _preload_rows(run, family, messages, audit_rows, answers=answers, alias=alias)
    tasks = preloaded.tasks.get(run.pk, ())
    live_workers = live_workers_from(preloaded.workers, now=now)
    missing_worker = live_workers.missing_if_overdue(run, since=_overdue_since(run, messages), now=now)
    activity_rows = _activity_rows(run, tasks, answers, live_workers, redactor, now, part_links, switch_address)
    return {
        "badge": _badge_of(run),
        "said": summarize_run(run, redactor=redactor, may_decide=may_decide, preloaded=preloaded),
        "current": is_current,
        "chain": chain,
        "blocked": _blocked_context(redactor.redact_blocked(run.blocked), due_at=chain.due_at if is_current else None),
        "missing": missing_worker,
        **_switch_context(run, switch_address),
        "pollers": live_workers.count_pollers(run.queue),
        "waits": [localize_times(text, now) for text in redactor.redact_waiting_for(run.waiting_for or [], run.waits)],
        "accepts": run.accepts or {},
        "took": format_duration((run.closed_at or now) - run.created_at),
        "payloads": _payload_rows(run, redactor),
        "open": redactor.shows_payloads,
        "history": history,
        "events_open": bool(page),
        "graph": graph_class and build_graph_picture(graph_class, history.all_events, why_not=history.why_not),
        "timers": [{"row": row, "tools": part_links("timer", row.seq or 0)} for row in history.timers[:MAX_ROWS]],
        "more_timers": len(history.timers) > MAX_ROWS,
        "human_tasks": _human_task_rows(run, user),
        "on_cluster": answers.on_cluster,
        "activities": activity_rows,
        "why_no_activities": answers.why_no_tasks,
        "attempts": unsaid_attempts(run, redactor, failing=activity_rows, storage=storage()),
        "origin": origin_of(run, visible_runs, family, has_copies=history.may_be_copied),
        "failing": [row for row in activity_rows if row["failure"] is not None],
        "failed": _failure_context(run, redactor),
        **_family_context(run, family),
        "more_activities": len(tasks) > MAX_ROWS,
        "inbox": [_message_context(message, redactor, message_links=message_links) for message in messages[:MAX_ROWS]],
        "more_messages": len(messages) > MAX_ROWS,
        "outgoing": _outgoing_messages(chain, user=user, alias=alias),
        **_audit_context(audit_rows),
        "limit": MAX_ROWS,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClusterAnswers:
    """The answers of a cluster about a run: its open activities and its events, or why they are not known.

    ``on_cluster`` is False for a run on the tables, about which nothing is asked.
    """

    on_cluster: bool = True
    tasks: Sequence[ActivityTask] = ()
    why_no_tasks: str | None = None
    events: Sequence[HistoryEvent] = ()
    why_no_events: str | None = None

    @property
    def calls(self) -> dict[int, Any]:
        """The arguments by number of the activity, in the form of the column ``call``."""
        scheduled = (event.attributes for event in self.events if event.kind == "ActivityScheduled")
        return {call["seq"]: [call["args"], call.get("kwargs") or {}] for call in scheduled}


def _ask_cluster(run: Instance) -> _ClusterAnswers:
    """Ask the cluster, and set ``run.blocked`` if its task fails. After an error it is not asked for the history."""
    if run.chain.backend == TABLES:
        return _ClusterAnswers(on_cluster=False)
    target, rows = RunTarget.of(run), storage()
    tasks: Sequence[ActivityTask] = ()
    error = None
    if run.is_open:
        tasks, error = open_tasks_or_error(target, storage=rows)
    if error is not None:
        return _ClusterAnswers(why_no_tasks=error, why_no_events=error)
    read_block(run, target, storage=rows)
    events, why_no_events = history_or_error(target, storage=rows)
    return _ClusterAnswers(tasks=tasks, events=events, why_no_events=why_no_events)


def _switch_context(run: Instance, switch_address: Callable[[str, str], str | None]) -> dict[str, Any]:
    """Return the URLs of the switches; None for a closed run or a user who may not use them."""
    if not run.is_open:
        return {"switch_class": None, "switch_queue": None}
    off = _names_off(run)
    return {
        "class_off": ("workflow", run.workflow) in off,
        "queue_off": ("queue", run.queue) in off,
        "switch_class": switch_address("workflow", run.workflow),
        "switch_queue": switch_address("queue", run.queue),
    }


def _names_off(run: Instance) -> set[tuple[str, str]]:
    """Return ``(kind, name)`` pairs. No read if the run says that nothing is off."""
    if not getattr(run, "anything_off", True):
        return set()
    alias = run._state.db  # noqa: SLF001 - Django documents it
    return set(active_switches(str(alias)).values_list("kind", "name"))


def _outgoing_messages(chain: Chain, *, user: Any, alias: str) -> list[OutgoingMessage]:
    """Return the messages that are not sent yet, and the dead letters. At most two reads."""
    if chain.backend == TABLES:
        return []
    return describe_outgoing([*outgoing_messages(alias, user).filter(chain=chain)[:MAX_ROWS]], user)


def _audit_context(audit_rows: Sequence[OperatorAction]) -> dict[str, Any]:
    return {
        "acted": [row for row in audit_rows if not row.automatic and row.action not in _LOOKS],
        "looked": [row for row in audit_rows if not row.automatic and row.action in _LOOKS],
        "automatic": [row for row in audit_rows if row.automatic],
    }


def _family_context(run: Instance, family: Sequence[Instance]) -> dict[str, Any]:
    """Divide ``family``, as ``related_runs`` returns it, into the runs of the chain and the children."""
    runs = [relative for relative in family if relative.chain_id == run.chain_id]
    children = [relative for relative in family if relative.chain_id != run.chain_id]
    return {
        "runs": [{"run": other, "badge": _badge_of(other), "this": other.pk == run.pk} for other in runs],
        "more_runs": len(runs) > MAX_ROWS,
        "children": [{"run": child, "badge": _badge_of(child)} for child in children[:MAX_ROWS]],
        "more_children": len(children) > MAX_ROWS,
    }


def _badge_of(run: Instance) -> SafeString:
    return status_badge(run.status, blocked=bool(run.blocked))


def _human_task_rows(run: Instance, user: Person) -> list[dict[str, Any]]:
    return [
        {
            "row": task,
            "step": step_name(task.key),
            "candidates": ", ".join(candidate_names(candidates_of(task))),
            "claimed_by": claimed_by_name(task),
            "absent": absent_sentence(task.absent) if task.absent else "",
        }
        for task in mark_nobody_left(*redact_tasks(awaited_tasks(run, limit=MAX_ROWS), user), with_permissions=False)
    ]


def _is_code_missing(live_workers: LiveWorkers, task: ActivityTask) -> bool:
    """Return True if live workers poll the queue of the activity but none of them has its code."""
    return live_workers.count_pollers(task.queue) > 0 and not live_workers.can_run_activity(
        task.activity, queue=task.queue
    )


def _preload_rows(
    run: Instance,
    family: Sequence[Instance],
    messages: Sequence[Message],
    audit_rows: Sequence[OperatorAction],
    *,
    answers: _ClusterAnswers,
    alias: str,
) -> PreloadedRows:
    """Return the rows for the summary. Only activity tasks and workers are read here."""
    children = [relative for relative in family if relative.chain_id != run.chain_id]
    tasks: dict[UUID, list[ActivityTask]] = defaultdict(list)
    workers: list[Worker] = []
    if run.is_open:
        awaited_ids = _awaited_child_ids(run, children)
        for task in leading_tasks([run.pk, *awaited_ids], alias=alias, limit=MAX_ROWS + 1):
            tasks[task.run_id].append(task)
        if answers.on_cluster:
            tasks[run.pk] = _leading(answers.tasks)
        # Without due work no worker is missing, and the statement can be saved.
        if tasks or awaited_ids or run.started_at is None or _overdue_since(run, messages) is not None:
            workers = [*Worker.objects.using(alias)]
    return PreloadedRows(
        tasks=tasks,
        workers=workers,
        children=children,
        others=next((getattr(relative, "others", None) or 0 for relative in family), 0),
        unread=sum(not message.settled for message in messages),
        unread_since=_unread_since(messages),
        failed_messages=sum(message.failed for message in messages),
        closing_action=_closing_action(audit_rows),
    )


def _leading(tasks: Sequence[ActivityTask]) -> list[ActivityTask]:
    """Sort the activities of a cluster as ``leading_tasks`` does, with its annotation."""
    for task in tasks:
        task.count = len(tasks)  # type: ignore[attr-defined] # the annotation
    return sorted(tasks, key=lambda task: (task.failed_at is None, task.failed_at, task.seq))


def _awaited_child_ids(run: Instance, children: Sequence[Instance]) -> list[UUID]:
    """Return the child that the run waits for alone: the activities of that child are loaded, too."""
    match run.waits:
        case [{"kind": "child", "seq": seq}] if seq is not None:
            return [child.pk for child in children if child.parent_seq == seq][:1]
        case _:
            return []


def _closing_action(audit_rows: Sequence[OperatorAction]) -> tuple[str, str]:
    """Return ``(name, reason)`` of who cancelled or terminated the run; both empty if nobody did."""
    for row in audit_rows:
        if row.action in ("cancel", "terminate") and not row.denied:
            return row.actor_name, row.reason
    return "", ""


def _overdue_since(run: Instance, messages: Sequence[Message]) -> datetime | None:
    """Return since when the run has work for a worker, or None."""
    if run.chain.run_id != run.pk or not run.is_open or run.blocked or run.paused:
        return None
    moments = (run.chain.due_at, _unread_since(messages))
    return min((at for at in moments if at is not None and at <= timezone.now()), default=None)


def _unread_since(messages: Sequence[Message]) -> datetime | None:
    """Return the time of the oldest message that no turn has read."""
    return min((message.created_at for message in messages if message.fresh and not message.settled), default=None)


def _failure_context(run: Instance, redactor: Redactor) -> dict[str, str] | None:
    """Return the failure. The type is empty for a reason; place and traceback are those of an activity's error."""
    closing = run.closing_value
    if run.status != "failed" or not isinstance(closing, dict):
        return None
    kind = str(closing.get("type") or "")
    where = {"place": (run.cause or "").rpartition(" at ")[2] if " at " in (run.cause or "") else "", "traceback": ""}
    if not redactor.shows_payloads:
        return {"type": kind, "message": redactor.redact_text(""), **where}
    source = "message" if closing.get("reason") is None else "reason"
    reason = redactor.redact_attributes(closing).get(source)
    if not isinstance(reason, str):
        reason = format_payload(reason).preview
    if redactor.shows_error_text:
        where["traceback"] = str(closing.get("cause_traceback") or closing.get("traceback") or "")
    return {"type": kind, "message": reason, **where}


def _load_messages(chain: Chain, *, alias: str) -> list[Message]:
    """Return failed messages first, then those without an outcome; newest first, at most ``MAX_ROWS`` and one.

    An open chain needs only partial indexes. A closed chain is sorted: no index has signals that were never delivered.
    """
    order: list[Any] = [Case(When(ATTENTION, then=0), default=1), "settled", "-id"]
    messages = Message.objects.using(alias).filter(chain_id=chain.pk)
    if chain.closed:
        return [*messages.order_by(*order)[: MAX_ROWS + 1]]
    unread = messages.filter(settled=False).order_by("-id").values("pk")
    answered = messages.filter(settled=True, request_id__isnull=False).order_by("-id").values("pk")
    rows = Message.objects.using(alias)
    failed = messages.filter(ATTENTION).order_by("-id").values("pk")
    # A union of three limited queries, each by one partial index: an OR over the table would sort every message of the
    # chain. The outer IN lets the database sort the few rows that are left.
    key_queries = (unread, answered, failed)
    first, *others = (rows.filter(pk__in=keys[: MAX_ROWS + 1]).order_by().values("pk") for keys in key_queries)
    return [*rows.filter(pk__in=first.union(*others)).order_by(*order)[: MAX_ROWS + 1]]


def _redact_payload(payload: Any, redact: Callable[[Any], Any], redactor: Redactor) -> Any:
    """Keep an unreadable payload, which shows its error, only for users who may see payloads."""
    if isinstance(payload, UnreadablePayload) and redactor.shows_payloads:
        return payload
    return redact(payload)


def _blocked_context(blocked: dict[str, Any] | None, *, due_at: datetime | None) -> dict[str, Any] | None:
    """Return why and since when the run is blocked, and what to do; ``due_at`` is the next try."""
    if not blocked:
        return None
    code = str(blocked.get("code", ""))
    since = blocked.get("since")
    return {
        "code": code,
        "error": blocked.get("error", ""),
        "since": datetime.fromisoformat(since) if isinstance(since, str) else None,
        "last": datetime.fromisoformat(last) if isinstance(last := blocked.get("last"), str) else None,
        "attempt": blocked.get("attempt"),
        "due_at": due_at,
        # Texts of errors are Markdown, because the reference prints them too.
        "next_step": _next_step_texts().get(code, "").replace("`", ""),
    }


def _next_step_texts() -> dict[str, str]:
    texts: dict[str, str] = {}
    pending_classes: list[type[errors.TemporalexError]] = [errors.TemporalexError]
    while pending_classes:
        cls = pending_classes.pop()
        texts[cls.code] = getattr(cls, "next_step", "")
        pending_classes += cls.__subclasses__()
    # "crash" has no error class: the worker died before it could raise anything.
    return {
        **texts,
        "crash": _(
            "The processes that ran the code of this run died. Check the logs of the workers and correct the "
            "code. Then click “Try again now”, and a single worker retries only this run. Alternatively, "
            "terminate the run."
        ),
    }


def _payload_rows(run: Instance, redactor: Redactor) -> list[tuple[str | SafeString, FormattedPayload]]:
    def format_redacted(payload: Any) -> FormattedPayload:
        return format_payload(_redact_payload(payload, redactor.redact_payload, redactor))

    rows: list[tuple[str | SafeString, FormattedPayload]] = [(_("Input"), format_redacted(run.input))]
    if run.published is not None:
        title = _("Published state")
        if run.published_at is not None:
            title = format_html(_("Published state, since {}"), format_time(run.published_at))
        rows.append((title, format_redacted(run.published_state)))
    # Redact the end of a run by its kind: a result is a payload, and a failure has attributes that may quote payloads.
    closing = run.closing_value
    if isinstance(closing, UnreadablePayload):
        rows.append((_("Result"), format_redacted(closing)))
    elif isinstance(closing, dict):
        if run.status == "completed":
            rows.append((_("Result"), format_redacted(closing.get("result"))))
        else:
            rows.append((_("How it ended"), format_payload(redactor.redact_attributes(closing))))
    for column in columns_shown_in(Place.ADMIN):
        value = getattr(run, column.name)
        if value in (None, [], {}):
            continue
        if column.type is ColumnType.ATTRIBUTES:
            value = to_readable(value)
        rows.append((_(column.heading), format_payload(value)))
    return rows


def _activity_rows(
    run: Instance,
    tasks: Sequence[ActivityTask],
    answers: _ClusterAnswers,
    live_workers: LiveWorkers,
    redactor: Redactor,
    now: datetime,
    part_links: Callable[..., list[ActionLink]],
    switch_address: Callable[[str, str], str | None],
) -> list[dict[str, Any]]:
    rows, calls = [], answers.calls
    off = _names_off(run) if tasks else set()
    for task in tasks[:MAX_ROWS]:
        has_worker = task.atomic or not _is_code_missing(live_workers, task)
        row = _activity_context(task, redactor, now=now, call=calls.get(task.seq))
        row["tools"] = part_links("activity", task.seq, has_worker=has_worker)
        row["is_off"] = ("activity", task.activity) in off
        row["switch"] = None if task.atomic else switch_address("activity", task.activity)
        rows.append(row)
    return rows


def _activity_context(task: ActivityTask, redactor: Redactor, *, now: datetime, call: Any = None) -> dict[str, Any]:
    """Return the context. ``call`` are the arguments if the row has none."""
    activity = redactor.redact_activity(task.as_open)
    failure, progress = activity.last_failure, activity.progress
    if task.owner is not None:
        state, since = _("running since"), task.started_at or now
    elif task.due_at > now:
        state, since = _("next attempt at"), task.due_at
    else:
        state, since = _("queued since"), task.due_at
    attempt_limit = ""
    if task.max_attempts:
        attempt_limit = f" / {task.max_attempts}"
    heartbeat = None
    if task.heartbeat is not None:
        heartbeat = format_payload(_redact_payload(task.heartbeat_details, redactor.redact_payload, redactor))
    return {
        "task": task,
        "failure": failure,
        "state": state,
        "since": since,
        "attempt": f"{task.attempt}{attempt_limit}",
        "arguments": None
        if task.pk is None and call is None
        else format_call(_redact_payload(call or task.arguments, redactor.redact_payload, redactor)),
        "heartbeat": heartbeat,
        "bar": "" if progress is None else progress_bar(progress["done"], progress["total"], progress["text"]),
    }


def _message_context(
    message: Message, redactor: Redactor, *, message_links: Callable[[str], list[ActionLink]]
) -> dict[str, Any]:
    """Return the context. ``message_links`` returns the buttons of a failed message."""

    def format_redacted(payload: Any) -> FormattedPayload:
        return format_payload(
            _redact_payload(payload, partial(redactor.redact_payload, message_name=message.name), redactor)
        )

    state: str | SafeString
    if message.outcome_status:
        state = {
            "accepted": _("accepted, not finished"),
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
        state = _("waiting in the inbox")
    return {
        "message": message,
        "state": state,
        "wrong": message.failed or message.outcome_status == "fault",
        "tools": message_links(str(message.request_id)) if message.failed else [],
        "payload": format_redacted(message.payload),
        "outcome": format_redacted(message.outcome_value) if message.outcome is not None else None,
    }


# --- graph picture ----------------------------------------------------------------------------------------------------
#
# The graph of a run with the state of each step, as a drawing and as a list with the same content.


#: Kinds of ``formatting.badge`` by the state of a step.
_SHAPES = {
    "completed": "completed", "active": "running", "waiting": "waiting", "requested": "pending", "failed": "failed",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnStep:
    """A step of a graph as the admin page of a run shows it, in the drawing and in the list below it.

    ``box`` is its place and state in the drawing, and ``shape`` the symbol of its state. ``leads_to`` has a text for
    each step that may follow: the event and the title of that step.
    """

    box: Box
    shape: SafeString
    state_text: str
    leads_to: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPicture:
    """The graph of a run as its admin page shows it: the drawing, and the list of its steps.

    ``why_not`` says why the steps have no states, and is None if they have them.
    """

    drawn: Picture
    steps: Sequence[DrawnStep]
    why_not: str | None
    width: int = WIDTH
    height: int = HEIGHT


def graph_class_of(run: Instance) -> type[GraphWorkflow] | None:
    """Return the graph class of a run in exactly its version.

    Returns None if the run is not a graph, or if this process lacks that version of the class.
    """
    # Without the very version, another one may be found: its steps would not be those of the run.
    code: type[Workflow] | None = describe.class_or_none(run.workflow, run.version)
    if code is not None and issubclass(code, GraphWorkflow) and code.version == run.version:
        return code
    return None


def build_graph_picture(
    graph_class: type[GraphWorkflow], events: Sequence[HistoryEvent] | None, *, why_not: str | None = None
) -> GraphPicture:
    """Return the drawing of the graph, with the states of its steps that follow from the history of a run.

    ``events`` is the whole history, or None if it is too long to read; the steps then have no states. ``why_not`` is
    another reason why there is no history, or None.
    """
    refs = list(graph_class.graph())
    step_numbers = {step: n for n, step in enumerate(refs)}
    step_states: dict[int, str] = {}
    if why_not is None:
        step_states, why_not = _step_states(graph_class, step_numbers, events)
    # Several events may lead from one step to the same next step: one arrow with all their names.
    edge_events: dict[tuple[int, int], list[str]] = defaultdict(list)
    dynamic: set[tuple[int, int]] = set()
    for edge in graph_class.edges():
        for target in edge.targets:
            arrow_key = step_numbers[edge.source], step_numbers[target]
            edge_events[arrow_key].append(edge.event)
            dynamic |= {arrow_key} if edge.dynamic else set()
    arrows = [
        Arrow(source=arrow_key[0], target=arrow_key[1], label=", ".join(event_names), dynamic=arrow_key in dynamic)
        for arrow_key, event_names in edge_events.items()
    ]
    names = [capitalize(describe.step_title(graph_class, key_of(step))) for step in refs]
    drawn = draw_picture(names, arrows, step_states)
    state_texts = _state_texts()
    leads_to: dict[int, list[str]] = defaultdict(list)
    for arrow in arrows:
        leads_to[arrow.source].append(f"{arrow.label} → {names[arrow.target]}")
    steps = [
        DrawnStep(
            box=box,
            shape=shape(_SHAPES.get(box.state, "")),
            state_text=state_texts.get(box.state, ""),
            leads_to=leads_to[box.number],
        )
        for box in drawn.boxes
    ]
    return GraphPicture(drawn=drawn, steps=steps, why_not=why_not)


def _step_states(
    graph_class: type[GraphWorkflow], step_numbers: Mapping[StepRef, int], events: Sequence[HistoryEvent] | None
) -> tuple[dict[int, str], str | None]:
    """Return ``(states by number, why there are none or None)``. Events are None if the history is too long."""
    if events is None:
        return {}, _("The history is too long to read here, so the states of the steps are not shown.")
    try:
        instance = None
        if events:
            instance = project(graph_class, events)
    # Other code may have written the history, or a payload cannot be read: the page must show the graph anyway.
    except (TemporalexError, LookupError, TypeError, ValueError):
        return {}, _("The history does not match the current graph, so the states of the steps are not shown.")
    return {step_numbers[step]: state for step, state in states(instance).items()}, None


def _state_texts() -> dict[str, str]:
    return {
        "completed": _("completed"),
        "active": _("active"),
        "waiting": _("waiting"),
        "requested": _("waiting for other steps"),
        "failed": _("failed"),
    }
