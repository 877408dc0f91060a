"""The storage of what a turn has produced, in memory. Messages to other runs are stored first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from temporalex_django.authoring.run_columns import NextRun, names_for_next_run
from temporalex_django.core.history.activation import FailedSignal
from temporalex_django.core.payloads.codec import deep_copy
from temporalex_django.engine.activity_policy import edited_inputs
from temporalex_django.engine.contracts.records import (
    HumanTaskWrite,
    InboxMessage,
    NewRun,
    Outcome,
    RunRecord,
    RunState,
    RunWrite,
    TaskState,
)
from temporalex_django.engine.external_messages import PARENT_CLOSED, Delivery, NewChild, NewMessage
from temporalex_django.engine.ids import resolve_run
from temporalex_django.engine.memory.activity_tasks import MemoryTasks
from temporalex_django.engine.memory.inserts import MemoryInserts
from temporalex_django.engine.memory.tables import MemoryMessage, MemoryRun
from temporalex_django.engine.scheduling.eager_claim import EagerClaim
from temporalex_django.errors import AmbiguousId, InvalidId

_CONTINUED = names_for_next_run(NextRun.CONTINUED)


class MemoryWrites(MemoryInserts, MemoryTasks):
    """The part of the storage in memory that stores what a turn has produced (``write``)."""

    def write(
        self, writes: Sequence[RunWrite], *, eager_claim: EagerClaim | None = None, is_last: bool = False
    ) -> Callable[[], list[TaskState]]:
        """Store what a turn produced for its runs: events, messages, children, activities and changed columns.

        There are no workers, so ``eager_claim`` claims nothing, and the returned function returns an empty list.
        """
        del eager_claim, is_last
        for write in writes:
            # Children come first, so that a message of the same turn finds them.
            for child in write.children:
                self._start_child(child)
        for write in writes:
            for message in write.messages:
                self._send_message(message)
        for write in writes:
            if write.close_children:
                self._close_children(write.run)
        for write in writes:
            self._write_run(write)
        return list

    # -- other runs ---------------------------------------------------------------------------------------------------

    def _start_child(self, child: NewChild) -> None:
        """Start a child, or send its parent the reason why it cannot start."""
        try:
            chain_id = self._new_chain(child)
        except InvalidId as exc:
            self._send_message(child.refusal_message(exc))
            return
        if chain_id is None:
            self._send_message(child.refusal_message())
        else:
            self._children[child.parent_run][child.parent_seq] = chain_id

    def _send_message(self, message: NewMessage) -> None:
        """Put a message into the inbox of its receiver, and tell a sender that waits for it whether that worked."""
        delivery = message.check_delivery(self._resolve_delivery(message))
        if delivery.chain_id is not None:
            self._add_message(
                delivery.chain_id,
                message.kind,
                message.name,
                message.payload,
                run_id=message.run_id,
                message_id=message.message_id,
                headers=message.headers,
            )
        if message.ask is not None:
            name, payload = message.answer(delivery)
            self._add_message(message.ask[0], "external", name, payload, run_id=message.ask[1], headers=message.headers)

    def _resolve_delivery(self, message: NewMessage) -> Delivery:
        """Return where a message goes: to the chain that it names, to an open child, or to the open run of an id."""
        if message.child is not None:
            run_id, seq = message.child
            return self._open_delivery(self._children[run_id].get(seq))
        # The chain may be that of a parent which somebody has deleted.
        if message.chain_id is not None or message.workflow_id is None:
            return Delivery(message.chain_id if message.chain_id in self.chains else None)
        if (chain_id := self._chain_by_run_id(message.workflow_id)) is not None:
            return self._open_delivery(chain_id)
        run_refs = self._run_refs(message.workflow_id)
        try:
            run_ref = resolve_run(message.workflow_id, [run for run in run_refs if not run.closed])
        except AmbiguousId as exc:
            return Delivery(None, error=exc)
        if run_ref is not None:
            return self._open_delivery(run_ref.chain_id)
        return Delivery(None, exists=bool(run_refs))

    def _open_delivery(self, chain_id: UUID | None) -> Delivery:
        """Return the ``Delivery`` of a message to this chain; it names no chain if the chain is closed or deleted."""
        if chain_id is None or chain_id not in self.chains or self.chains[chain_id].closed:
            return Delivery(None)
        record = self.current_run(chain_id).facts
        return Delivery(chain_id, workflow=record.workflow, version=record.version)

    def _close_children(self, parent: RunState) -> None:
        """Ask the open children of a run that closes to cancel, or to terminate, as their ``parent_close`` says."""
        for chain_id in self._children[parent.run_id].values():
            if chain_id not in self.chains:
                continue  # somebody has deleted it
            policy = self.current_run(chain_id).facts.parent_close
            if not self.chains[chain_id].closed and policy != "abandon":
                if policy == "request_cancel":
                    kind = "cancel"
                else:
                    kind = "terminate"
                self._add_message(chain_id, kind, "", dict(PARENT_CLOSED))

    # -- the run itself -----------------------------------------------------------------------------------------------

    def _write_run(self, write: RunWrite) -> None:
        state, run = write.run, self.runs[write.run.run_id]
        self._record_leftovers(write)
        self._append_events(run, write.events)
        self._change_run(run, write)
        for task in write.tasks:
            self._schedule(task)
        for seq, retry in write.retried_tasks.items():
            self._retry(state.run_id, seq, retry)
        self._drop_tasks(state.run_id, None if write.drop_tasks else write.cancelled_tasks)
        self._settle_messages(write)
        if write.is_closed_externally:
            write.human_tasks += self._closed_tasks(state.run_id, write.events[-1].at)
        for human_task in write.human_tasks:
            self.human_tasks[human_task.id] = human_task
        if state.closed:
            self._open_keys.discard(state.chain_id)
        if write.next_run is not None:
            self._add_next_run(state, write.next_run)
        self.chains[state.chain_id] = _state_after(write)

    def _change_run(self, run: MemoryRun, write: RunWrite) -> None:
        """Store the columns of a run's row that ``write`` changes; some of them are fields of its record, too."""
        if changes := deep_copy(write.instance):
            record_changes = {name: changes[name] for name in ("started_at", "search_attributes") if name in changes}
            if record_changes:
                changes.pop("search_attributes", None)
                changes["facts"] = replace(run.facts, **record_changes)
            self.runs[write.run.run_id] = replace(run, **changes)

    def _closed_tasks(self, run_id: UUID, at: datetime) -> list[HumanTaskWrite]:
        """Return the open human tasks of a run as closed ones, because the run was closed at the time ``at``.

        The run was closed without running its code, which would have closed them itself.
        """
        open_tasks = [t for t in self.human_tasks.values() if t.run_id == run_id and not t.task.ending]
        return [
            replace(human_task, changes=("closed",), task=human_task.task.as_closed("run_closed", at))
            for human_task in open_tasks
        ]

    def _add_next_run(self, state: RunState, next_run: NewRun) -> None:
        """Add the next run of the chain ``state``, with the columns that it takes from the run before."""
        like, new = self.runs[next_run.source_run_id or state.run_id], next_run.run_id
        self._add_run(state.chain_id, _successor_record(like.facts, next_run), labels={**like.labels, **_NO_LABELS})
        if next_run.source_run_id is None:
            self.runs[new] = replace(self.runs[new], **{name: like.column(name) for name in _CONTINUED})

    def _record_leftovers(self, write: RunWrite) -> None:
        """Add to the events of ``write`` what is lost when activities are dropped or cancelled.

        What would be lost are the inputs that people have edited, and the results that the run has not read. A reset
        needs both.
        """
        run_id, inbox = write.run.run_id, self._inboxes[write.run.chain_id]
        if write.drops_open_activities:
            write.add_edited_inputs(edited_inputs(self.tasks_of_run(run_id)))
        if write.cancels_activities:
            write.add_cancelled_inputs(edited_inputs(self.tasks_of_run(run_id)))
        if write.is_closed_externally:
            write.add_unread_results(self.messages[number].message for number in sorted(inbox))

    def _settle_messages(self, write: RunWrite) -> None:
        """Store what a turn did with the messages of the inbox: consumed, answered, left to wait, or failed."""
        chain_id = write.run.chain_id
        inbox, ids = self._inboxes[chain_id], self._message_numbers[chain_id]
        for number in write.consumed:
            inbox.discard(number)
            removed = self.messages.discard(number)
            if removed is not None and removed.message.message_id is not None:
                ids.discard(removed.message.message_id)
        for number in write.parked:
            self._update_message(number, fresh=False)
        for number, outcome in write.settled.items():
            inbox.discard(number)
            self._update_message(number, fresh=False, outcome=deep_copy(outcome))
        for update_id, outcome in write.outcomes.items():
            if (existing_number := ids.get(update_id)) is not None:
                self._update_message(existing_number, outcome=deep_copy(outcome))
        if write.closing is not None:
            self._answer_updates(write, write.closing)
        for number, after in write.waiting.items():
            if (row := self.messages.get(number)) is not None:
                self._update_message(number, fresh=False, message=replace(row.message, after=after))
        for failed in write.failed_signals:
            self._store_failed(chain_id, write.run.run_id, failed)
        fresh = next((number for number in inbox if self.messages[number].fresh), None)
        if fresh is None:
            self._fresh.discard(chain_id)
        else:
            self._mark_fresh(chain_id, fresh)

    def _store_failed(self, chain_id: UUID, run_id: UUID, failed: FailedSignal) -> None:
        """Store a signal whose handler failed as a failed message of the chain; ``run_id`` is the run that had it."""
        outcome = Outcome(status="failed", value={**failed.failure, "run": str(run_id), "number": failed.number})
        existing_number = self._message_numbers[chain_id].get(failed.id)
        if existing_number is not None:
            self._update_message(existing_number, fresh=False, outcome=outcome)
            return
        number = next(self._ids)
        message = InboxMessage(
            id=number,
            kind="signal",
            name=failed.name,
            payload=deep_copy(failed.payload),
            message_id=failed.id,
            sender=failed.sender,
            headers=failed.headers,
        )
        self.messages[number] = MemoryMessage(message=message, chain_id=chain_id, fresh=False, outcome=outcome)
        self._message_numbers[chain_id][failed.id] = number

    def redeliver(self, chain_id: UUID, message_id: str) -> bool:
        """Put a failed message at the end of its inbox, as new.

        Returns False if the chain has no failed message with that message id.
        """
        number = self._failed_number(chain_id, message_id)
        if number is None:
            return False
        message = self.messages[number].message
        self._delete_message(chain_id, number, message_id)
        self._add_message(
            *(chain_id, "signal", message.name, message.payload),
            message_id=message_id,
            sender=message.sender,
            headers=message.headers,
        )
        return True

    def discard(self, chain_id: UUID, message_id: str) -> bool:
        """Mark a failed message as discarded, so that it is not delivered again.

        Returns False if the chain has no failed message with that message id.
        """
        number = self._failed_number(chain_id, message_id)
        if number is None:
            return False
        outcome = self.messages[number].outcome
        assert outcome is not None
        self._update_message(number, outcome=replace(outcome, status="discarded"))
        return True

    def failed_messages(self, chain_id: UUID) -> list[MemoryMessage]:
        """Return the failed messages (signals whose handler failed) of a chain, oldest first."""
        return [row for _, row in sorted(self.messages.items()) if row.chain_id == chain_id and row.is_failed]

    def _failed_number(self, chain_id: UUID, message_id: str) -> int | None:
        """Return the number of the failed message with this message id, or None."""
        number = self._message_numbers[chain_id].get(message_id)
        if number is not None and self.messages[number].is_failed:
            return number
        return None

    def _answer_updates(self, write: RunWrite, answer: Outcome) -> None:
        """Give ``answer`` to the accepted updates of a chain that has closed, and mark its other messages as unread.

        The next turn answers these, since it finds the run closed.
        """
        chain_id, update_names = write.run.chain_id, []
        for number in self._message_numbers[chain_id].values():
            row = self.messages[number]
            if row.outcome is not None and row.outcome.status == "accepted":
                update_names.append(row.message.name)
                self._update_message(number, outcome=deep_copy(answer))
        for number in self._inboxes[chain_id]:
            self._update_message(number, fresh=True)
        if write.is_closed_externally:
            write.warn_unfinished(update_names)


