"""Where runs stand, in words: the state that sentences are made of, read with few statements for a whole page.

Two for a page of open runs (their activities, the workers), one more where one of them waits for a worker (what is
switched off), and where some of them are closed; for one run alone
up to two beside: who waits behind it, and where its child stands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import (
    Case,
    Count,
    Exists,
    F,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    When,
    Window,
    prefetch_related_objects,
)
from django.db.models.functions import Coalesce, RowNumber
from django.utils import timezone
from django.utils.translation import gettext as _

from temporalex_django.actions import titles
from temporalex_django.actions.live_workers import able
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.backend import OpenActivity
from temporalex_django.authoring.redaction import Redactor
from temporalex_django.core import aliases
from temporalex_django.db.failed_messages import failed_count
from temporalex_django.errors import WorkflowSwitchedOff
from temporalex_django.models import ActivityTask, Instance, Message, OperatorAction, SwitchedOff, Worker
from temporalex_django.models.fields import UnreadablePayload, decode_payload
from temporalex_django.present.facts import (
    PATIENCE,
    ActivityNow,
    BlockedNow,
    EndNow,
    PausedNow,
    RunNow,
    SwitchNow,
    WaitNow,
    WorkersNow,
)
from temporalex_django.present.sentences import Summary, summary
from temporalex_django.present.words import spelt

#: Activities of a run that a sentence may name; what is more is counted.
_NAMED = 3
_MOST_OTHERS = 1000
#: Kinds of runs whose end has something to say beside the time.
_TELL = ("failed", "cancelled", "terminated", "timed_out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What whoever shows a run has read of it already, so that it is not read again.

    ``tasks`` as ``tasks_of`` gives them, those of the child that it waits for among them. ``others`` are blocked like
    it, ``unread`` the messages that wait, ``failed_messages`` the signals that failed in their handler, ``ended`` says
    who ended it and why. ``unread_since``: since when a message waits that no worker has looked at.
    """

    tasks: Mapping[UUID, Sequence[ActivityTask]]
    workers: Sequence[Worker]
    children: Sequence[Instance] = ()
    others: int = 0
    unread: int = 0
    unread_since: datetime | None = None
    failed_messages: int = 0
    ended: tuple[str, str] = ("", "")


def summary_of(
    run: Instance,
    *,
    view: Redactor,
    now: datetime | None = None,
    may_decide: bool = False,
    known: Known | None = None,
) -> Summary:
    """Where one run stands, as ``view`` may know it. At most six statements; hardly any with ``known``.

    ``may_decide``: whoever looks at it can decide what it waits for, and is told so.
    """
    at = timezone.now() if now is None else now
    return summary(replace(state_of(run, view=view, now=at, known=known), may_decide=may_decide), now=at)


def state_of(run: Instance, *, view: Redactor, now: datetime, known: Known | None = None) -> RunNow:
    """What the sentence about one run is made of."""
    return Reading([run], now=now, whole=True, known=known).state(run, view)


def summaries(
    runs: Sequence[Instance], *, view: Callable[[Instance], Redactor], now: datetime | None = None
) -> dict[UUID, Summary]:
    """Where the runs of a page stand, by run id, each as its view may know it. At most four statements.

    One more when the chains are not there (``select_related("chain")``).
    """
    at = timezone.now() if now is None else now
    reading = Reading(runs, now=at)
    return {run.pk: reading.summary(run, view(run)) for run in runs}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    closing: Any
    who: str
    reason: str


def tasks_of(runs: Sequence[UUID], *, alias: str, most: int) -> QuerySet[ActivityTask]:
    """The first activities of each, those that failed first; ``count`` of each is how many its run has."""
    order = [F("failed_at").asc(nulls_last=True), F("seq").asc()]
    rows = ActivityTask.objects.using(alias).filter(run_id__in=runs)
    rows = rows.annotate(
        place=Window(RowNumber(), partition_by=F("run_id"), order_by=order),
        count=Window(Count("*"), partition_by=F("run_id")),
    )
    return rows.filter(place__lte=most).order_by("run_id", "place")


