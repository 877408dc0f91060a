"""The template context of the page of a run, part by part, read with a fixed number of statements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from typing import Any, Literal
from uuid import UUID

from django.db.models import Case, QuerySet, When
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from temporalex_django import errors
from temporalex_django.access import VIEW, is_unfiltered, redactor_for
from temporalex_django.authoring.redaction import Redactor
from temporalex_django.authoring.run_columns import ColumnType, Place, columns_shown_in
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.console.base import (
    FormattedPayload,
    claimed_by_name,
    format_call,
    format_duration,
    format_payload,
    format_time,
    progress_bar,
    shorten,
    status_badge,
    user_of,
)
from temporalex_django.console.fleet import switch_address_for
from temporalex_django.console.mount import Mount
from temporalex_django.console.run.events import can_compare, page_of_events, read_events
from temporalex_django.console.run.graph import build_graph_picture, graph_class_of, read_graph_events
from temporalex_django.console.run.messages import MessagePanel, message_panels, query_links
from temporalex_django.console.run.operator_views import (
    ActionLink,
    message_action_links,
    part_action_links,
    run_action_links,
)
from temporalex_django.console.run.origin import origin_of, related_runs, schedule_context
from temporalex_django.console.run.start import like_address
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.names import TABLES
from temporalex_django.core.payloads.search_attributes import to_readable
from temporalex_django.models import ActivityTask, Chain, HumanTask, Instance, Message, OperatorAction, Worker
from temporalex_django.models.fields import UnreadablePayload
from temporalex_django.models.messages import ATTENTION
from temporalex_django.operations.audit import READ
from temporalex_django.operations.base import storage
from temporalex_django.operations.fleet.outgoing import OutgoingMessage, describe_outgoing, outgoing_messages
from temporalex_django.operations.fleet.stats import LiveWorkers, live_workers_from
from temporalex_django.operations.fleet.switches import active_switches
from temporalex_django.operations.human_tasks.inbox import awaited_tasks, candidates_of, redact_tasks
from temporalex_django.operations.human_tasks.operations import mark_nobody_left
from temporalex_django.operations.read.describe import (
    history_or_error,
    open_tasks_or_error,
    read_block,
    unsaid_attempts,
)
from temporalex_django.operations.read.family import MAX_LEVELS, MAX_RUNS, FamilyMember, family_tree
from temporalex_django.operations.read.run_filters import leading_tasks
from temporalex_django.operations.read.run_summary import PreloadedRows, summarize_run
from temporalex_django.present.formatting import localize_times
from temporalex_django.present.human_tasks import absent_sentence, candidate_names, step_name

#: Actions in the audit log with which a person only looked at something, or was refused to.
_LOOKS = (READ, VIEW.action)
MAX_ROWS = 50
_MAX_FAILING = 3
_MAX_INDENTS = 12
_ENDED_BY_PEOPLE = ("cancelled", "terminated")
#: States of summaries in which the run waits for a message.
_MESSAGE_STATES = ("phase", "signal", "several", "decision")


class RunDetail:
    """A run and the rows about it from which the parts of its page are made. The user may see the run.

    ``visible_runs`` are the runs that the user sees. The texts are redacted. At most five statements; for a run on a
    cluster, the cluster is asked for the open activities and, ``with_events``, for the history, which takes four
    seconds at most.
    """

    def __init__(
        self,
        request: HttpRequest,
        mount: Mount,
        run: Instance,
        *,
        visible_runs: QuerySet[Instance],
        with_events: bool,
        with_audit: bool,
    ) -> None:
        self.request, self.mount, self.run, self.visible_runs = request, mount, run, visible_runs
        self.user = user_of(request)
        self.redactor = redactor_for(self.user, run)
        self.alias, self.now = storage().alias, timezone.now()
        self.is_current = run.chain.run_id == run.pk
        self.answers = _ask_cluster(run, with_events=with_events)
        self.messages = _load_messages(run.chain, alias=self.alias)
        # One statement for both: the runs of the chain, and the children, which are in chains of their own.
        self.family = [*related_runs(run, visible_runs, limit=4 * MAX_ROWS)]
        self.audit_rows = _load_audit(run, alias=self.alias) if with_audit or run.status in _ENDED_BY_PEOPLE else []
        self.preloaded = _preload_rows(
            run, self.family, self.messages, self.audit_rows, answers=self.answers, alias=self.alias
        )
        self.tasks = self.preloaded.tasks.get(run.pk, ())
        self.live_workers = live_workers_from(self.preloaded.workers, now=self.now)
        self.names_off = _names_off(run) if run.is_open else set()
        self.panels = self._message_panels()
        self.summary = summarize_run(
            run,
            redactor=self.redactor,
            may_decide=any(panel.can_decide for panel in self.panels),
            preloaded=self.preloaded,
        )
        self.activities = [self._activity_row(task) for task in self.tasks[:MAX_ROWS]]

    #: Most rows of each list.
    row_limit = MAX_ROWS

    def address(self, page: str, *args: Any) -> str:
        """Return the URL of a page about the run, such as that of an operation."""
        return self.mount.address(page, self.run.pk, *args)

    @property
    def action_address(self) -> Callable[[str], str]:
        """A function that takes the name of an operation and returns the URL of its page."""
        return partial(self.address, "do")

    def _message_panels(self) -> list[MessagePanel]:
        # Messages go to the chain, and so to its newest run, whose page has the panels.
        if not self.is_current:
            return []
        return message_panels(self.run, self.user, address=self.address("message"))

    def _activity_row(self, task: ActivityTask) -> dict[str, Any]:
        has_worker = task.atomic or not _is_code_missing(self.live_workers, task)
        row = _activity_context(task, self.redactor, now=self.now, call=self.answers.calls.get(task.seq))
        links = self.part_links("activity", task.seq, has_worker=has_worker)
        row["tools"] = sorted(links, key=lambda link: link.destructive)
        row["is_off"] = ("activity", task.activity) in self.names_off
        row["switch"] = None if task.atomic else self.switch_address("activity", task.activity)
        return row

    def part_links(self, of: Literal["activity", "timer"], seq: int, *, has_worker: bool = True) -> list[ActionLink]:
        """Return the buttons for the activity or timer with the command number ``seq``."""
        return part_action_links(self.run, of, seq, user=self.user, address=self.action_address, has_worker=has_worker)

    @cached_property
    def switch_address(self) -> Callable[[str, str], str | None]:
        """A function that takes the kind and the name of a switch and returns the URL that switches it off, or None."""
        return switch_address_for(self.mount, self.request)  # type: ignore[no-any-return] # it returns Any

    @cached_property
    def human_tasks(self) -> list[HumanTask]:
        """The open human tasks that the run waits for, as the user may see them. One read if it waits for a person."""
        return redact_tasks(awaited_tasks(self.run, limit=MAX_ROWS), self.user)

    # -- the parts -----------------------------------------------------------------------------------------------------

    def head(self) -> dict[str, Any]:
        """Return the context of the head of all parts: the sentence, the buttons, and what is wrong. No payloads."""
        run, failing = self.run, [row for row in self.activities if row["failure"] is not None]
        return {
            "run": run,
            "badge": _badge_of(run),
            "said": self.summary,
            "current": self.is_current,
            "blocked": _blocked_context(
                self.redactor.redact_blocked(run.blocked), due_at=run.chain.due_at if self.is_current else None
            ),
            "missing": self.live_workers.missing_if_overdue(
                run, since=_overdue_since(run, self.messages), now=self.now
            ),
            "pollers": self.live_workers.count_pollers(run.queue),
            "failed": _failure_context(run, self.redactor),
            "failing": failing[:_MAX_FAILING],
            "more_failing": max(0, len(failing) - _MAX_FAILING),
            **self._action_context(),
            "switches_off": self._switches_off(),
            "took": format_duration((run.closed_at or self.now) - run.created_at),
            "subject": None if run.subject_type is None else f"{run.subject_type.name} {run.subject_id}",
            "subject_address": self.mount.subject_address(self.request, run),
            **schedule_context(run, partial(self.mount.address, "schedule")),
            **self._parent_context(),
        }

    def _action_context(self) -> dict[str, Any]:
        """Return the buttons: what helps the run in its state, what else is possible, and the rest with the reasons."""
        links = sorted(
            run_action_links(self.run, self.user, address=self.action_address), key=lambda link: link.destructive
        )
        helpful = _helpful_names(self.run)
        return {
            "helpful": [*self._decisions(), *(link for link in links if link.name in helpful and not link.why_not)],
            "tools": [link for link in links if not link.why_not and link.name not in helpful],
            "impossible": [link for link in links if link.why_not and not link.lacks_permission],
            "refused": [link for link in links if link.lacks_permission],
            "like": like_address(self.run, self.user, address=self.mount.address("start")),
        }

    def _decisions(self) -> list[ActionLink]:
        """Return links to what people can do about a wait: the tasks to decide, or the forms of messages."""
        links = [
            ActionLink(name="decide", label=_("Decide “%(title)s”") % {"title": shorten(task.title)}, address=address)
            for task in self.human_tasks[:_MAX_FAILING]
            if (address := self.mount.task_address(str(task.pk)))
        ]
        messages = self.address("run_part", "messages")
        if any(message.failed for message in self.messages):
            links.append(ActionLink(name="messages", label=_("Show the failed messages"), address=messages))
        elif self.summary.state in _MESSAGE_STATES and any(panel.why_not is None for panel in self.panels):
            links.append(ActionLink(name="messages", label=_("Send a message…"), address=messages))
        return links

    def _switches_off(self) -> list[dict[str, Any]]:
        """Return the class and the queue of the run if they are off, each with the page that switches it on."""
        return [
            {"name": name, "address": self.switch_address(kind, name)}
            for kind, name in (("workflow", self.run.workflow), ("queue", self.run.queue))
            if (kind, name) in self.names_off
        ]

    def _parent_context(self) -> dict[str, Any]:
        """Return id and URL of the parent; both None if the user may not see it."""
        run, runs = self.run, self.visible_runs
        if run.parent_run_id is None or not (is_unfiltered(runs) or runs.filter(pk=run.parent_run_id).exists()):
            return {"parent": None, "parent_address": None}
        return {"parent": run.parent, "parent_address": self.mount.run_address(run.parent_run_id)}

    def origin(self, *, has_copies: bool) -> dict[str, Any]:
        """Return the run that this one continues after a reset or fork; ``has_copies`` as ``origin_of`` takes it."""
        origin = origin_of(self.run, self.visible_runs, self.family, has_copies=has_copies)
        if origin is not None and origin["source"] is not None:
            origin["address"] = self.mount.run_address(origin["source"].pk)
        if origin is not None and origin["action"] is not None:
            origin["audit_address"] = self.mount.audit_address(self.request, origin["action"].pk)
        return {"origin": origin}

    def messages_part(self) -> dict[str, Any]:
        """Return the context of the messages: forms, queries, the inbox, and messages to other systems."""
        run = self.run
        links = partial(message_action_links, run, user=self.user, address=self.action_address)
        return {
            "panels": self.panels,
            "queries": query_links(run, self.user, address=self.address("query")),
            "inbox": [_message_context(row, self.redactor, message_links=links) for row in self.messages[:MAX_ROWS]],
            "more_messages": len(self.messages) > MAX_ROWS,
            "outgoing": _outgoing_messages(run.chain, user=self.user, alias=self.alias),
        }

    def data_part(self) -> dict[str, Any]:
        """Return the context of the values of the run, its waits, and the arguments of its activities."""
        run = self.run
        return {
            "payloads": _payload_rows(run, self.redactor),
            "waits": [
                localize_times(text, self.now)
                for text in self.redactor.redact_waiting_for(run.waiting_for or [], run.waits)
            ],
            "accepts": run.accepts or {},
            "chain": run.chain,
            "class_off": ("workflow", run.workflow) in self.names_off,
            "queue_off": ("queue", run.queue) in self.names_off,
            "switch_class": self.switch_address("workflow", run.workflow) if run.is_open else None,
            "switch_queue": self.switch_address("queue", run.queue) if run.is_open else None,
            "activities": self.activities,
            "more_activities": len(self.tasks) > MAX_ROWS,
            "why_no_activities": self.answers.why_no_tasks,
            "on_cluster": self.answers.on_cluster,
            "attempts": unsaid_attempts(run, self.redactor, failing=self.activities, storage=storage()),
            "tasks_address": self.mount.background_tasks_address(self.request, run.pk),
        }

    def people_part(self) -> dict[str, Any]:
        """Return the context of the people whom the run asks."""
        return {
            "human_tasks": [
                {
                    "row": task,
                    "step": step_name(task.key),
                    "address": self.mount.task_address(str(task.pk)),
                    "candidates": ", ".join(candidate_names(candidates_of(task))),
                    "claimed_by": claimed_by_name(task),
                    "absent": absent_sentence(task.absent) if task.absent else "",
                }
                for task in mark_nobody_left(*self.human_tasks, with_permissions=False)
            ]
        }

    def family_part(self) -> dict[str, Any]:
        """Return the context of the related runs: the tree of the family, and the chain. Four reads at most."""
        tree = family_tree(self.run, self.visible_runs, storage=storage())
        runs = [relative for relative in self.family if relative.chain_id == self.run.chain_id]
        return {
            "members": [self._member(member) for member in tree.members] if len(tree.members) > 1 else [],
            "is_cut": tree.is_cut,
            "max_members": MAX_RUNS,
            "max_levels": MAX_LEVELS,
            "runs": [self._relative(other) for other in runs[:MAX_ROWS]],
            "more_runs": len(runs) > MAX_ROWS,
        }

    def _member(self, member: FamilyMember) -> dict[str, Any]:
        indents = range(min(member.level, _MAX_INDENTS))
        return {"member": member, "indents": indents, **self._relative(member.run)}

    def _relative(self, other: Instance) -> dict[str, Any]:
        return {
            "run": other,
            "badge": _badge_of(other),
            "this": other.pk == self.run.pk,
            "address": self.mount.run_address(other.pk),
        }

    def audit_part(self) -> dict[str, Any]:
        """Return the context of the audit log: what people did, what they looked at, and what programs did."""
        rows = self.audit_rows
        return {
            "acted": [row for row in rows if not row.automatic and row.action not in _LOOKS],
            "looked": [row for row in rows if not row.automatic and row.action in _LOOKS],
            "automatic": [row for row in rows if row.automatic],
            "shows_addresses": self.redactor.shows_payloads,
        }

    def graph_part(self) -> dict[str, Any]:
        """Return the context of the graph of the run; None for a run that is no graph. One read."""
        graph_class = graph_class_of(self.run)
        if graph_class is None:
            return {"graph": None}
        if self.answers.on_cluster:
            return {"graph": build_graph_picture(graph_class, self.answers.events, why_not=self.answers.why_no_events)}
        return {"graph": build_graph_picture(graph_class, read_graph_events(self.run, alias=self.alias))}

    def raw_part(self) -> dict[str, Any]:
        """Return the context of the events one by one."""
        page, answers = self.request.GET.get("p", ""), self.answers
        if answers.on_cluster:
            events = page_of_events(answers.events, page=page, redactor=self.redactor)
        else:
            events = read_events(self.run, page=page, alias=self.alias, redactor=self.redactor)
        return {
            "events": events,
            "why_not": answers.why_no_events,
            "compare_address": self.address("compare") if can_compare(self.run, self.user) else None,
        }


def _helpful_names(run: Instance) -> frozenset[str]:
    """Return the names of the operations that help a run in its state."""
    if run.is_open and run.blocked:
        return frozenset({"try_again", "reset"})
    if run.is_open and run.paused:
        return frozenset({"unpause"})
    if run.status in ("failed", "timed_out"):
        return frozenset({"reset"})
    return frozenset()


def _load_audit(run: Instance, *, alias: str) -> list[OperatorAction]:
    """Return what people did first, then what they looked at: thousands of automatic rows cannot push them out."""
    audit = OperatorAction.objects.using(alias).filter(run_id=run.pk)
    return [*audit.order_by("automatic", Case(When(action__in=_LOOKS, then=1), default=0), "-id")[: 2 * MAX_ROWS]]


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


def _ask_cluster(run: Instance, *, with_events: bool) -> _ClusterAnswers:
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
    if not with_events:
        return _ClusterAnswers(tasks=tasks)
    events, why_no_events = history_or_error(target, storage=rows)
    return _ClusterAnswers(tasks=tasks, events=events, why_no_events=why_no_events)


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


def _badge_of(run: Instance) -> SafeString:
    return status_badge(run.status, blocked=bool(run.blocked))


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
