"""Send an update and wait for its outcome: in the caller's process where that is possible."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar
from uuid import UUID, uuid4

from asgiref.sync import sync_to_async
from django.db import Error as DatabaseError
from django.db import connections, transaction

from temporalex_django import access
from temporalex_django.actions import inline
from temporalex_django.actions.base import CODE, Actor, logger, plain
from temporalex_django.actions.live_workers import live_workers
from temporalex_django.actions.targets import ActionOnRun, RunTarget, in_workers_alone
from temporalex_django.actions.waiting import Deadline, Seat, await_for, free_seat, inside_transaction, wait_for
from temporalex_django.authoring.declared_messages import warn_lossy
from temporalex_django.authoring.handle import ANSWER_TIMEOUT
from temporalex_django.authoring.redaction import HIDDEN, UNREDACTED, Redactor
from temporalex_django.conf import codec, get_settings
from temporalex_django.core.durations import check_wait
from temporalex_django.core.names import check_message_id, check_name, quoted
from temporalex_django.db.inserts import InsertedMessage, find_message, insert_message, notify_on_commit
from temporalex_django.db.listen import listen
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.deduplication import MessageFingerprint
from temporalex_django.engine.outcomes import FAULT, update_result
from temporalex_django.engine.storage import Outcome, RunState
from temporalex_django.errors import (
    ActionNotPossible,
    NestingError,
    RunBlocked,
    RunPaused,
    TooManyUpdates,
    UpdateTimeout,
    WorkflowClosed,
    WorkflowNotFound,
    WorkflowSwitchedOff,
)
from temporalex_django.models import Instance

_DONE = ("completed", "failed")
#: Seconds that a caller's turn goes on through messages that came before his; then he waits, and a worker goes on.
_READ_WITHIN = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStatus:
    """Where an update stands. ``outcome`` None: no turn has judged it; ``fresh``: no turn has even read it."""

    outcome: Outcome | None
    fresh: bool = False

    @property
    def ended(self) -> bool:
        return self.outcome is not None and self.outcome.status != "accepted"


class JudgedMessage(ActionOnRun[Any]):
    """A message that is judged and answered: an update, or the resume of a graph.

    Outside of a transaction: a turn in this process when the run's lock is free within ``UPDATE_LOCK_WAIT`` and the
    class is here, in one transaction with the message; else the outcome is waited for, with no transaction open. Inside
    ``atomic()`` nothing is waited for but the lock, and everything lives or dies with the caller's transaction. A
    rejected update leaves nothing behind.

    Raises ``PayloadError``, ``InvalidId`` (``MessageIdTaken`` for the id of another message), ``UpdateRejected``,
    ``NotAccepting``, ``RunPaused``, ``RunBlocked``, ``WorkflowSwitchedOff``, ``WorkflowClosed``,
    ``TooManyUpdates``, ``UpdateFailed``, ``NestingError``, ``ActionNotPossible``, and ``UpdateTimeout``: ask again with
    its ``update_id`` (code ``unknown``: the database went away while it was sent). An id that was accepted once gives
    its first outcome, whatever the body; with ``exact`` another body is refused, too.
    """

    kind: ClassVar[str]
    judged: ClassVar[bool] = True

    def __init__(
        self,
        target: RunTarget,
        *,
        message: str,
        body: Any,
        id: str | None,
        timeout: float | None,
        mode: str,
        by: Actor,
        exact: bool = False,
        seat: Seat = free_seat,
    ) -> None:
        super().__init__(by=by)
        self.exact = exact
        self.seat = seat
        wait = check_wait(timeout, mode)
        self.target = target
        self.message = check_name(message, label=self.kind)
        self.body = plain(body, what=f"the body of {self.kind} {message!r}")
        self.id = str(uuid4()) if id is None else check_message_id(id, label="update")
        self.deadline = Deadline(wait)
        self._left_to_workers = mode == "worker" or in_workers_alone(target.code)
        self._turns_here = not self._left_to_workers and target.code is not None
        self._message: int | None = None
        self._new = False  # it was not sent before

    @property
    def said(self) -> str:
        return str(self.message)

    def perform(self) -> Any:
        first = self._begin()
        if first.ended:
            return self._value(first)
        ear = partial(listen, self.target.chain_id, alias=self.storage.alias)
        return self._value(wait_for(self._look, self.deadline, seat=self.seat, ear=ear))

    async def aexecute(self) -> Any:
        """``execute`` that holds no thread while it waits."""
        first: UpdateStatus = await sync_to_async(self._checked_begin)()
        return await sync_to_async(self._valued)(first if first.ended else await await_for(self._look, self.deadline))

    def _valued(self, found: UpdateStatus | None) -> Any:
        with self.noting_denials():
            return self._value(found)

    def _checked_begin(self) -> UpdateStatus:
        with self.noting_denials():
            self.check()
            return self._begin()

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Leave the caller of a connection that breaks with the id to ask with.

        It breaks when the message is under way, or known to be stored.

        Inside the caller's own transaction it is his commit that counts: the error of the database goes through.
        """
        try:
            yield
        except DatabaseError as exc:
            connection = connections[self.storage.alias]
            if self._message is None or connection.in_atomic_block or not self.storage.is_connection_lost(exc):
                raise
            connection.close()  # the next question opens another one
            raise UpdateTimeout(
                f"{self._what}: the connection to the database broke, and whether it counts is not known; ask again with this id, "
                "which acts once at most",
                update_id=self.id,
                code="unknown",
            ) from exc

    def _begin(self) -> UpdateStatus:
        with self._connected():
            return self._first()

    def _first(self) -> UpdateStatus:
        inline.refuse_own_run(self.target, f"{self.kind}()", storage=self.storage)
        if inside_transaction(self.storage.alias):
            return self._inside()
        if self.target.closed:
            return self._of_closed()
        if self.target.paused or self.target.off:
            return self._of_paused()
        here = self._here(wait=min(get_settings().UPDATE_LOCK_WAIT, self.deadline.left)) if self._turns_here else None
        return here or self._leave_to_workers()

    # -- inside the caller's transaction -------------------------------------------------------------------------------

    def _inside(self) -> UpdateStatus:
        """Judge it, and run its handler to the end, atomic activities included.

        What cannot be done here is rolled back to a savepoint. Raises ``UpdateTimeout`` (code ``busy``) where it could
        not be judged, and ``ActionNotPossible`` where its handler would still wait: nothing that it waits for can come
        before the transaction ends.
        """
        if level := self.storage.sql.fixed_snapshot():
            raise NestingError(
                f"update() inside a transaction of isolation level {level}: it could not see what others did to the run "
                "before it got the lock. Call it outside of the transaction, or use READ COMMITTED"
            )
        if self.target.closed:
            return self._of_closed()
        if self.target.paused or self.target.off:
            return self._of_paused()
        if not self._turns_here:
            why = f"this process has no {self.target.workflow}"
            if self._left_to_workers:
                why = "workers alone judge it (`mode` or `updates_in` says so)"
            raise self._busy(f"{why}, and a worker cannot see it before the transaction commits")
        with self.storage.savepoint():
            found = self._turn(wait=min(get_settings().UPDATE_LOCK_WAIT, self.deadline.left), gives_way=True)
            if found is None:
                raise self._busy("its lock was not free")
            if found.outcome is None:
                raise self._busy("it did not come to judge the update")
            if self._new and inline.runs_atomic(self.storage):
                found = self._with_atomic_work(found)
        if not found.ended and not inline.runs_atomic(self.storage):  # the environment does it, once the block is left
            raise UpdateTimeout(
                f"{self._what} was accepted and is not done: it goes on when the transaction commits; ask again then with the "
                "same id",
                update_id=self.id,
                accepted=True,
            )
        return found

    def _with_atomic_work(self, found: UpdateStatus) -> UpdateStatus:
        """Go on with the atomic activities of the run, as long as there are any and the update has not ended.

        Raises ``ActionNotPossible``.
        """
        while not found.ended:
            report = inline.advance_atomic(self.target, storage=self.storage)
            if not any(write.events for write in report.writes):  # it came no further
                raise ActionNotPossible(
                    f"{self._what} inside a transaction: its handler would still wait when it has done what it can, and "
                    "what it waits for (an external activity, a timer, a person, another run) cannot come before the "
                    "transaction ends. Send it outside of the transaction; nothing was written"
                )
            found = self._standing()
            if not found.ended and not self.deadline.left:
                raise self._busy("its atomic activities did not end in time")
        return found

    def _busy(self, why: str) -> UpdateTimeout:
        return UpdateTimeout(
            f"{self._what} inside a transaction: {why}; nothing was written. Ask again, outside of the transaction if possible",
            update_id=self.id,
            code="busy",
        )

    # -- outside -------------------------------------------------------------------------------------------------------

    def _here(self, *, wait: float) -> UpdateStatus | None:
        """A turn in a transaction of our own; None when the lock was not to be had."""
        try:
            with self.storage.transaction("update"):
                return self._turn(wait=wait)
        except DatabaseError as exc:
            if not self.storage.is_transient(exc):
                raise
            return None

    def _leave_to_workers(self) -> UpdateStatus:
        """Only the message, committed, so that whoever has the run or takes it next finds it."""
        alias = self.storage.alias
        try:
            with self.storage.transaction("update left"):
                # the same id may be in a transaction of somebody else's that has not ended
                self.storage.sql.set_lock_timeout(min(self.deadline.left, 60.0))
                if self._insert().new:
                    self._require_room()
                    self.tell(self.target.subject, **{self.kind: self.message, "update_id": self.id})
        except DatabaseError as exc:
            if not self.storage.is_transient(exc):
                raise
            raise UpdateTimeout(
                f"{self._what}: the database is busy; ask again with the same id", update_id=self.id
            ) from exc
        notify_on_commit(alias=alias, queues=[self.target.queue])
        return self._standing()

    def _look(self) -> UpdateStatus | None:
        """Whether it has ended; an update that nobody has read goes on trying for the lock."""
        with self._connected():
            standing = self._standing()
            if standing.outcome is None and standing.fresh and self._turns_here:
                standing = self._here(wait=0) or standing
        return standing if standing.ended else None

    # -- both ----------------------------------------------------------------------------------------------------------

    def _turn(self, *, wait: float, gives_way: bool = False) -> UpdateStatus | None:
        """Lock, insert, activate, in the open transaction. None without the lock, then nothing is written."""
        run = inline.locked(self.target, storage=self.storage, wait=wait, gives_way=gives_way)
        if run is None:
            return None
        if run.closed:
            return self._of_closed()
        if run.paused:
            return self._of_paused()
        inserted = self._insert()
        if not inserted.new and (known := self._standing()).outcome is not None:
            return known
        outcome, wrote = self._activated(inserted, run)
        if outcome is not None and outcome.status == "rejected":
            self._leave_nothing(inserted, wrote=wrote)
        elif outcome is not None and outcome.status == FAULT:
            pass  # the row stays, for those who look for faults
        elif inserted.new:
            self.tell(self.target.subject, **{self.kind: self.message, "update_id": self.id})
        if outcome is None and inserted.new:
            self._require_room()
        if outcome is None:  # behind a handler, or the run is blocked, or has an atomic activity to run first
            notify_on_commit(alias=self.storage.alias, queues=[self.target.queue])
        return UpdateStatus(outcome=outcome)

    def _activated(self, inserted: InsertedMessage, run: RunState | None) -> tuple[Outcome | None, bool]:
        """Activate until the message was read: an activation leaves what does not fit its budget.

        Its outcome, if it has one, and whether something else was written.
        """
        until, wrote = time.monotonic() + min(_READ_WITHIN, self.deadline.left), False
        message, now = inserted.id, inserted.at
        while True:
            report = inline.advance(self.target, storage=self.storage, run=run, now=now)
            run = now = None  # it is another one now
            write = report.writes[0] if report.writes else None
            if write is None:
                return None, wrote
            wrote = wrote or bool(write.events) or "blocked" in write.instance
            if message in write.settled or message in write.waiting or time.monotonic() > until:
                return write.settled.get(message), wrote
            if not write.consumed and not write.settled and not write.events:
                # another one would come no nearer: the run is blocked, paused, or has something else to do first
                return None, wrote

    def _require_room(self) -> None:
        """Of an update that is to wait: raises ``TooManyUpdates``, which takes it back, where too many do."""
        most = get_settings().WAITING_UPDATES
        rows = self.storage.sql.select(
            "select count(*) from (select 1 from temporalex_message where chain_id = %s and not settled and kind = %s"
            " limit %s) waiting",
            [self.target.chain_id, self.kind, most + 1],
            ("int8",),
        )
        if rows[0][0] > most:
            raise TooManyUpdates(f"{self._what}: {most} wait for this run already, it takes no more for now")

    def _leave_nothing(self, inserted: InsertedMessage, *, wrote: bool) -> None:
        """A rejected update: when the turn did nothing else, nothing at all is written."""
        if wrote:
            self.storage.sql.execute("delete from temporalex_message where id = %s", [inserted.id])
        else:
            transaction.set_rollback(True, using=self.storage.alias)

    def _insert(self) -> InsertedMessage:
        inserted = insert_message(
            self.target.chain_id,
            kind=self.kind,
            name=self.message,
            body=self.body,
            request_id=self.id,
            sender=self.by.sender,
            exact=self.exact,
            storage=self.storage,
        )
        self._message, self._new = inserted.id, inserted.new
        return inserted

    def _of_closed(self) -> UpdateStatus:
        """A closed run still knows the outcomes of what it accepted. Raises ``WorkflowClosed`` for everything else."""
        before = find_message(self.target.chain_id, self.id, storage=self.storage)
        found = None if before is None else standing(self.target.chain_id, self.id, storage=self.storage)
        if before is not None and found is not None and found.outcome is not None and found.outcome.status in _DONE:
            before[1].require_same(
                self.id, MessageFingerprint(self.kind, self.message, self.body, self.by.sender), exact=self.exact
            )
            return found
        raise WorkflowClosed(
            f"{self.target.workflow} {self.target.workflow_id} is closed: {self.kind} {self.message!r} refused"
        )

    def _of_paused(self) -> UpdateStatus:
        """What was sent before goes on where it stands.

        Raises ``RunPaused`` for everything else, or ``WorkflowSwitchedOff``.
        """
        before = find_message(self.target.chain_id, self.id, storage=self.storage)
        found = None if before is None else standing(self.target.chain_id, self.id, storage=self.storage)
        if before is not None and found is not None and (found.outcome is None or found.outcome.status != "rejected"):
            before[1].require_same(
                self.id, MessageFingerprint(self.kind, self.message, self.body, self.by.sender), exact=self.exact
            )
            return found
        if self.target.off:
            raise WorkflowSwitchedOff(
                f"{self.target.workflow} is switched off: {self.kind} {self.message!r} of {self.target.workflow_id} refused; send it "
                "again when it is on"
            )
        raise RunPaused(
            f"{self.target.workflow} {self.target.workflow_id} is paused: {self.kind} {self.message!r} refused; send it again "
            "when it is unpaused"
        )

    def _standing(self) -> UpdateStatus:
        found = standing(self.target.chain_id, self.id, storage=self.storage)
        if found is None:  # somebody else's turn rejected it and nobody is left to tell why
            raise UpdateTimeout(f"{self._what} is gone: send it again", update_id=self.id)
        return found

    @property
    def _what(self) -> str:
        return f"{self.kind} {self.message!r} of {self.target.workflow} {self.target.workflow_id}"

    def _value(self, found: UpdateStatus | None) -> Any:
        with self._connected():
            outcome = found.outcome if found is not None else self._standing().outcome
        outcome = _for_its_sender(outcome, self._view)
        try:
            return self._shown(update_result(outcome, update_id=self.id, label=self._what))
        except RunBlocked as exc:
            raise blocked(exc, self._what, self._view) from None
        except UpdateTimeout as exc:
            raise UpdateTimeout(f"{exc}{self._why()}", update_id=self.id, accepted=exc.accepted) from None

    def _shown(self, value: Any) -> Any:
        """The answer as he sees it. It is done: a policy that fails now hides it, and undoes nothing."""
        try:
            return self._view.redact_answer(value, message_name=self.message)
        except Exception as exc:  # noqa: BLE001 - a policy is the project's own
            what = "%s is done; its answer is hidden, for the access policy failed: %s"
            logger.error(what, self._what, type(exc).__name__)
            return HIDDEN

    def _why(self) -> str:
        run = Instance.objects.using(self.storage.alias).filter(pk=self.target.run_id).values("blocked").first()
        blocked = run["blocked"] if run else None
        if blocked:
            return f" (the run is blocked: {self._view.redact_text(str(blocked.get('error')))})"
        target = self.target
        lacking = live_workers(alias=self.storage.alias).missing(
            workflow=target.workflow, version=target.version, queue=target.queue
        )
        return f" (it waits for {lacking})" if lacking else ""

    @property
    def _view(self) -> Redactor:
        """What is to be left out of the answer where it goes through a face."""
        user = self.by.user
        return UNREDACTED if user is None or self.by.source == CODE.source else access.view_of(user, self.row)


