"""Read the state of runs from which sentences about them are built, with few statements for a whole page.

A page of open runs takes two statements: their activities, and the workers. A third one reads the switches if a run
waits for a worker, and a fourth one the ends of closed runs. A single run may take two more: the messages or other
blocked runs, and the state of its child.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import (
    prefetch_related_objects,
)
from django.utils import timezone
from django.utils.translation import gettext

from temporalex_django.authoring.backend import OpenActivity
from temporalex_django.authoring.redaction import Redactor
from temporalex_django.authoring.run_columns import PAYLOAD_COLUMNS
from temporalex_django.db.messages.inbox import failed_count
from temporalex_django.engine.refusals import start_wait
from temporalex_django.errors import WorkflowSwitchedOff
from temporalex_django.models import ActivityTask, EnqueuedTask, Instance, Message, Worker
from temporalex_django.models.fields import UnreadablePayload, decode_payload
from temporalex_django.operations.fleet.stats import live_workers_from
from temporalex_django.operations.read import describe
from temporalex_django.operations.read.project_state import SwitchViews, load_switches, switch_of_run, switch_of_task
from temporalex_django.operations.read.run_filters import STATUSES_WITH_REASON, annotate_ends, leading_tasks
from temporalex_django.present.formatting import format_at, humanize_name
from temporalex_django.present.sentences import Summary, activity_summary, build_summary
from temporalex_django.present.view_models import (
    DUE_GRACE_PERIOD,
    ActivityView,
    BlockedView,
    EndView,
    PausedView,
    RunView,
    WaitView,
    WorkersView,
)

#: Activities of a run that a sentence may name; further ones are counted.
_MAX_TASKS = 3
_MAX_OTHERS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PreloadedRows:
    """Rows and figures about a run that the caller has read already, so that its summary reads them no more.

    ``tasks`` has the activity tasks by run id, as ``leading_tasks`` returns them. It includes the tasks of the child
    that the run waits for. ``children`` are the child runs. ``others`` is the number of other runs that are blocked for
    the same reason. ``unread`` is the number of messages without an outcome, ``unread_since`` the time of the oldest
    unread message, and ``failed_messages`` the number of failed messages. ``closing_action`` is a pair: the name of the
    person who ended the run, and their reason.
    """

    tasks: Mapping[UUID, Sequence[ActivityTask]]
    workers: Sequence[Worker]
    children: Sequence[Instance] = ()
    others: int = 0
    unread: int = 0
    unread_since: datetime | None = None
    failed_messages: int = 0
    closing_action: tuple[str, str] = ("", "")


def summarize_run(
    run: Instance,
    *,
    redactor: Redactor,
    now: datetime | None = None,
    may_decide: bool = False,
    preloaded: PreloadedRows | None = None,
) -> Summary:
    """Return the summary of one run, without the texts that ``redactor`` hides.

    ``may_decide`` is True if the reader may decide the human task that the run waits for; the summary then says so. At
    most six statements, and with ``preloaded`` hardly any.
    """
    at = now or timezone.now()
    return build_summary(
        replace(load_run_state(run, redactor=redactor, now=at, preloaded=preloaded), may_decide=may_decide), now=at
    )


def load_run_state(
    run: Instance, *, redactor: Redactor, now: datetime, preloaded: PreloadedRows | None = None
) -> RunView:
    """Read the facts about one run from which its summary is built, and return them as a ``RunView``.

    Texts that ``redactor`` hides are left out. ``now`` is the time for which the facts are computed. ``preloaded`` has
    rows that the caller has read already.
    """
    return RunStateLoader([run], now=now, with_details=True, preloaded=preloaded).state(run, redactor)


def summarize_runs(
    runs: Sequence[Instance], *, redactor_of: Callable[[Instance], Redactor], now: datetime | None = None
) -> dict[UUID, Summary]:
    """Return the summaries of the runs of a page, by run id; ``redactor_of`` returns the redactor of a run.

    At most four statements, and one more if the runs were loaded without their chains (``select_related("chain")``).
    """
    at = now or timezone.now()
    loader = RunStateLoader(runs, now=at)
    return {run.pk: loader.summary(run, redactor_of(run)) for run in runs}


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunEnd:
    closing: Any
    actor_name: str
    reason: str


class RunStateLoader:
    """Reads the rows about some runs, all at once, and builds the facts and summaries of these runs from them.

    ``with_details`` is True for a single run, about which more is read. ``has_no_tasks`` is True if the caller knows
    that none of the runs has an activity task. ``preloaded`` has rows that the caller has read. ``background_tasks``
    are rows of background tasks, of which it builds summaries, too.
    """

    def __init__(
        self,
        runs: Sequence[Instance],
        *,
        now: datetime | None = None,
        with_details: bool = False,
        has_no_tasks: bool = False,
        preloaded: PreloadedRows | None = None,
        background_tasks: Sequence[EnqueuedTask] = (),
    ) -> None:
        self.now = now or timezone.now()
        self.with_details = with_details
        self.preloaded = preloaded
        rows: Sequence[Any] = [*runs, *background_tasks]
        self.alias = rows[0]._state.db if rows else None  # noqa: SLF001 - Django documents it
        self.background_tasks = background_tasks
        if runs:
            prefetch_related_objects(list(runs), "chain")
        open_runs = [run for run in runs if run.is_open]
        self.tasks = self._load_tasks(open_runs, has_no_tasks=has_no_tasks)
        self.due_times = {run.pk: since for run in open_runs if (since := self._due_since(run)) is not None}
        self.workers = self._load_workers(open_runs)
        self.switches = self._load_switches(open_runs)
        self.worker_names = {worker.epoch: str(worker) for worker in self.workers}
        self.live_workers = live_workers_from(self.workers, now=self.now)
        self.live_count = len(self.live_workers.workflow_versions)
        self.run_ends = self._load_ends([run for run in runs if _has_end_reason(run)])

    def _load_tasks(self, runs: Sequence[Instance], *, has_no_tasks: bool) -> Mapping[UUID, Sequence[ActivityTask]]:
        if self.preloaded is not None:
            return {run.pk: [*self.preloaded.tasks.get(run.pk, ())[:_MAX_TASKS]] for run in runs}
        # A run before its first turn has no activities, so a page of fresh runs needs no read of them.
        started_ids = [run.pk for run in runs if not self.is_untouched(run)]
        if has_no_tasks or not started_ids:
            return {}
        tasks_by_run: dict[UUID, list[ActivityTask]] = defaultdict(list)
        tasks = leading_tasks(started_ids, alias=str(self.alias), limit=_MAX_TASKS)
        for task in tasks.defer("call", "options", "heartbeat"):
            tasks_by_run[task.run_id].append(task)
        return tasks_by_run

    def _load_workers(self, runs: Sequence[Instance]) -> list[Worker]:
        if self.preloaded is not None:
            return [*self.preloaded.workers]
        # Workers are needed only to say who runs an activity, or that nobody takes what waits.
        if self.background_tasks or any(self._waits_for_worker(run) or self.tasks.get(run.pk) for run in runs):
            return [*Worker.objects.using(self.alias)]
        return []

    def _load_switches(self, runs: Sequence[Instance]) -> SwitchViews:
        """Read the switches by kind, name and key. One statement if something waits for a worker, otherwise none."""
        has_waiting_tasks = any(
            task.owner is None and not task.atomic
            for tasks in (*self.tasks.values(), self.background_tasks)
            for task in tasks
        )
        if not has_waiting_tasks and not any(self._waits_for_worker(run) or _is_stopped_by_switch(run) for run in runs):
            return {}
        # The annotation says that nothing is switched off at all, which is true nearly always.
        if not any(getattr(run, "anything_off", True) for run in runs):
            return {}
        return load_switches(str(self.alias), now=self.now)

    def _due_since(self, run: Instance) -> datetime | None:
        """Return since when a started run waits for a worker, unless it is only the few seconds that one may need."""
        if run.started_at is None or run.blocked or run.paused or run.chain.run_id != run.pk:
            return None
        unread_since = None
        if self.preloaded is not None:
            unread_since = self.preloaded.unread_since
        elif hasattr(run, "unread_since"):
            unread_since = run.unread_since
        elif self.with_details:
            unread_messages = Message.objects.using(self.alias).filter(chain_id=run.chain_id, settled=False, fresh=True)
            unread_since = unread_messages.order_by("id").values_list("created_at", flat=True).first()
        # A worker that lives takes due work within seconds, so a shorter wait says nothing.
        since = min((at for at in (run.chain.due_at, unread_since) if at is not None), default=None)
        if since is not None and since <= self.now - DUE_GRACE_PERIOD:
            return since
        return None

    def _waits_for_worker(self, run: Instance) -> bool:
        return (run.started_at is None and run.begins_at <= self.now) or run.pk in self.due_times

    def _load_ends(self, runs: Sequence[Any]) -> dict[UUID, _RunEnd]:
        """Return the ends by run id. Nothing is read if the runs have the annotations of ``annotate_ends``."""
        if not runs:
            return {}
        if self.preloaded is not None:
            (run,), (actor_name, reason) = runs, self.preloaded.closing_action
            return {run.pk: _RunEnd(closing=run.closing_value, actor_name=actor_name, reason=reason)}
        if not all(hasattr(run, "ended_with") for run in runs):
            runs = [
                *annotate_ends(Instance.objects.using(self.alias).filter(pk__in=[run.pk for run in runs]).only("pk"))
            ]
        return {
            run.pk: _RunEnd(
                closing=decode_payload(run.ended_with), actor_name=run.ended_by or "", reason=run.ended_why or ""
            )
            for run in runs
        }

    # -- one run -------------------------------------------------------------------------------------------------------

    def summary(self, run: Instance, redactor: Redactor) -> Summary:
        """Return the summary of ``run``, one of the runs of the loader, without what ``redactor`` hides."""
        return build_summary(self.state(run, redactor), now=self.now)

    def task_summary(self, task: EnqueuedTask, redactor: Redactor) -> Summary:
        """Return the summary of a background task that has not ended, one of ``background_tasks``."""
        summary = activity_summary(self._build_activity(task, redactor), self.now)
        if task.cancelled_at is None:
            return summary
        text = gettext("It was asked to end %(at)s.") % {"at": format_at(task.cancelled_at, self.now)}
        return replace(summary, text=f"{summary.text} {text}")

    def state(self, run: Instance, redactor: Redactor) -> RunView:
        """Return the facts, as a ``RunView``, from which the summary of ``run`` is built.

        ``run`` is one of the runs that were passed to the loader. Texts that ``redactor`` hides are left out.
        """
        code = describe.class_or_none(run.workflow, run.version)
        tasks = self.tasks.get(run.pk, [])
        is_pending = run.started_at is None and run.is_open
        waits_for_worker = run.is_open and self._waits_for_worker(run)
        return RunView(
            title=describe.workflow_title(run.workflow, run.version),
            noun=describe.workflow_noun(run.workflow, run.version),
            workflow=run.workflow,
            version=run.version,
            status=run.status,
            created_at=run.created_at,
            started_at=run.started_at,
            closed_at=run.closed_at,
            starts_at=run.starts_at,
            start_before=run.start_before,
            start_limit=_throttle_of(run),
            is_started=not is_pending,
            waits=self._build_waits(run, code, redactor),
            activities=[self._build_activity(task, redactor) for task in tasks],
            more_activities=max(0, tasks[0].count - len(tasks)) if tasks else 0,  # type: ignore[attr-defined] # annotated
            blocked=self._build_blocked(run, redactor),
            paused=self._build_paused(run),
            end=self._build_end(run, code, redactor),
            workers=WorkersView(alive_count=self.live_count, missing=self.missing_worker(run))
            if waits_for_worker
            else None,
            due_since=self.due_times.get(run.pk),
            switch=switch_of_run(self.switches, run) if waits_for_worker or _is_stopped_by_switch(run) else None,
            failed_messages=self._count_failed_messages(run),
        )

    def _count_failed_messages(self, run: Instance) -> int:
        """Count signals of the chain whose handler failed. A page of runs reads none: it has an annotation, or 0."""
        if self.preloaded is not None:
            return self.preloaded.failed_messages
        if self.with_details:
            return failed_count(run)
        return getattr(run, "failed_count", 0)

    @staticmethod
    def is_untouched(run: Instance) -> bool:
        """Return True if the run is open and has not had its first turn; it is neither blocked nor paused.

        Such a run has no activities and waits for nothing but a worker.
        """
        return run.is_open and run.started_at is None and not run.blocked and not run.paused

    def waiting_for(self, run: Instance) -> list[str]:
        """Return phrases that name everything that the run waits for.

        For a run that begins later, this is the time of its start. For others, these are the waits in its row. If the
        run has been due for a while, a phrase is added that says why no live worker can claim it.
        """
        if run.is_open and run.started_at is None and (begin := run.begins_at) > self.now:
            return [start_wait(begin)]
        missing_worker = None
        if self._is_late(run):
            missing_worker = self.missing_worker(run)
        return [*(run.waiting_for or ()), *([missing_worker] if missing_worker else ())]

    def missing_worker(self, run: Instance) -> str | None:
        """Return a noun phrase that says why no live worker can claim a run that waits for a turn.

        Returns None if a worker can claim it, or if the run waits for no turn.
        """
        if not run.is_open or run.blocked or not self._waits_for_worker(run):
            return None
        return self.live_workers.missing_worker(workflow=run.workflow, version=run.version, queue=run.queue)

    def _is_late(self, run: Instance) -> bool:
        """Return True if the run has waited so long that its summary should say that no worker is there."""
        return run.pk in self.due_times or (run.started_at is None and self.now - run.begins_at >= DUE_GRACE_PERIOD)

    def _build_waits(self, run: Instance, code: Any, redactor: Redactor) -> list[WaitView]:
        """Show the summary of the child, if the run waits only for a child."""
        waits = [_build_wait(wait, run, code, redactor) for wait in run.waits or ()]
        if not self.with_details or len(waits) != 1 or waits[0].kind != "child" or self.tasks.get(run.pk):
            return waits
        child = self._find_child(run, (run.waits or [{}])[0].get("seq"))
        if child is None:
            return waits
        preloaded = None
        if self.preloaded is not None:
            preloaded = PreloadedRows(tasks=self.preloaded.tasks, workers=self.preloaded.workers)
        # The reader may not be allowed to see the payloads of the child, which is a run of another class.
        child_summary = RunStateLoader([child], now=self.now, preloaded=preloaded).summary(
            child, Redactor(may_see_payloads=False)
        )
        return [replace(waits[0], place=child_summary.short_text)]

    def _find_child(self, run: Instance, seq: Any) -> Instance | None:
        if self.preloaded is not None:
            return next((child for child in self.preloaded.children if child.parent_seq == seq), None)
        children = Instance.objects.using(self.alias).filter(parent_run_id=run.pk, parent_seq=seq)
        return children.defer(*PAYLOAD_COLUMNS).order_by("-id").first()

    def _build_activity(self, task: ActivityTask, redactor: Redactor) -> ActivityView:
        is_polled = None
        if task.owner is None and not task.atomic:
            is_polled = self.live_workers.can_run_activity(task.activity, queue=task.queue)
        last_seen = None
        if is_polled is False:
            sightings = [(worker.beat_at, str(worker)) for worker in self.workers if task.queue in worker.queues]
            last_seen = None
            if sightings:
                last_seen = (max(sightings)[1], max(sightings)[0])
        return ActivityView(
            activity=task.as_open if redactor.shows_error_text else _without_failure_text(task.as_open),
            title=describe.activity_title(task.activity),
            noun=describe.activity_noun(task.activity),
            worker=self.worker_names.get(task.owner or 0, "") or "?",
            has_worker=is_polled,
            pollers=0 if is_polled is not False else self.live_workers.count_pollers(task.queue),
            last_poller=last_seen,
            switch=switch_of_task(self.switches, task, redactor),
        )

    def _build_blocked(self, run: Instance, redactor: Redactor) -> BlockedView | None:
        mark: Mapping[str, Any] | None = run.blocked
        if not mark or not run.is_open:
            return None
        code = str(mark.get("code", ""))
        # The text of an exception may quote a payload. The text about a crash is made by the engine and quotes nothing.
        is_crash = code == "crash"
        others = 0
        if self.preloaded is not None:
            others = self.preloaded.others
        elif self.with_details:
            blocked_runs = Instance.objects.using(self.alias).filter(workflow=run.workflow, blocked__isnull=False)
            others = blocked_runs.filter(blocked__code=code).exclude(pk=run.pk)[:_MAX_OTHERS].count()
        return BlockedView(
            code=code,
            error=str(mark.get("error", "")) if redactor.shows_error_text or is_crash else code,
            since=_parse_time(mark.get("since")),
            last=_parse_time(mark.get("last")),
            tries=int(mark.get("attempt") or 0),
            next_try=run.chain.due_at if run.chain.run_id == run.pk else None,
            place=mark.get("place"),
            recorded=mark.get("recorded"),
            produced=mark.get("produced"),
            event=mark.get("event"),
            waits_for=mark.get("waits_for"),
            others=others,
        )

    def _build_paused(self, run: Instance) -> PausedView | None:
        mark = getattr(run, "paused", None)
        if not isinstance(mark, Mapping) or not run.is_open:
            return None
        by = mark.get("by")
        message_count = 0
        if self.preloaded is not None:
            message_count = self.preloaded.unread
        elif self.with_details:
            message_count = Message.objects.using(self.alias).filter(chain_id=run.chain_id, settled=False).count()
        return PausedView(
            actor=str(by.get("name") or by.get("key") or "") if isinstance(by, Mapping) else str(by or ""),
            since=_parse_time(mark.get("since")),
            reason=str(mark.get("reason") or ""),
            messages=message_count,
        )

    def _build_end(self, run: Instance, code: Any, redactor: Redactor) -> EndView:
        if run.status == "continued_as_new" and self.with_details:
            earlier_runs = Instance.objects.using(self.alias).filter(chain_id=run.chain_id, pk__lte=run.pk)
            return EndView(number=earlier_runs.count() + 1)
        run_end = self.run_ends.get(run.pk)
        if run_end is None:
            return EndView()
        closing = run_end.closing
        if isinstance(closing, UnreadablePayload):
            error = ""
            if redactor.shows_payloads:
                error = repr(closing)
            return EndView(actor=run_end.actor_name, error=error)
        if not isinstance(closing, dict):
            closing = {}
        if run.status == "completed":
            result = redactor.redact_payload(closing.get("result"))
            return EndView(summary=_summary_values(result, _summary_fields(run)))
        error, reason = "", run_end.reason
        if run.status == "failed":
            error = _failure_text(closing, redactor)
        elif redactor.shows_payloads:
            reason = reason or str(closing.get("reason") or "")
        return EndView(
            actor=run_end.actor_name,
            reason=reason,
            error=error,
            failed_title=_failed_title(closing, code),
            attempts=int(closing.get("attempts") or 0),
            limit=_passed_limit(closing, run),
        )


def _has_end_reason(run: Instance) -> bool:
    """Return True if the summary says why the run ended, or shows a part of its result."""
    return run.status in STATUSES_WITH_REASON or (run.status == "completed" and bool(_summary_fields(run)))


def _failed_title(closing: Mapping[str, Any], code: Any) -> str:
    """Return the title of the step or activity that failed the run, or "". ``closing`` is its last event."""
    if step := closing.get("step"):
        return describe.step_title(code, str(step))
    if activity := closing.get("activity"):
        return describe.activity_title(str(activity))
    return ""


def _passed_limit(closing: Mapping[str, Any], run: Instance) -> float | None:
    """Return the timeout in seconds that ended the run. ``closing`` has the attributes of its last event."""
    timeout = closing.get("timeout")
    if timeout == "run_timeout":
        return run.run_timeout
    if timeout == "execution_timeout" and run.expires_at is not None:
        return float((run.expires_at - run.begins_at).total_seconds())
    return None


def _is_stopped_by_switch(run: Instance) -> bool:
    return bool(run.is_open and run.blocked and run.blocked.get("code") == WorkflowSwitchedOff.code)


def _without_failure_text(activity: OpenActivity) -> OpenActivity:
    """Drop the message of the last failure, which may quote payloads that the reader may not see."""
    failure = activity.last_failure
    if failure is None:
        return activity
    return replace(activity, last_failure=replace(failure, message="", details=None))


def _failure_text(closing: Mapping[str, Any], redactor: Redactor) -> str:
    """Return why a run failed: the failure of an activity, a reason or an exception; only the type without payloads."""
    kind = str(closing.get("type") or "")
    if not redactor.shows_payloads:
        return kind
    if redactor.shows_error_text and closing.get("cause"):
        return str(closing["cause"])
    if redactor.shows_error_text and closing.get("message"):
        if kind:
            return f"{kind}: {closing['message']}"
        return str(closing["message"])
    reason = redactor.redact_payload(closing.get("reason"))
    if isinstance(reason, str):
        return reason
    if reason is None:
        return kind
    return repr(reason)


def _summary_fields(run: Instance) -> Sequence[str]:
    return getattr(describe.class_or_none(run.workflow, run.version), "summary", ())


def _summary_values(result: Any, names: Sequence[str]) -> list[tuple[str, str]]:
    if not isinstance(result, Mapping):
        return []
    return [(humanize_name(name), str(result[name])) for name in names if name in result]


def _parse_time(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None


def _build_wait(wait: Mapping[str, Any], run: Instance, code: Any, redactor: Redactor) -> WaitView:
    return WaitView(
        kind=wait.get("kind", "other"),
        title=describe.wait_title(wait, code, redactor),
        noun=describe.wait_noun(wait, code),
        messages=describe.wait_messages(wait, run.accepts or {}),
        role=wait.get("role"),
        is_event=describe.awaits_event(wait, code),
        since=_parse_time(wait.get("since")),
        until=_parse_time(wait.get("until")),
        followed_by=wait.get("then"),
        key=str(wait.get("id") or ""),
    )


def _throttle_of(run: Instance) -> tuple[int, float] | None:
    """Return ``(count, seconds)`` of the throttle that delays the begin."""
    limit = run.start_limit or {}
    if "count" not in limit:
        return None
    return limit["count"], limit["seconds"]
