"""Updates, resumes and decisions of runs on the tables: a turn in the request, or a message for a worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from django.db import Error as DatabaseError
from django.db import connections, transaction

from temporalex_django.backends.host import await_for, host, inside_transaction, wait_for
from temporalex_django.backends.protocol import RequestCall, runs_in_workers_only
from temporalex_django.backends.tables import inline_turn
from temporalex_django.conf import codec, get_settings
from temporalex_django.core.names import counted
from temporalex_django.db.inserts import SENT, InsertedMessage, find_message, insert_message, notify_on_commit
from temporalex_django.db.messages.notify import listen
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.activity_policy import FAULT
from temporalex_django.engine.contracts.records import Outcome, RunState
from temporalex_django.engine.external_messages import MessageFingerprint
from temporalex_django.engine.refusals import (
    closed_request_error,
    counts_when_closed,
    counts_when_paused,
    paused_request_error,
)
from temporalex_django.errors import (
    ActionNotPossible,
    NestingError,
    TooManyUpdates,
    UpdateTimeout,
    WorkflowSwitchedOff,
)
from temporalex_django.telemetry import definitions
from temporalex_django.telemetry.recording import recorder

#: Seconds for which a caller's turn processes messages that were sent earlier. Then a worker continues.
_READ_WITHIN = 1.0


class TablesRequest:
    """A message that waits for its outcome, to a run whose state is in the database; ``call`` sends it.

    ``call`` is the operation, such as an update or a decision. Outside of a transaction, this process inserts the
    message and runs a turn in one transaction, or commits the message alone and waits for a worker. Inside
    ``atomic()``, everything is part of the caller's transaction.
    """

    def __init__(self, call: RequestCall) -> None:
        self.call = call
        self.target, self.storage, self.deadline = call.target, call.storage, call.deadline
        self.kind, self.message, self.message_id = call.kind, call.message, call.message_id
        self._workers_only = call.mode == "worker" or runs_in_workers_only(self.target.workflow_class)
        self._can_run_turn = host().runs_turns and not self._workers_only and self.target.workflow_class is not None
        self._last_status: UpdateStatus | None = None
        self._message_pk: int | None = None
        # Set when the insert shows that the message was not sent before.
        self._is_new = False

    @property
    def message_number(self) -> int | None:
        """The primary key of the row of the message; None until it is sent."""
        return self._message_pk

    def begin(self) -> None:
        """Send the message, and run the turn that judges it if that is possible here."""
        with self._report_lost_connection():
            self._last_status = self._submit()

    def wait(self) -> None:
        """Wait until the message has its final outcome, or until the deadline."""
        if self._last_status is None or not self._last_status.is_finished:
            listener = partial(listen, self.target.chain_id, alias=self.storage.alias)
            self._last_status = wait_for(self._poll, self.deadline, wait_slot=self.call.wait_slot, listen=listener)

    async def await_outcome(self) -> None:
        """Wait as ``wait`` does, without blocking a thread."""
        if self._last_status is None or not self._last_status.is_finished:
            self._last_status = await await_for(self._poll, self.deadline)

    def outcome(self) -> Outcome | None:
        """Return the outcome of the message, or the last one that is known; None if it was not judged."""
        with self._report_lost_connection():
            return self._last_status.outcome if self._last_status is not None else self._status().outcome

    @contextmanager
    def _report_lost_connection(self) -> Iterator[None]:
        """Raise ``UpdateTimeout`` (code ``unknown``) with the message id, if the connection is lost after the message.

        In the caller's own transaction the database error propagates, because the caller's commit is what counts.
        """
        try:
            yield
        except DatabaseError as exc:
            connection = connections[self.storage.alias]
            if self._message_pk is None or connection.in_atomic_block or not self.storage.is_connection_lost(exc):
                raise
            connection.close()  # the next query opens a new one
            raise UpdateTimeout(
                f"{self.call.request_label}: the connection to the database was lost, so it is not known whether the "
                "message was stored. Send it again with this id: it takes effect at most once",
                update_id=self.message_id,
                code="unknown",
            ) from exc

    def enqueue(self) -> None:
        """Commit the message for a worker, whatever the state of the run is, and wait for nothing."""
        inline_turn.refuse_own_run(self.target, f"{self.kind}()", storage=self.storage)
        self._enqueue_for_workers()

    def _submit(self) -> UpdateStatus:
        inline_turn.refuse_own_run(self.target, f"{self.kind}()", storage=self.storage)
        if inside_transaction(self.storage.alias):
            return self._run_in_transaction()
        if self.target.closed:
            return self._status_in_closed_run()
        if self.target.paused or self.target.off:
            return self._status_in_paused_run()
        status = None
        if self._can_run_turn:
            status = self._try_turn(wait=min(get_settings().UPDATE_LOCK_WAIT, self.deadline.seconds_left))
            if status is None and recorder.is_active:
                recorder.record(definitions.CONFLICTS, place="update")
        return status or self._enqueue_for_workers()

    # -- inside the caller's transaction -------------------------------------------------------------------------------

    def _run_in_transaction(self) -> UpdateStatus:
        """Run the handler to the end, with atomic activities, in the caller's transaction, or roll back to a savepoint.

        Raises ``UpdateTimeout`` (code ``busy``) if the message could not be judged. Raises ``ActionNotPossible`` if the
        handler would still wait: nothing that it waits for can arrive before the transaction ends.
        """
        if level := self.storage.sql.fixed_snapshot():
            raise NestingError(
                f"update() inside a transaction of isolation level {level} cannot see what others did to the run "
                "before it got the lock. Call it outside of the transaction, or use READ COMMITTED"
            )
        if self.target.closed:
            return self._status_in_closed_run()
        if self.target.paused or self.target.off:
            return self._status_in_paused_run()
        if not self._can_run_turn:
            reason = f"this process does not have {self.target.workflow}"
            if self._workers_only:
                reason = "only workers may process it (`mode` or `updates_in` says so)"
            raise self._busy_error(f"{reason}, and a worker cannot see it before the transaction commits")
        with self.storage.savepoint():
            status = self._run_turn(wait=min(get_settings().UPDATE_LOCK_WAIT, self.deadline.seconds_left), yields=True)
            if status is None:
                raise self._busy_error("its lock was not free")
            if status.outcome is None:
                raise self._busy_error("the run did not reach the message")
            if self._is_new:
                status = self._run_atomic_activities(status)
            if not self._is_new and not status.is_finished:
                # Nobody could finish it while this transaction holds the lock. The savepoint releases the lock.
                raise UpdateTimeout(
                    f"{self.call.request_label} was accepted before and has not finished. Send it again after "
                    "this transaction, with the same id",
                    update_id=self.message_id,
                    accepted=True,
                )
        # A test environment continues after the block with what cannot arrive inside it.
        if not status.is_finished:
            raise UpdateTimeout(
                f"{self.call.request_label} was accepted but has not finished: it continues when the transaction "
                "commits. Then send it again with the same id",
                update_id=self.message_id,
                accepted=True,
            )
        return status

    def _run_atomic_activities(self, status: UpdateStatus) -> UpdateStatus:
        """Run atomic activities until the update ends. Raises ``UpdateTimeout`` at the deadline.

        Raises ``ActionNotPossible`` if the handler waits for something else; a test environment gets the status.
        """
        while not status.is_finished:
            report = inline_turn.advance_atomic(self.target, storage=self.storage)
            # No progress: the handler waits for something that cannot happen inside this transaction.
            if not any(write.events for write in report.writes):
                if not inline_turn.runs_atomic(self.storage):
                    return status
                raise ActionNotPossible(
                    f"{self.call.request_label} inside a transaction: its handler would still wait for something "
                    "(an external activity, a timer, a person, another run) that cannot arrive before the "
                    "transaction ends. Nothing was written. Send it outside the transaction"
                )
            status = self._status()
            if not status.is_finished and not self.deadline.seconds_left:
                raise self._busy_error("its atomic activities did not finish in time")
        return status

    def _busy_error(self, reason: str) -> UpdateTimeout:
        return UpdateTimeout(
            f"{self.call.request_label} inside a transaction: {reason}. Nothing was written. Send it again, "
            "outside the transaction if possible",
            update_id=self.message_id,
            code="busy",
        )

    # -- outside of a transaction --------------------------------------------------------------------------------------

    def _try_turn(self, *, wait: float) -> UpdateStatus | None:
        """Insert the message and run a turn, in a transaction of its own; None if no lock within ``wait`` seconds."""
        try:
            with self.storage.transaction("update"):
                return self._run_turn(wait=wait)
        except DatabaseError as exc:
            if not self.storage.is_transient(exc):
                raise
            return None

    def _enqueue_for_workers(self) -> UpdateStatus:
        """Commit the message alone and notify workers, where this process cannot run the turn.

        Raises ``TooManyUpdates``, and ``UpdateTimeout`` if the database is busy.
        """
        alias = self.storage.alias
        try:
            with self.storage.transaction("update left"):
                # The insert waits for another open transaction that has a message with the same id.
                self.storage.sql.set_lock_timeout(min(self.deadline.seconds_left, 60.0))
                if self._insert().new:
                    self._require_waiting_limit()
                    self.call.record(
                        self.target.audit_subject, **{self.kind: self.message, "update_id": self.message_id}
                    )
        except DatabaseError as exc:
            if not self.storage.is_transient(exc):
                raise
            raise UpdateTimeout(
                f"{self.call.request_label}: the database is busy. Send it again with the same id",
                update_id=self.message_id,
            ) from exc
        notify_on_commit(alias=alias, queues=[self.target.queue])
        return self._status()

    def _poll(self) -> UpdateStatus | None:
        """Return a final status, or None. An unread message gets a turn without waiting for the lock."""
        with self._report_lost_connection():
            status = self._status()
            if status.outcome is None and status.fresh and self._can_run_turn:
                status = self._try_turn(wait=0) or status
        if status.is_finished:
            return status
        return None

    # -- shared --------------------------------------------------------------------------------------------------------

    def _run_turn(self, *, wait: float, yields: bool = False) -> UpdateStatus | None:
        """Lock the run, insert the message and activate the run. None, with nothing written, if the lock is not free.

        With ``yields`` it gives up as soon as the worker that has the lock waits for a row of this transaction.
        """
        run = inline_turn.try_lock_run(self.target, storage=self.storage, wait=wait, yields=yields)
        if run is None:
            return None
        if run.closed:
            return self._status_in_closed_run()
        if run.paused:
            return self._status_in_paused_run()
        inserted = self._insert()
        if not inserted.new and (status := self._status()).outcome is not None:
            return status
        outcome, has_written = self._activate_until_read(inserted, run)
        if outcome is not None and outcome.status == "rejected":
            self._discard_rejected(inserted, has_written=has_written)
        elif outcome is not None and outcome.status == FAULT:
            pass  # the row is kept for people who look for faults
        elif inserted.new:
            self.call.record(self.target.audit_subject, **{self.kind: self.message, "update_id": self.message_id})
        if outcome is None and inserted.new:
            self._require_waiting_limit()
        # The update waits for a handler, or the run is blocked or has an atomic activity to run first.
        if outcome is None:
            notify_on_commit(alias=self.storage.alias, queues=[self.target.queue])
        return UpdateStatus(outcome=outcome)

    def _activate_until_read(self, inserted: InsertedMessage, run: RunState | None) -> tuple[Outcome | None, bool]:
        """Activate until the message is read: an activation may read only some. Returns ``(outcome, has_written)``."""
        read_deadline, has_written = time.monotonic() + min(_READ_WITHIN, self.deadline.seconds_left), False
        message_pk, now = inserted.id, inserted.at
        while True:
            report = inline_turn.advance(self.target, storage=self.storage, run=run, now=now)
            run = now = None  # both are stale after an activation
            write = report.writes[0] if report.writes else None
            if write is None:
                return None, has_written
            has_written = has_written or bool(write.events) or "blocked" in write.instance
            if message_pk in write.settled or message_pk in write.waiting or time.monotonic() > read_deadline:
                return write.settled.get(message_pk), has_written
            if not write.consumed and not write.settled and not write.events:
                # Another activation would not help: the run is blocked, paused, or has other work to do first.
                return None, has_written

    def _require_waiting_limit(self) -> None:
        """Raise ``TooManyUpdates``. It comes after the insert, so the error rolls this message back, too."""
        limit = get_settings().WAITING_UPDATES
        rows = self.storage.sql.select(
            "select count(*) from (select 1 from temporalex_message where chain_id = %s and not settled and kind = %s"
            " limit %s) waiting",
            [self.target.chain_id, self.kind, limit + 1],
            ("int8",),
        )
        if rows[0][0] > limit:
            raise TooManyUpdates(
                f"{self.call.request_label}: {counted(limit, 'update', 'updates')} (WAITING_UPDATES) "
                f"{'is' if limit == 1 else 'are'} already waiting for the run. "
                "Try again later"
            )

    def _discard_rejected(self, inserted: InsertedMessage, *, has_written: bool) -> None:
        """Delete only the row if the turn wrote something else; otherwise roll the transaction back."""
        if has_written:
            self.storage.sql.execute("delete from temporalex_message where id = %s", [inserted.id])
        else:
            transaction.set_rollback(True, using=self.storage.alias)

    def _insert(self) -> InsertedMessage:
        self.call.before_insert()
        inserted = insert_message(
            self.target.chain_id,
            kind=self.kind,
            name=self.message,
            body=self.call.payload,
            request_id=self.message_id,
            sender=self.call.by.sender,
            headers=self.call.headers,
            exact=self.call.exact,
            storage=self.storage,
        )
        self._message_pk, self._is_new = inserted.id, inserted.new
        return inserted

    def _status_in_closed_run(self) -> UpdateStatus:
        """Return the status of a message that was accepted before the close. Raises ``WorkflowClosed`` for others."""
        if (status := self._earlier_status(counts_when_closed)) is not None:
            return status
        closed = closed_request_error(self._run_label, self.target.status, f"{self.kind} {self.message!r}")
        raise self.call.closed_error(closed) from closed

    def _status_in_paused_run(self) -> UpdateStatus:
        """Return the status of a message from before. Raises ``RunPaused`` or ``WorkflowSwitchedOff`` for a new one."""
        if (status := self._earlier_status(counts_when_paused)) is not None:
            return status
        if self.target.off:
            raise WorkflowSwitchedOff(
                f"{self.target.workflow} is switched off: {self.kind} {self.message!r} of {self.target.workflow_id} refused; send it "
                "again when it is on"
            )
        raise paused_request_error(self._run_label, f"{self.kind} {self.message!r}")

    @property
    def _run_label(self) -> str:
        return f"{self.target.workflow} {self.target.workflow_id}"

    def _earlier_status(self, counts: Callable[[str | None], bool]) -> UpdateStatus | None:
        """Return the status of this message if it was sent before and ``counts(status of its outcome)``, else None.

        Raises ``MessageIdTaken`` if a different message was sent with its id.
        """
        earlier_message = find_message(self.target.chain_id, self.message_id, storage=self.storage)
        if earlier_message is None:
            return None
        status = update_status(self.target.chain_id, self.message_id, storage=self.storage)
        if status is None or not counts(None if status.outcome is None else status.outcome.status):
            return None
        earlier_message[1].require_same(
            self.message_id,
            MessageFingerprint(self.kind, self.message, self.call.payload, self.call.by.sender),
            exact=self.call.exact,
        )
        return status

    def _status(self) -> UpdateStatus:
        status = update_status(self.target.chain_id, self.message_id, storage=self.storage)
        # The turn of another process rejected the update, and its row is gone with the reason.
        if status is None:
            raise UpdateTimeout(f"{self.call.request_label} no longer exists: send it again", update_id=self.message_id)
        return status


# --- request status ---------------------------------------------------------------------------------------------------
#
# The status of a message that waits for an outcome, read from its row.


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStatus:
    """The status of a message with an answer: an update, a resume or a decision.

    ``outcome`` is None if no turn has judged the message. ``fresh`` is True if no turn has read it yet.
    """

    outcome: Outcome | None
    fresh: bool = False

    @property
    def is_finished(self) -> bool:
        return self.outcome is not None and self.outcome.status != "accepted"


def update_status(chain_id: UUID, update_id: str, *, storage: DjangoStorage) -> UpdateStatus | None:
    """Return the status of the message with that id in a chain, or None for an unknown id. One read."""
    rows = storage.sql.select(
        "select fresh, outcome_status, outcome from temporalex_message where chain_id = %s and request_id = %s",
        [chain_id, update_id],
        ("bool", "text", "bytea"),
    )
    if not rows:
        return None
    fresh, status, value = rows[0]
    if status in (None, SENT):
        return UpdateStatus(outcome=None, fresh=fresh)
    return UpdateStatus(outcome=Outcome(status=status, value=None if value is None else codec().decode(value)))
