"""Operations that control a run: pause, cancel, terminate, move, run now, skip a timer, try again, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Literal
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils.functional import Promise
from django.utils.text import format_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.run_columns import RUN_COLUMNS
from temporalex_django.authoring.workflow import fork_options, start_options
from temporalex_django.backends.protocol import AuditSubject, RunTarget, find_run_class
from temporalex_django.backends.tables import inline_turn
from temporalex_django.conf import codec, get_settings
from temporalex_django.core.history.events import HistoryEvent as Event
from temporalex_django.core.history.events import kinds_of
from temporalex_django.core.history.people import next_run_snapshot
from temporalex_django.core.history.replay import replay
from temporalex_django.core.names import TEMPORAL, fit_note
from temporalex_django.db.background_hooks import run_due
from temporalex_django.db.inserts import insert_message, notify_on_commit
from temporalex_django.db.retention import delete_chain
from temporalex_django.engine import operator_overrides
from temporalex_django.engine.activity_policy import begins_later, is_due
from temporalex_django.engine.blocked import CRASH, retry_immediately
from temporalex_django.engine.contracts.records import RunState
from temporalex_django.engine.ids import token, uuid7
from temporalex_django.engine.operator_overrides import (
    absent_timer_text,
    pause_run,
    pending_timers,
    skip_message_id,
    skip_timer,
    unpause_run,
)
from temporalex_django.engine.run_closing import CLOSERS, close_for_move
from temporalex_django.engine.run_start import RunStart
from temporalex_django.errors import ActionNotPossible, TemporalexError
from temporalex_django.graph.instance import snapshot_for_version
from temporalex_django.graph.projection import Projection
from temporalex_django.graph.workflow import GraphWorkflow
from temporalex_django.models import ActivityTask, Chain, HistoryEvent, Instance, Message, Status
from temporalex_django.operations.base import CODE, Action, Actor
from temporalex_django.operations.fleet.stats import live_workers
from temporalex_django.operations.run_lookup import RunAction
from temporalex_django.operations.runs.operator_action import OperatorRunAction, Text, batches

# --- move -------------------------------------------------------------------------------------------------------------
#
# Move an open run to another version of its class.


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOutcome:
    """The outcome of a move of one run to another version of its class.

    ``moves`` is True if the run was moved, or could be moved in a rehearsal. ``why`` is the reason if not.
    """

    workflow_id: str
    run_id: str
    moves: bool
    why: str = ""


class Move(RunAction[MoveOutcome]):
    """Operation that moves an open run to another version of its class, and returns the outcome.

    A graph is closed as continued as new, and its next run starts with the state (snapshot) of this one. ``names`` maps
    keys of steps to their keys in the other version. A function workflow stays the same run, with the other class, if
    that replays its history without nondeterminism.

    With ``rehearse`` everything is done and rolled back. The chain is locked only if its lock is free, and the run is
    not moved otherwise. It is not moved either while an activity has started, because that would be done twice. One
    transaction. Always audited.
    """

    name: ClassVar[str] = "move"
    cluster: ClassVar[str | Promise] = _(
        "a run on a Temporal cluster keeps its version: change its code with api.patched, or reset it"
    )
    permission: ClassVar[str] = "terminate_instance"
    forced: ClassVar[bool] = True

    def __init__(
        self,
        target: RunTarget,
        *,
        version: int,
        names: Mapping[str, str] | None = None,
        rehearse: bool = False,
        by: Actor = CODE,
    ) -> None:
        super().__init__(by=by)
        self.target = target
        self.new_class = workflows.class_for_run(target.workflow, version)
        self.names = names or {}
        self.rehearse = rehearse

    def perform(self) -> MoveOutcome:
        """Move the run, or rehearse the move, and return the outcome; a run that cannot be moved raises nothing.

        Raises ``UnknownWorkflow`` if this process lacks the class of the run.
        """
        target = self.target
        with self.storage.transaction():
            reason = self._move()
            if reason is not None or self.rehearse:
                # A rehearsal does everything and rolls it back: that is the only complete check.
                transaction.set_rollback(True, using=self.storage.alias)
            else:
                self.record(target.audit_subject, reason=f"version {target.version} to {self.new_class.version}")
        return MoveOutcome(
            workflow_id=target.workflow_id, run_id=str(target.run_id), moves=reason is None, why=reason or ""
        )

    def _move(self) -> str | None:
        """Move in the open transaction, or return the reason why not; the caller then has to roll back."""
        target = self.target
        if target.backend == TEMPORAL:
            return str(self.cluster_refusal())
        run = inline_turn.try_lock_run(target, storage=self.storage, wait=0)
        if run is None:
            return "another process is advancing it: try again"
        if run.closed or run.run_id != target.run_id:
            return "it has ended or continued as new in the meantime"
        tried_task = ActivityTask.objects.using(self.storage.alias).filter(run_id=run.run_id, attempt__gt=0).first()
        if tried_task is not None:
            return f"{tried_task.activity} has started (attempt {tried_task.attempt}): wait for its result"
        if key_conflict := self._key_conflict(run):
            return key_conflict
        events = self.storage.histories({run.run_id: 0}).get(run.run_id, [])
        try:
            if issubclass(self.new_class, GraphWorkflow):
                self._move_graph(run, events)
            else:
                self._move_function(run, events)
        except TemporalexError as exc:
            return str(exc)
        return None

    def _key_conflict(self, run: RunState) -> str | None:
        """Reserve the id if it is unique per version, or return the reason: an open run of that version may have it."""
        unique = self.new_class.unique
        if unique is None or unique.scope != "version":
            return None
        target = self.target
        key = RunStart(workflow_id=target.workflow_id, args=None, **start_options(self.new_class)).open_key
        chains = Chain.objects.using(self.storage.alias)
        if chains.filter(open_key=key).exists():
            return f"version {self.new_class.version} has an open run with this id"
        chains.filter(pk=run.chain_id).update(open_key=key)
        return None

    def _move_graph(self, run: RunState, events: list[Event]) -> None:
        target = self.target
        run_record = self.storage.run_records([run.run_id])[run.run_id]
        snapshot = run_record.snapshot
        if events:
            code: Any = workflows.class_for_run(target.workflow, target.version)
            projection = Projection(code)
            projection.feed(events)
            instance = snapshot_for_version(projection.instance, self.new_class, self.names)
            snapshot = {**instance, "due": projection.due_times(self.names), **next_run_snapshot(events)}
        write = close_for_move(run, run_id=uuid7(), seed=token() >> 2, now=self.storage.now(), record=run_record)
        self.storage.write([write])
        assert write.next_run is not None
        Instance.objects.using(self.storage.alias).filter(pk=write.next_run.run_id).update(
            snapshot=None if snapshot is None else codec().encode(snapshot),
            **self._class_columns(),
        )
        inline_turn.notify_after_close(write, target, storage=self.storage)
        self._notify_new_queue(run)

    def _move_function(self, run: RunState, events: list[Event]) -> None:
        replay(self.new_class.definition, events)
        Instance.objects.using(self.storage.alias).filter(pk=run.run_id).update(**self._class_columns())
        # The run may be blocked because no worker has its old class; with the new one it can be tried at once.
        if run.failed_tries:
            Chain.objects.using(self.storage.alias).filter(pk=run.chain_id).update(due_at=self.storage.now())
        # The executor in memory was built from the old class.
        inline_turn.evict_run(run.run_id, storage=self.storage)
        self._notify_new_queue(run)

    def _class_columns(self) -> dict[str, Any]:
        """Return the columns that the new class determines. Tags from the start of the run are kept."""
        old_class = self.target.workflow_class
        own_tags = [tag for tag in self.target.row.tags or () if old_class is None or tag not in old_class.tags]
        options = fork_options(self.new_class, tags=own_tags)
        return {column.name: options.get(column.name) for column in RUN_COLUMNS if column.of_class}

    def _notify_new_queue(self, run: RunState) -> None:
        # Workers claim chains by their queue, and the new version may have another one.
        Chain.objects.using(self.storage.alias).filter(pk=run.chain_id).update(queue=self.new_class.task_queue)
        notify_on_commit(alias=self.storage.alias, queues=[self.new_class.task_queue])


# --- cancel -----------------------------------------------------------------------------------------------------------
#
# Cancel a run: ask a function workflow to end, or close a graph.


class Cancel(OperatorRunAction[None]):
    """Operation that asks a function workflow to end, or closes a graph as cancelled at once.

    The request is one INSERT into the inbox, which locks nothing. The code decides how it reacts, and a second request
    is dropped. A paused run receives the request when it is unpaused.

    A graph, and a run that has not begun, is closed in the caller's transaction, with its chain locked. If this process
    lacks the class of the graph, it gets a request, too.
    """

    name: ClassVar[str] = "cancel"
    cluster: ClassVar[str | Promise] = "asks"
    label: ClassVar[Promise] = _("Cancel")
    summary: ClassVar[Promise] = _("Ask a run to end.")
    effect: ClassVar[Promise] = _("The code of a function workflow may clean up first. A graph ends at once.")
    done: ClassVar[Promise] = _("The run was asked to end.")
    destructive: ClassVar[bool] = True
    done_status: ClassVar[str] = Status.CANCELLED
    _was_unbegun = False

    # None of the code of a run has run before it begins, so there is nothing to clean up.
    def _close_before_begin(self) -> bool:
        """Cancel a run that has not begun and begins later. No code ran, so nothing needs cleanup."""
        target, storage = self.target, self.storage
        if target.status != Status.PENDING or target.closed or target.row.starts_at is None:
            return False
        if target.row.starts_at <= storage.now():
            return False
        with storage.transaction():
            run = self.lock_run()
            starts_at = storage.run_records([run.run_id])[run.run_id].starts_at
            if not begins_later(run, starts_at, storage.now()):
                return False
            if (remote := self.remote) is None:
                _close(self, run, "cancelled")
            else:
                remote.close_locked(self, "cancelled", run)
        self._was_unbegun = True
        return True

    @property
    def done_message(self) -> Text:
        if self._was_unbegun:
            return _("The run was cancelled before it began.")
        if self.is_held_by_pause:
            return _("The run was asked to end. It is paused, so it receives the request when you unpause it.")
        return f"{self.done} {self.notice}".strip()

    @classmethod
    def notice_of(cls, run: Instance) -> Text:
        """Return the sentence that says why a cancel request to the run has to wait, or an empty text.

        It has to wait if the run is blocked, or if no live worker can claim it.
        """
        code = find_run_class(run.chain_id, run.workflow, run.version)
        if not run.is_open or (code is not None and code.cancels_at_once):
            return ""
        if run.blocked:
            return _("The run is blocked, so the request waits until its code can run. To end it now, terminate it.")
        alias = run._state.db or get_settings().DATABASE  # noqa: SLF001 - Django documents it
        missing_worker = live_workers(alias=alias).missing_worker(
            workflow=run.workflow, version=run.version, queue=run.queue
        )
        if missing_worker is None:
            return ""
        message = _("The request is waiting for {missing}. To end the run now, terminate it.")
        return format_lazy(message, missing=missing_worker)

    @property
    def is_held_by_pause(self) -> bool:
        """True if the run is paused and gets the cancel request only when it is unpaused."""
        return self.target.paused and not self.closes_at_once

    @property
    def closes_at_once(self) -> bool:
        return self.target.workflow_class is not None and self.target.workflow_class.cancels_at_once

    def perform(self) -> None:
        # A function is asked to cancel, but a graph is closed at once (see decision 27). This locks the chain.
        if self.closes_at_once:
            with self.storage.transaction():
                _close(self, self.lock_run(), "cancelled")
        elif not self._close_before_begin():
            self._request()

    def perform_remotely(self) -> None:
        if self.closes_at_once:
            super().perform_remotely()
        elif not self._close_before_begin():
            self._request()

    def _request(self) -> None:
        """Send the cancel request. Raises ``WorkflowClosed`` if the run was closed when ``target`` was read."""
        target, body = self.target, {"reason": self.reason}
        if target.closed:
            self.refuse(self.why_not_run(target.row) or "", closed=True)
        # An INSERT locks no row of the run, so a request never waits for a worker that has it (see decision 6).
        with self.audit_transaction():
            if (remote := self.remote) is None:
                insert_message(target.chain_id, kind="cancel", name="", body=body, storage=self.storage)
                notify_on_commit(alias=self.storage.alias, queues=[target.queue])
            else:
                remote.send(target, kind="cancel", name="", body=body, storage=self.storage)
            self.record(target.audit_subject, reason=self.reason)


# --- terminate --------------------------------------------------------------------------------------------------------
#
# Terminate a run: close it from outside, at once.


class Terminate(OperatorRunAction[None]):
    """Operation that closes a run at once, without running any more of its code.

    Its activities do not start any more. A paused or blocked run can be terminated, too. Runs in the caller's
    transaction and locks the chain; see ``OperatorRunAction.lock_run``. Always audited.
    """

    name: ClassVar[str] = "terminate"
    cluster: ClassVar[str | Promise] = "asks"
    forced: ClassVar[bool] = True
    label: ClassVar[Promise] = _("Terminate")
    summary: ClassVar[Promise] = _("Terminate a run.")
    effect: ClassVar[Promise] = _(
        "The run is closed at once. None of its code runs any more, so nothing is cleaned up."
    )
    done: ClassVar[Promise] = _("The run was terminated.")
    destructive: ClassVar[bool] = True
    done_status: ClassVar[str] = Status.TERMINATED

    def perform(self) -> None:
        with self.storage.transaction():
            _close(self, self.lock_run(), "terminated")


def _close(action: OperatorRunAction[None], run: RunState, status: str) -> None:
    """Close the locked run, write the audit row, and notify workers and Django signals after the commit."""
    storage = action.storage
    write = CLOSERS[status](run, reason=action.reason, now=storage.now(), record=storage.closing_record(run.run_id))
    storage.write([write])
    action.record(action.target.audit_subject, reason=action.reason)
    inline_turn.notify_after_close(write, action.target, storage=storage)


# --- delete -----------------------------------------------------------------------------------------------------------
#
# Delete a closed run.


class Delete(OperatorRunAction[None]):
    """Operation that deletes all runs of a closed chain, with their histories, activity tasks and messages.

    The audit log is kept. Raises ``ActionNotPossible`` if the run is open. Always audited. Runs in the caller's
    transaction and locks the chain; see ``OperatorRunAction.lock_run``.
    """

    name: ClassVar[str] = "delete"
    cluster: ClassVar[str | Promise] = "asks"
    forced: ClassVar[bool] = True
    label: ClassVar[Promise] = _("Delete")
    summary: ClassVar[Promise] = _("Delete a run.")
    effect: ClassVar[Promise] = _(
        "The run is deleted for good, with all earlier and later runs of its chain, their histories and messages. "
        "The audit log is kept."
    )
    done: ClassVar[Promise] = _("The run was deleted.")
    destructive: ClassVar[bool] = True

    @classmethod
    def why_not(cls, run: Instance, *, seq: int | None = None) -> str | None:
        # An earlier run of a chain is closed, too, but the chain is deleted as a whole.
        return super().why_not(run if run.is_open or run.chain.closed else run.chain.run, seq=seq)

    def perform(self) -> None:
        with self.storage.transaction():
            self.lock_run()
            self.record(self.target.audit_subject, reason=self.reason)
            delete_chain(self.target.chain_id, storage=self.storage)


# --- pause ------------------------------------------------------------------------------------------------------------
#
# Pause a run.


class Pause(OperatorRunAction[None]):
    """Operation that pauses a run: none of its code runs until it is unpaused.

    Signals, cancel requests, results, timers and timeouts of the run wait until then. Updates and resumes are refused
    with ``RunPaused``, and queries are answered. Activities that the run has scheduled continue, with their retries. A
    paused run can be terminated. If the chain gets a next run, that run is paused too.

    Runs in the caller's transaction and locks the chain; see ``OperatorRunAction.lock_run``.
    """

    name: ClassVar[str] = "pause"
    cluster: ClassVar[str | Promise] = "at once"
    label: ClassVar[Promise] = _("Pause")
    summary: ClassVar[Promise] = _("Pause a run.")
    effect: ClassVar[Promise] = _(
        "The run stops where it is. Messages, timers and results wait until it is unpaused; updates "
        "are refused. Running activities continue."
    )
    done: ClassVar[Promise] = _("The run is paused.")

    def is_done(self, run: Instance) -> bool:
        return run.is_open and run.paused is not None

    def perform(self) -> None:
        with self.storage.transaction():
            run, now = self.lock_run(), self.storage.now()
            self.storage.write([pause_run(run, reason=self.reason, sender=self.by.sender, now=now)])
            self.record(self.target.audit_subject, reason=self.reason)


class Unpause(OperatorRunAction[None]):
    """Operation that lets a paused run continue: it is due at once and receives what has arrived during the pause.

    A run that is blocked because workers died while running it stays blocked; use ``TryAgain`` for it. Runs in the
    caller's transaction and locks the chain; see ``OperatorRunAction.lock_run``.
    """

    name: ClassVar[str] = "unpause"
    cluster: ClassVar[str | Promise] = "at once"
    label: ClassVar[Promise] = _("Unpause")
    summary: ClassVar[Promise] = _("Unpause a run.")
    effect: ClassVar[Promise] = _(
        "The run continues at once, with the messages, timers and results that waited. A run that is "
        "blocked because its workers crashed stays blocked."
    )
    done: ClassVar[Promise] = _("The run continues.")
    _stays_blocked = False

    @property
    def done_message(self) -> Text:
        if self._stays_blocked:
            return _(
                "The run is unpaused, but it stays blocked because its workers crashed. Try it again once "
                "its code is fixed."
            )
        return self.done

    def is_done(self, run: Instance) -> bool:
        return run.is_open and run.paused is None

    def perform(self) -> None:
        with self.storage.transaction():
            run = self.lock_run()
            blocked = self.storage.block_reason(run.run_id)
            self._stays_blocked = blocked is not None and blocked["code"] == CRASH
            self.storage.write([unpause_run(run, blocked=blocked, now=self.storage.now())])
            self.record(self.target.audit_subject, reason=self.reason)
            notify_on_commit(alias=self.storage.alias, queues=[run.queue])


# --- run due ----------------------------------------------------------------------------------------------------------
#
# Do the due work in the process of the web server, for development without a worker.


class RunDue(Action[int]):
    """Operation that works until nothing is due, like ``temporalex worker --burst``, and returns the number of turns.

    It works in this process and thread, and only under ``DEBUG``. Call it outside of a transaction. The audit row
    commits before the work starts. Raises ``ActionNotPossible`` without ``DEBUG``, and ``TimeoutError`` if work is left
    after ``timeout`` seconds.
    """

    name: ClassVar[str] = "run_due"
    permission: ClassVar[str] = "run_due"
    forced: ClassVar[bool] = True

    def __init__(self, *, timeout: float = 20.0, reason: str = "", by: Actor = CODE) -> None:
        super().__init__(by=by)
        self.timeout = timeout
        self.reason = fit_note(reason, label="the reason")

    def perform(self) -> int:
        if not settings.DEBUG:
            raise ActionNotPossible(
                "web processes run due work only under DEBUG: run manage.py temporalex worker --burst"
            )
        with self.storage.transaction():
            self.record(AuditSubject(run_id=None, workflow="", workflow_id=""), reason=self.reason)
        return run_due(self.timeout)


# --- skip timer -------------------------------------------------------------------------------------------------------
#
# Make a timer fire before it is due.


class SkipTimer(OperatorRunAction[None]):
    """Operation that makes a timer of a run fire in the next activation, as if it were due.

    ``seq`` is the number of the command that started the timer. The history gets an ordinary ``TimerFired``, which
    names the operator in ``by``. The timer of a paused run fires when the run is unpaused. Runs in the caller's
    transaction and locks the chain of the run.
    """

    name: ClassVar[str] = "skip_timer"
    cluster: ClassVar[str | Promise] = "at once"
    label: ClassVar[Promise] = _("Fire now")
    summary: ClassVar[Promise] = _("Fire a timer now.")
    effect: ClassVar[Promise] = _("The run continues as if the time were up.")
    done: ClassVar[Promise] = _("The timer fires.")
    destructive: ClassVar[bool] = True
    target_kind: ClassVar[Literal["run", "activity", "timer"]] = "timer"

    @classmethod
    def why_not(cls, run: Instance, *, seq: int | None = None) -> str | None:
        if reason := super().why_not(run, seq=seq):
            return reason
        if run.backend == TEMPORAL:
            return None  # the run itself says which timers are running
        alias = run._state.db  # noqa: SLF001 - Django documents it
        events = HistoryEvent.objects.using(alias).filter(run_id=run.pk, kind__in=kinds_of("timer")).order_by("seq")
        # Running timers have no rows of their own; they follow from the events of the history.
        timers = pending_timers((event.kind, event.data) for event in events)
        if seq is None:
            return None if timers else str(_("no timer is running"))
        if seq not in timers:
            return absent_timer_text(timers)
        if _was_fired(run, seq):
            return gettext(operator_overrides.ALREADY_FIRED)
        return None

    def is_done(self, run: Instance) -> bool:
        assert self.seq is not None
        return _was_fired(run, self.seq)

    @classmethod
    def parts(
        cls, runs: Sequence[UUID], selection: Mapping[str, Any], *, alias: str, limit: int
    ) -> list[tuple[UUID, int | None]]:
        """Return every running timer of the runs, as pairs of a run id and the number of the timer, at most ``limit``.

        Timers are sleeps, and the time limits of phases, waits and human tasks. ``selection`` is ignored: no input
        chooses among timers.
        """
        del selection
        parts: list[tuple[UUID, int | None]] = []
        for batch in batches(runs):
            events_by_run: dict[UUID, list[tuple[str, dict[str, Any]]]] = {run: [] for run in batch}
            events = HistoryEvent.objects.using(alias).filter(run__in=batch, kind__in=kinds_of("timer")).order_by("seq")
            for event in events:
                events_by_run[event.run_id].append((event.kind, event.data))
            running_timers = ((run, seq) for run, events in events_by_run.items() for seq in pending_timers(events))
            parts += islice(running_timers, limit - len(parts))
        return parts

    def perform(self) -> None:
        assert self.seq is not None
        with self.storage.transaction():
            run = self.lock_run()
            self.storage.write([skip_timer(run, self.seq, sender=self.by.sender)])
            self.record(self.target.audit_subject, reason=self.reason, seq=self.seq)
            notify_on_commit(alias=self.storage.alias, queues=[run.queue])


def _was_fired(run: Instance, seq: int) -> bool:
    # The message has an id that is derived from the timer, so a second skip finds the first one.
    messages = Message.objects.using(run._state.db)  # noqa: SLF001 - Django documents it
    return messages.filter(chain_id=run.chain_id, request_id=skip_message_id(run.pk, seq)).exists()


# --- try again --------------------------------------------------------------------------------------------------------
#
# Try a blocked run again at once.


class TryAgain(OperatorRunAction[None]):
    """Operation that makes a blocked run due at once, whatever the reason; if the try fails, the run is blocked again.

    If the run is blocked because processes died while they ran its code, the count of these deaths is kept. One worker
    then runs it alone, and the others leave it until that worker has succeeded or died. One more death blocks the run
    again.

    Runs in the caller's transaction and locks the chain of the run. Raises ``ActionNotPossible`` for a run that is not
    blocked, that is paused, or that is due already.
    """

    name: ClassVar[str] = "try_again"
    cluster: ClassVar[str | Promise] = _(
        "a task that fails on a Temporal cluster is tried again by the server: correct the code and deploy it"
    )
    label: ClassVar[Promise] = _("Try again now")
    summary: ClassVar[Promise] = _("Try a blocked run again now.")
    effect: ClassVar[Promise] = _(
        "The run is retried once, now. If that fails, it is blocked again. If it was blocked because "
        "its workers crashed, one worker runs it alone, and may crash as well."
    )
    done: ClassVar[Promise] = _("The run is retried now.")

    def perform(self) -> None:
        with self.storage.transaction():
            run, now = self.lock_run(), self.storage.now()
            if is_due(run.due_at, now):
                self.refuse(gettext(operator_overrides.ALREADY_DUE), closed=False, already_done=True)
            self.storage.write([retry_immediately(run, now=now)])
            self.record(self.target.audit_subject, reason=self.reason)
            notify_on_commit(alias=self.storage.alias, queues=[run.queue])