class SendUpdate(JudgedMessage):
    """Gives the handler's response; see ``JudgedMessage`` for where it runs and what it locks."""

    name: ClassVar[str] = "update"
    permission: ClassVar[str] = "update_instance"
    ordinary: ClassVar[bool] = True
    kind: ClassVar[str] = "update"

    def __init__(
        self,
        target: RunTarget,
        *,
        update: str,
        args: Any = None,
        id: str | None = None,
        timeout: float | None = ANSWER_TIMEOUT,
        mode: str = "auto",
        by: Actor = CODE,
        exact: bool = False,
        seat: Seat = free_seat,
    ) -> None:
        body = plain(args, what=f"the arguments of update {update!r}")
        super().__init__(
            target, message=update, body=body, id=id, timeout=timeout, mode=mode, by=by, exact=exact, seat=seat
        )
        if (code := target.code) is not None:
            warn_lossy(code, "update", update, args, body)


def blocked(exc: RunBlocked, what: str, view: Redactor) -> RunBlocked:
    """The refusal of a blocked run, as he may see it: why it is blocked may quote payloads."""
    why = view.redact_text(str(exc.reason))
    return RunBlocked(f"{what} was withdrawn, for the run is blocked: {why}", reason=why)


def standing(chain_id: UUID, update_id: str, *, storage: DjangoStorage) -> UpdateStatus | None:
    """Where an update of a chain stands; None for an id that it does not know."""
    rows = storage.sql.select(
        "select fresh, outcome_status, outcome from temporalex_message where chain_id = %s and request_id = %s",
        [chain_id, update_id],
        ("bool", "text", "bytea"),
    )
    if not rows:
        return None
    fresh, status, value = rows[0]
    if status is None:
        return UpdateStatus(outcome=None, fresh=fresh)
    return UpdateStatus(outcome=Outcome(status=status, value=None if value is None else codec().decode(value)))