#: Labels of its start that the next run of a chain does not have.
_NO_LABELS = {"start_limit": None}


def _successor_record(record: RunRecord, new: NewRun) -> RunRecord:
    """Return the record of the next run of a chain: the record of the present run with the fields of ``new``."""
    changes = {
        "args": deep_copy(new.args),
        "seed": new.seed,
        "carried_messages": deep_copy(new.carried_messages),
        "snapshot": deep_copy(new.snapshot),
        "search_attributes": deep_copy(new.search_attributes),
    }
    return replace(record, run_id=new.run_id, started_at=None, starts_at=None, start_before=None, **changes)


def _state_after(write: RunWrite) -> RunState:
    """Return the state of the chain's current run after the turn: the next run, if the turn has made one."""
    run = write.run
    # The next run has no history yet. ``activated_at`` stays, since time does not go back.
    if write.next_run is not None:
        successor_fields: dict[str, Any] = {
            "head_token": None,
            "length": 0,
            "activations": 0,
            "failed_tries": 0,
            "atomic_due": None,
        }
        return replace(
            run,
            run_id=write.next_run.run_id,
            due_at=run.due_at or run.activated_at,
            crashes=0,
            closed=False,
            **successor_fields,
        )
    state = replace(run, crashes=0 if write.delivered else run.crashes)
    if run.closed:
        return replace(state, due_at=None, deadline=None)
    return state