def with_ends(runs: QuerySet[Instance]) -> QuerySet[Instance]:
    """With what is said of their ends, of those that have one, and whether anything is switched off at all.

    Then nothing more is read for the one, and only if so for the other.
    """
    acted = OperatorAction.objects.filter(run_id=OuterRef("pk"), action__in=("cancel", "terminate"), denied=False)
    last = acted.order_by("-id")
    named = [cls.name for cls in workflows.concrete_classes() if cls.summary]
    telling = Q(status__in=_TELL) | Q(status="completed", workflow__in=named)
    return with_switches(runs).annotate(
        ended_with=Case(When(telling, then=F("closing")), default=None),
        ended_by=Subquery(last.values("actor_name")[:1]),
        ended_why=Subquery(last.values("reason")[:1]),
    )


def with_switches(runs: QuerySet[Instance]) -> QuerySet[Instance]:
    """With whether anything is switched off at all: what is, is read only then."""
    return runs.annotate(anything_off=Exists(SwitchedOff.objects.all()))


def with_messages(runs: QuerySet[Instance]) -> QuerySet[Instance]:
    """Annotate what the sentence about one run says of the messages of its chain.

    How many of them failed (see ``db.failed_messages.failed_count``), and since when one waits that nobody has read.
    """
    of_chain = Message.objects.failed().filter(chain_id=OuterRef("chain_id")).order_by().values("chain_id")
    fresh = Message.objects.filter(chain_id=OuterRef("chain_id"), settled=False, fresh=True).order_by("id")
    return runs.annotate(
        failed_count=Coalesce(Subquery(of_chain.annotate(n=Count("pk")).values("n")), 0),
        unread_since=Subquery(fresh.values("created_at")[:1]),
    )