def outcome_of(target: RunTarget, update: str, update_id: str, *, storage: DjangoStorage, by: Actor = CODE) -> Any:
    """The response of an update that was sent before.

    Raises what ``SendUpdate`` raises, ``WorkflowNotFound`` for an unknown id.

    Whoever sent it is told in any case, others when they may see payloads.
    """
    before = find_message(target.chain_id, check_message_id(update_id, label="update"), storage=storage)
    found = standing(target.chain_id, update_id, storage=storage)
    if found is None or before is None or before[1][:2] != ("update", update):
        raise WorkflowNotFound(
            f"{target.workflow} {target.workflow_id} knows no update {quoted(update)} with the id {update_id!r}"
        )
    what = f"the update {update_id!r} of {target.workflow} {target.workflow_id}"
    if by.user is None:
        return update_result(found.outcome, update_id=update_id, label=what)
    view = access.view_of(by.user, target.row)
    if before[1].sender == by.sender:
        own = _for_its_sender(found.outcome, view)
        return view.redact_answer(update_result(own, update_id=update_id, label=what), message_name=update)
    shown_outcome = _for_others(found.outcome, view)
    return view.redact_payload(update_result(shown_outcome, update_id=update_id, label=what), message_name=update)


def _for_its_sender(outcome: Outcome | None, view: Redactor) -> Outcome | None:
    """Why an update failed may quote what the class of the run redacts."""
    if outcome is None or outcome.status != "failed" or not isinstance(outcome.value, dict):
        return outcome
    return Outcome(
        status=outcome.status,
        value={**outcome.value, "message": view.redact_own_failure(outcome.value.get("message") or "")},
    )


def _for_others(outcome: Outcome | None, view: Redactor) -> Outcome | None:
    """Why an update failed may quote payloads."""
    if outcome is None or outcome.status not in ("failed", "rejected"):
        return outcome
    facts = outcome.value or {}
    shown = {**facts, "message": view.redact_text(facts.get("message") or "")}
    if "reason" in facts:
        shown["reason"] = (
            shown["message"] if shown["message"] != facts.get("message") else view.redact_payload(facts["reason"])
        )
    return Outcome(status=outcome.status, value=shown)
