"""The inserts in memory that callers make outside of turns: starts of runs, and messages."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from temporalex_django.core.history.prefix import EXTERNAL_KINDS, PendingMessage
from temporalex_django.core.human_tasks import add_starter
from temporalex_django.core.messages.sender import Headers, Sender
from temporalex_django.core.names import all_names
from temporalex_django.core.payloads.codec import deep_copy
from temporalex_django.core.process import REQUEST
from temporalex_django.engine.contracts.records import InboxMessage, Outcome, RunRecord, RunState
from temporalex_django.engine.deduplication import MessageFingerprint
from temporalex_django.engine.fates import is_unstarted
from temporalex_django.engine.ids import run_id_taken_error, uuid7
from temporalex_django.engine.memory.tables import MemoryMessage, MemoryTables, start_labels
from temporalex_django.engine.run_start import RunStart
from temporalex_django.errors import AlreadyRunning


class MemoryInserts(MemoryTables):
    """The part of the storage in memory that starts chains and stores messages."""

    def start(self, start: RunStart) -> UUID:
        """Start a new chain, which is due when its run begins, and return its id.

        Raises ``AlreadyRunning`` when an open run in its scope has the id, and ``InvalidId`` when the id is that of a
        run.
        """
        chain_id = self._new_chain(start)
        if chain_id is None:
            raise AlreadyRunning(
                f"{start.workflow} {start.workflow_id!r} is open already: use its handle, or another id"
            )
        return chain_id

    def _new_chain(self, start: RunStart) -> UUID | None:
        """Create a chain with its first run; return None when its id is taken in its scope.

        Raises ``InvalidId`` when the id is that of a run.
        """
        workflow_id, key = start.workflow_id, start.open_key
        if self._chain_by_run_id(workflow_id) is not None:
            raise run_id_taken_error(workflow_id)
        if key is not None and self._is_key_in_use(key, start):
            return None
        chain_id = uuid7()
        record = RunRecord.from_start(
            replace(start, args=deep_copy(start.args), snapshot=deep_copy(start.snapshot)),
            run_id=uuid7(),
            now=self.clock,
        )
        self._add_run(chain_id, record, labels=start_labels(start))
        self._chains_of[workflow_id] = (*self._chains_of.get(workflow_id, ()), chain_id)
        self.queues.add(start.queue)
        if key is not None:
            self._open_keys[chain_id] = key
        self.chains[chain_id] = RunState(
            chain_id=chain_id,
            run_id=record.run_id,
            queue=start.queue,
            head_token=None,
            length=0,
            activations=0,
            activated_at=None,
            due_at=start.due_at(self.clock),
            deadline=start.deadline(self.clock),
        )
        return chain_id

    def replace_waiting_input(self, start: RunStart, starter: Sender | None) -> UUID | None:
        """Replace the input and the times of a debounced run that has not begun, and return its chain.

        The run is the open one with the id, the class and the version of ``start``. ``starter`` is the person who
        starts, or None. Returns None if there is no such run.
        """
        for chain_id in self._chains_of.get(start.workflow_id, ()):
            state, run = self.chains[chain_id], self.current_run(chain_id)
            record = run.facts
            is_same = (record.workflow, record.version) == (start.workflow, start.version)
            if self._open_keys.get(chain_id) != start.open_key or not is_same:
                continue
            is_debounced = "debounce" in (run.column("start_limit") or {})
            if not is_debounced or not is_unstarted(state):
                continue
            snapshot = record.snapshot if starter is None else add_starter(record.snapshot, starter)
            changed = replace(
                record,
                args=deep_copy(start.args),
                starts_at=start.begins_at(self.clock),
                start_before=start.start_before,
                expires_at=start.expires_at(self.clock),
                snapshot=snapshot,
                headers=start.headers,
            )
            self.runs[record.run_id] = replace(run, facts=changed)
            due_at = state.due_at if state.paused else start.due_at(self.clock)
            self.chains[chain_id] = replace(state, due_at=due_at, deadline=start.deadline(self.clock))
            return chain_id
        return None

    def _is_key_in_use(self, key: str, start: RunStart) -> bool:
        """Return True if an open run prevents the start of another one with the open key ``key``.

        ``key`` contains the business id and the scope in which the id is unique. An open run prevents the start if it
        has the same key, or the same id in a narrower scope that the scope of the start includes.
        """
        for chain_id in self._chains_of.get(start.workflow_id, ()):
            if (existing_key := self._open_keys.get(chain_id)) is None:
                continue
            record, names = self.current_run(chain_id).facts, all_names(start.workflow)
            # A key shows only the scope of its own run. A start in a wider scope has to compare the classes, under all
            # their names.
            renamed = len(names) > 1 and start.scope == "version" and record.version == start.version
            same_workflow = record.workflow in names and (start.scope == "workflow" or renamed)
            if existing_key == key or start.scope == "global" or same_workflow:
                return True
        return False

    def reopen(self, chain_id: UUID, start: RunStart) -> bool:
        """Reserve the business id for a closed chain again; return False when another open run has the id in its scope.

        ``start`` has the id and the scope.
        """
        key = start.open_key
        if key is not None and self._is_key_in_use(key, start):
            return False
        if key is not None:
            self._open_keys[chain_id] = key
        return True

    def message_number(self, chain_id: UUID, message_id: str) -> int | None:
        """Return the number of the message that has this message id in a chain, or None.

        The number is the key of its row.
        """
        return self._message_numbers[chain_id].get(message_id)

    def prepend_messages(self, chain: UUID, messages: Sequence[PendingMessage], *, received: int) -> None:
        """Put messages at the head of the inbox of a chain, before its unread messages.

        A message replaces the one that has its id, unless that one is unread. ``received`` is the number of signals in
        the history of the run.
        """
        inbox, ids = self._inboxes[chain], self._message_numbers[chain]
        unread_messages = [self.messages[number].message for number in sorted(inbox)]
        unread_messages = [message for message in unread_messages if message.kind in EXTERNAL_KINDS]
        for message in unread_messages:
            self._delete_message(chain, message.id, message.message_id)
        unread_ids = {message.message_id for message in unread_messages}
        for pending in messages:
            if pending.message_id is not None and pending.message_id in unread_ids:
                continue
            if pending.message_id is not None and (existing_number := ids.get(pending.message_id)) is not None:
                self._delete_message(chain, existing_number, pending.message_id)
            message_id = str(uuid4()) if pending.kind == REQUEST else pending.message_id
            self._add_message(
                chain,
                pending.kind,
                pending.name,
                pending.payload,
                message_id=message_id,
                sender=pending.sender,
                headers=pending.headers,
                redelivered=pending.kind != "signal",  # signals wait in any case
            )
        # Numbers give the order, so unread messages are inserted again behind the others.
        for message in unread_messages:
            number = self._add_message(
                chain,
                message.kind,
                message.name,
                message.payload,
                message_id=message.message_id,
                sender=message.sender,
                headers=message.headers,
                redelivered=message.redelivered,
            )
            if message.after is not None and message.after <= received:
                message_row = self.messages[number]
                self.messages[number] = replace(message_row, message=replace(message_row.message, after=message.after))

    def message_statuses(self, chain: UUID, ids: Collection[str]) -> dict[str, str]:
        """Return the statuses of messages of a chain by message id: "unread", or the status of the outcome.

        Unknown ids are left out.
        """
        numbers, inbox, statuses = self._message_numbers[chain], self._inboxes[chain], {}
        for message_id in ids:
            if (number := numbers.get(message_id)) is not None:
                outcome = self.messages[number].outcome
                statuses[message_id] = "unread" if number in inbox else outcome.status if outcome is not None else ""
        return statuses

    def copy_failed_messages(self, source_chain: UUID, target_chain: UUID, ids: Collection[str]) -> None:
        """Copy the failed messages with these message ids from one chain to another."""
        numbers = sorted(
            number for message in ids if (number := self._message_numbers[source_chain].get(message)) is not None
        )
        for row in [self.messages[number] for number in numbers if self.messages[number].is_failed]:
            number = next(self._ids)
            message = replace(row.message, id=number)
            self.messages[number] = replace(row, message=message, chain_id=target_chain)
            self._message_numbers[target_chain][str(message.message_id)] = number

    def store_settled_messages(self, chain: UUID, messages: Sequence[tuple[PendingMessage, Outcome]]) -> None:
        """Store messages from the history of a run, with their outcomes, in a chain that has none of them.

        So a message that is sent again does not count twice.
        """
        for message, outcome in messages:
            number = next(self._ids)
            inbox_message = InboxMessage(
                id=number,
                kind=message.kind,
                name=message.name,
                payload=deep_copy(message.payload),
                message_id=message.message_id,
                sender=message.sender,
                headers=message.headers,
            )
            self.messages[number] = MemoryMessage(
                message=inbox_message, chain_id=chain, fresh=False, outcome=deep_copy(outcome)
            )
            if message.message_id is not None:
                self._message_numbers[chain][message.message_id] = number

    def _delete_message(self, chain: UUID, number: int, message_id: str | None) -> None:
        """Delete the message with this number. If it has a message id, another message may use the id then."""
        self._inboxes[chain].discard(number)
        self.messages.discard(number)
        if message_id is not None:
            self._message_numbers[chain].discard(message_id)

    def send(
        self,
        chain_id: UUID,
        kind: str,
        name: str,
        payload: Any,
        *,
        message_id: str | None = None,
        sender: Sender | None = None,
        headers: Headers | None = None,
    ) -> int:
        """Put a message into the inbox of a chain and return its number; a message sent before keeps its number.

        ``kind``, ``name`` and ``payload`` have the meaning of these fields of ``InboxMessage``. ``sender`` None means
        that code sent it. A signal that has become a failed message is delivered again, with its new payload. Raises
        ``MessageIdTaken`` if a different message has the message id.
        """
        if message_id is not None and (existing_number := self._message_numbers[chain_id].get(message_id)) is not None:
            message_row = self.messages[existing_number]
            existing = message_row.message
            is_same = (existing.kind, existing.name, existing.sender and existing.sender.key) == (
                kind,
                name,
                sender and sender.key,
            )
            if message_row.is_id_free or (message_row.is_failed and is_same):
                self._delete_message(chain_id, existing_number, message_id)
            else:
                MessageFingerprint(existing.kind, existing.name, existing.payload, existing.sender).require_same(
                    message_id, MessageFingerprint(kind, name, payload, sender), exact=False
                )
        return self._add_message(chain_id, kind, name, payload, message_id=message_id, sender=sender, headers=headers)