class Reading:
    """What was read for some runs.

    ``whole``: of one run, with all that its page says. ``idle``: none of them has an activity, whoever asks has seen.
    """

    def __init__(
        self,
        runs: Sequence[Instance],
        *,
        now: datetime | None = None,
        whole: bool = False,
        idle: bool = False,
        known: Known | None = None,
    ) -> None:
        self.now = now = timezone.now() if now is None else now
        self.whole = whole
        self.known = known
        self.alias = runs[0]._state.db if runs else None  # noqa: SLF001 - Django documents it
        if runs:
            prefetch_related_objects(list(runs), "chain")
        open_ones = [run for run in runs if run.is_open]
        begun = [run for run in open_ones if not self.untouched(run)]
        self.tasks: dict[UUID, list[ActivityTask]] = defaultdict(list)
        self.workers: list[Worker] = []
        if known is not None:
            self.tasks |= {run.pk: [*known.tasks.get(run.pk, ())[:_NAMED]] for run in open_ones}
            self.workers = [*known.workers]
        elif begun and not idle:
            tasks = tasks_of([run.pk for run in begun], alias=str(self.alias), most=_NAMED)
            for task in tasks.defer("call", "options", "heartbeat"):
                self.tasks[task.run_id].append(task)
        self.due = {run.pk: since for run in open_ones if (since := self._due_since(run)) is not None}
        if known is None and any(
            run.started_at is None or self.tasks.get(run.pk) or run.pk in self.due for run in open_ones
        ):
            self.workers = list(Worker.objects.using(self.alias))
        self.switches = self._off(open_ones)
        self.names = {worker.epoch: str(worker) for worker in self.workers}
        self.live = able(self.workers, now=now)
        self.alive = len(self.live.able)
        telling = [run for run in runs if run.status in _TELL or (run.status == "completed" and _fields(run))]
        self.ends: dict[UUID, _Ended] = {}
        if telling and known is not None:
            (run,), (who, why) = runs, known.ended
            self.ends = {run.pk: _Ended(closing=run.closing_value, who=who, reason=why)}
        elif telling:
            self.ends = self._ends(telling)

    def _off(self, runs: Sequence[Instance]) -> dict[tuple[str, str], SwitchNow]:
        """Switches that are off, by kind and name. One statement where something waits for a worker, else none."""
        untaken = any(task.owner is None and not task.atomic for tasks in self.tasks.values() for task in tasks)
        if not untaken and not any(self._waits_for_worker(run) or _stopped_by_switch(run) for run in runs):
            return {}
        if not any(getattr(run, "anything_off", True) for run in runs):
            return {}
        return {
            (row.kind, row.name): SwitchNow(
                kind=row.kind, name=row.name, since=row.since, who=row.by, reason=row.reason
            )
            for row in SwitchedOff.objects.using(self.alias)
        }

    def _due_since(self, run: Instance) -> datetime | None:
        """Since when a run that has begun waits for a worker; None where it does not, or not for long."""
        if run.started_at is None or run.blocked or run.paused or run.chain.run_id != run.pk:
            return None
        unread = None
        if self.known is not None:
            unread = self.known.unread_since
        elif hasattr(run, "unread_since"):
            unread = run.unread_since
        elif self.whole:
            fresh = Message.objects.using(self.alias).filter(chain_id=run.chain_id, settled=False, fresh=True)
            unread = fresh.order_by("id").values_list("created_at", flat=True).first()
        since = min((at for at in (run.chain.due_at, unread) if at is not None), default=None)
        return since if since is not None and since <= self.now - PATIENCE else None

    def _waits_for_worker(self, run: Instance) -> bool:
        return run.started_at is None or run.pk in self.due

    def _ends(self, runs: Sequence[Any]) -> dict[UUID, _Ended]:
        if not all(hasattr(run, "ended_with") for run in runs):
            runs = [*with_ends(Instance.objects.using(self.alias).filter(pk__in=[run.pk for run in runs]).only("pk"))]
        return {
            run.pk: _Ended(closing=decode_payload(run.ended_with), who=run.ended_by or "", reason=run.ended_why or "")
            for run in runs
        }

    # -- one run -------------------------------------------------------------------------------------------------------

    def summary(self, run: Instance, view: Redactor) -> Summary:
        """Where one of them stands."""
        return summary(self.state(run, view), now=self.now)

    def state(self, run: Instance, view: Redactor) -> RunNow:
        """What is known of one of them."""
        code = titles.code_of(run.workflow, run.version)
        tasks = self.tasks.get(run.pk, [])
        pending = run.started_at is None and run.is_open
        waits_for_worker = run.is_open and self._waits_for_worker(run)
        return RunNow(
            title=titles.of_workflow(run.workflow, run.version),
            workflow=run.workflow,
            version=run.version,
            status=run.status,
            created_at=run.created_at,
            started_at=run.started_at,
            closed_at=run.closed_at,
            taken_up=not pending,
            waits=self._waits(run, code, view),
            activities=[self._activity(task, view) for task in tasks],
            more_activities=max(0, tasks[0].count - len(tasks)) if tasks else 0,  # type: ignore[attr-defined] # annotated
            blocked=self._blocked(run, view),
            paused=self._paused(run),
            end=self._end(run, code, view),
            workers=WorkersNow(alive=self.alive, missing=self.missing(run)) if waits_for_worker else None,
            due_since=self.due.get(run.pk),
            off=self._switch_of(run) if waits_for_worker or _stopped_by_switch(run) else None,
            failed_messages=self._failed_messages(run),
        )

    def _failed_messages(self, run: Instance) -> int:
        """Count those of the chain of a run that is looked at alone; lists show them by the filter."""
        if self.known is not None:
            return self.known.failed_messages
        return failed_count(run) if self.whole else 0

    def _switch_of(self, run: Instance) -> SwitchNow | None:
        names = (run.workflow, aliases.current_name(run.workflow))
        of_class = (self.switches.get(("workflow", name)) for name in names)
        return next(filter(None, of_class), None) or self.switches.get(("queue", run.queue))

    def _switch_of_activity(self, name: str) -> SwitchNow | None:
        now = aliases.ACTIVITIES.get(name, name)
        return self.switches.get(("activity", name)) or self.switches.get(("activity", now))

    @staticmethod
    def untouched(run: Instance) -> bool:
        """Whether it waits for its first turn: then it has no activities, and waits for nothing else."""
        return run.is_open and run.started_at is None and not run.blocked and not run.paused

    def waiting_for(self, run: Instance) -> list[str]:
        """As its row says, and a worker that none of those is who live."""
        missing = self.missing(run) if self._is_late(run) else None
        return [*(run.waiting_for or ()), *([missing] if missing else ())]

    def missing(self, run: Instance) -> str | None:
        """Why no live worker can take one that waits for a turn; None: one can, or it waits for none."""
        if not run.is_open or run.blocked or not self._waits_for_worker(run):
            return None
        return self.live.missing(workflow=run.workflow, version=run.version, queue=run.queue)

    def _is_late(self, run: Instance) -> bool:
        """Whether it waits for a worker for so long that the lack of one is worth saying."""
        return run.pk in self.due or (run.started_at is None and self.now - run.created_at >= PATIENCE)

    def _waits(self, run: Instance, code: Any, view: Redactor) -> list[WaitNow]:
        """With where children stand, one level deep."""
        found = [_wait(about, run, code, view) for about in run.waits or ()]
        if not self.whole or len(found) != 1 or found[0].kind != "child" or self.tasks.get(run.pk):
            return found
        child = self._child(run, (run.waits or [{}])[0].get("seq"))
        if child is None:
            return found
        known = None if self.known is None else Known(tasks=self.known.tasks, workers=self.known.workers)
        place = Reading([child], now=self.now, known=known).summary(child, Redactor(may_see_payloads=False))
        return [replace(found[0], place=place.short)]

    def _child(self, run: Instance, seq: Any) -> Instance | None:
        """The newest run that the command of that number started."""
        if self.known is not None:
            return next((child for child in self.known.children if child.parent_seq == seq), None)
        unread = ("args", "published", "closing", "carried_messages", "snapshot")
        children = Instance.objects.using(self.alias).filter(parent_run_id=run.pk, parent_seq=seq)
        return children.defer(*unread).order_by("-id").first()

    def _activity(self, task: ActivityTask, view: Redactor) -> ActivityNow:
        taken = self.live.has(task.activity, queue=task.queue) if task.owner is None and not task.atomic else None
        last_seen = None
        if taken is False:
            seen = [(w.beat_at, str(w)) for w in self.workers if task.queue in w.queues]
            last_seen = (max(seen)[1], max(seen)[0]) if seen else None
        return ActivityNow(
            activity=task.as_open if view.shows_error_text else _wordless(task.as_open),
            title=titles.of_activity(task.activity),
            worker=self.names.get(task.owner or 0, "") or "?",
            taken=taken,
            pollers=0 if taken is not False else self.live.pollers(task.queue),
            last_seen=last_seen,
            off=self._switch_of_activity(task.activity) or self.switches.get(("queue", task.queue)),
        )

    def _blocked(self, run: Instance, view: Redactor) -> BlockedNow | None:
        mark: Mapping[str, Any] | None = run.blocked
        if not mark or not run.is_open:
            return None
        code = str(mark.get("code", ""))
        # what an exception says may quote a payload; of a crash we have made the words ourselves
        ours = code == "crash"
        others = 0
        if self.known is not None:
            others = self.known.others
        elif self.whole:
            same = Instance.objects.using(self.alias).filter(workflow=run.workflow, blocked__isnull=False)
            others = same.filter(blocked__code=code).exclude(pk=run.pk)[:_MOST_OTHERS].count()
        return BlockedNow(
            code=code,
            error=str(mark.get("error", "")) if view.shows_error_text or ours else code,
            since=_moment(mark.get("since")),
            tries=int(mark.get("attempt") or 0),
            next_try=run.chain.due_at if run.chain.run_id == run.pk else None,
            place=mark.get("place"),
            recorded=mark.get("recorded"),
            produced=mark.get("produced"),
            event=mark.get("event"),
            waits_for=mark.get("waits_for"),
            others=others,
        )

    def _paused(self, run: Instance) -> PausedNow | None:
        mark = getattr(run, "paused", None)
        if not isinstance(mark, Mapping) or not run.is_open:
            return None
        by = mark.get("by")
        waiting = 0
        if self.known is not None:
            waiting = self.known.unread
        elif self.whole:
            waiting = Message.objects.using(self.alias).filter(chain_id=run.chain_id, settled=False).count()
        return PausedNow(
            who=str(by.get("name") or by.get("key") or "") if isinstance(by, Mapping) else str(by or ""),
            since=_moment(mark.get("since")),
            reason=str(mark.get("reason") or ""),
            messages=waiting,
        )

    def _end(self, run: Instance, code: Any, view: Redactor) -> EndNow:
        if run.status == "continued_as_new" and self.whole:
            before = Instance.objects.using(self.alias).filter(chain_id=run.chain_id, pk__lte=run.pk)
            return EndNow(number=before.count() + 1)
        ended = self.ends.get(run.pk)
        if ended is None:
            return EndNow()
        closing = ended.closing if isinstance(ended.closing, dict) else {}
        if isinstance(ended.closing, UnreadablePayload):
            return EndNow(who=ended.who, error=repr(ended.closing) if view.shows_payloads else "")
        if run.status == "completed":
            return EndNow(summary=_told(view.redact_payload(closing.get("result")), _fields(run)))
        limit = run.run_timeout if closing.get("timeout") == "run_timeout" else None
        if closing.get("timeout") == "execution_timeout" and run.expires_at is not None:
            limit = (run.expires_at - run.created_at).total_seconds()
        step, activity = closing.get("step"), closing.get("activity")
        where = titles.of_step(code, str(step)) if step else titles.of_activity(str(activity)) if activity else ""
        return EndNow(
            who=ended.who,
            reason=ended.reason
            or (str(closing.get("reason") or "") if run.status != "failed" and view.shows_payloads else ""),
            error=_error(closing, view) if run.status == "failed" else "",
            at=where,
            attempts=int(closing.get("attempts") or 0),
            limit=limit,
        )


def _stopped_by_switch(run: Instance) -> bool:
    return bool(run.is_open and run.blocked and run.blocked.get("code") == WorkflowSwitchedOff.code)


def _wordless(activity: OpenActivity) -> OpenActivity:
    """Without what its failure says, which may quote payloads."""
    failure = activity.last_failure
    return activity if failure is None else replace(activity, last_failure=replace(failure, message=""))


def _error(closing: Mapping[str, Any], view: Redactor) -> str:
    """Why it failed: what an activity said, the reason that the code gave, or what it raised."""
    kind = str(closing.get("type") or "")
    if not view.shows_payloads:
        return kind
    if view.shows_error_text and closing.get("cause"):
        return str(closing["cause"])
    if view.shows_error_text and closing.get("message"):
        return f"{kind}: {closing['message']}" if kind else str(closing["message"])
    reason = view.redact_payload(closing.get("reason"))
    return reason if isinstance(reason, str) else kind if reason is None else repr(reason)


def _fields(run: Instance) -> Sequence[str]:
    """Those of the result that its class names."""
    return getattr(titles.code_of(run.workflow, run.version), "summary", ())


def _told(result: Any, names: Sequence[str]) -> list[tuple[str, str]]:
    if not isinstance(result, Mapping):
        return []
    return [(spelt(name), str(result[name])) for name in names if name in result]


def _moment(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None


def _wait(about: Mapping[str, Any], run: Instance, code: Any, view: Redactor) -> WaitNow:
    """One thing that a run waits for, as its row has it."""
    kind = about.get("kind", "other")
    labels = about.get("labels") or {}
    title, messages = str(about.get("label") or ""), []
    if kind == "phase":
        accepts = run.accepts or {}
        names = [*(accepts.get("updates") or ()), *(accepts.get("signals") or ())]
        messages = [labels.get(name) or spelt(name) for name in names]
    elif kind == "signal":
        messages = [spelt(str(about.get("name")))]
    elif kind == "step":
        title = titles.of_step(code, str(about.get("name")))
        messages = [spelt(str(event)) for event in about.get("events") or ()]
    elif kind == "human_task":
        title = title if view.shows_error_text else _("the human task %(key)s") % {"key": about.get("name")}
        messages = [spelt(str(event)) for event in about.get("events") or ()]
    elif kind == "child":
        title = titles.of_workflow(str(about.get("name")))
    return WaitNow(
        kind=kind,
        title=title,
        messages=messages,
        role=about.get("role"),
        since=_moment(about.get("since")),
        until=_moment(about.get("until")),
        then=about.get("then"),
        key=str(about.get("id") or ""),
    )
