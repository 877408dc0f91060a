"""What clients write, in memory: starts and messages."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from temporalex_django.core.aliases import all_names
from temporalex_django.core.copying import deep_copy
from temporalex_django.core.history.prefix import EXTERNAL_KINDS, PendingMessage
from temporalex_django.core.process import REQUEST
from temporalex_django.core.senders import Sender
from temporalex_django.engine.ids import uuid7
from temporalex_django.engine.lookup import run_id_taken
from temporalex_django.engine.memory.tables import MemoryMessage, MemoryTables
from temporalex_django.engine.resent import Sent
from temporalex_django.engine.starts import RunStart
from temporalex_django.engine.storage import InboxMessage, Outcome, RunFacts, RunState
from temporalex_django.errors import AlreadyRunning


class MemoryStarts(MemoryTables):
    """New chains and messages."""

    def start(self, start: RunStart) -> UUID:
        """A new chain, due now.

        Raises ``AlreadyRunning`` when an open run in its scope has the id, ``InvalidId`` for a run's.
        """
        chain_id = self._new_chain(start)
        if chain_id is None:
            raise AlreadyRunning(
                f"{start.workflow} {start.workflow_id!r} is open already: use its handle, or another id"
            )
        return chain_id

    def _new_chain(self, start: RunStart) -> UUID | None:
        """A chain with its first run; None when its id is taken in its scope. Raises ``InvalidId`` for a run's."""
        workflow_id, key = start.workflow_id, start.open_key
        if self._by_run_id(workflow_id) is not None:
            raise run_id_taken(workflow_id)
        if key is not None and self._is_taken(key, start):
            return None
        chain_id = uuid7()
        facts = RunFacts.of(
            replace(start, args=deep_copy(start.args), snapshot=deep_copy(start.snapshot)),
            run_id=uuid7(),
            started=self.clock,
        )
        self._new_run(chain_id, facts, tags=start.tags)
        self._chains_of[workflow_id] = (*self._chains_of.get(workflow_id, ()), chain_id)
        self.queues.add(start.queue)
        if key is not None:
            self._open_keys[chain_id] = key
        self.chains[chain_id] = RunState(
            chain_id=chain_id,
            run_id=facts.run_id,
            queue=start.queue,
            head_token=None,
            length=0,
            activations=0,
            activated_at=None,
            due_at=self.clock,
            deadline=start.deadline(self.clock),
        )
        return chain_id

    def _is_taken(self, key: str, start: RunStart) -> bool:
        """Whether an open run keeps a start out: one of its own key, or one that a wider scope sees."""
        for chain_id in self._chains_of.get(start.workflow_id, ()):
            if (held := self._open_keys.get(chain_id)) is None:
                continue
            facts, names = self.current(chain_id).facts, all_names(start.workflow)
            renamed = len(names) > 1 and start.scope == "version" and facts.version == start.version
            same = facts.workflow in names and (start.scope == "workflow" or renamed)
            if held == key or start.scope == "global" or same:
                return True
        return False

    def reopen(self, chain_id: UUID, start: RunStart) -> bool:
        """Make the id of a closed chain its own again; False when another open run keeps it out."""
        key = start.open_key
        if key is not None and self._is_taken(key, start):
            return False
        if key is not None:
            self._open_keys[chain_id] = key
        return True

    def number_of(self, chain_id: UUID, request_id: str) -> int | None:
        """The message of a chain that has this id."""
        return self._kept[chain_id].get(request_id)

    def put_first(self, chain: UUID, messages: Sequence[PendingMessage], *, received: int) -> None:
        """See ``RunStorage``."""
        inbox, ids = self._inboxes[chain], self._kept[chain]
        there = [self.messages[number].message for number in sorted(inbox)]
        there = [message for message in there if message.kind in EXTERNAL_KINDS]
        for message in there:
            self._forget(chain, message.id, message.request_id)
        unread = {message.request_id for message in there}
        for behind in messages:
            if behind.message_id is not None and behind.message_id in unread:
                continue
            if behind.message_id is not None and (known := ids.get(behind.message_id)) is not None:
                self._forget(chain, known, behind.message_id)
            request_id = str(uuid4()) if behind.kind == REQUEST else behind.message_id
            self._deliver(
                chain,
                behind.kind,
                behind.name,
                behind.payload,
                request_id=request_id,
                sender=behind.sender,
                redelivered=behind.kind != "signal",  # signals wait in any case
            )
        for message in there:
            number = self._deliver(
                chain,
                message.kind,
                message.name,
                message.body,
                request_id=message.request_id,
                sender=message.sender,
                redelivered=message.redelivered,
            )
            if message.after is not None and message.after <= received:
                kept = self.messages[number]
                self.messages[number] = replace(kept, message=replace(kept.message, after=message.after))

    def message_statuses(self, chain: UUID, ids: Collection[str]) -> dict[str, str]:
        """See ``RunStorage``."""
        kept, inbox, found = self._kept[chain], self._inboxes[chain], {}
        for message in ids:
            if (number := kept.get(message)) is not None:
                outcome = self.messages[number].outcome
                found[message] = "unread" if number in inbox else outcome.status if outcome is not None else ""
        return found

    def copy_failed(self, of: UUID, to: UUID, ids: Collection[str]) -> None:
        """See ``RunStorage``."""
        kept = sorted(number for message in ids if (number := self._kept[of].get(message)) is not None)
        for one in [self.messages[number] for number in kept if self.messages[number].failed]:
            number = next(self._ids)
            message = replace(one.message, id=number)
            self.messages[number] = replace(one, message=message, chain_id=to)
            self._kept[to][str(message.request_id)] = number

    def keep_taken(self, chain: UUID, messages: Sequence[tuple[PendingMessage, Outcome]]) -> None:
        """See ``RunStorage``."""
        for message, outcome in messages:
            number = next(self._ids)
            kept = InboxMessage(
                id=number,
                kind=message.kind,
                name=message.name,
                body=deep_copy(message.payload),
                request_id=message.message_id,
                sender=message.sender,
            )
            self.messages[number] = MemoryMessage(message=kept, chain_id=chain, fresh=False, outcome=deep_copy(outcome))
            if message.message_id is not None:
                self._kept[chain][message.message_id] = number

    def _forget(self, chain: UUID, number: int, request_id: str | None) -> None:
        self._inboxes[chain].discard(number)
        self.messages.discard(number)
        if request_id is not None:
            self._kept[chain].discard(request_id)

    def send(
        self,
        chain_id: UUID,
        kind: str,
        name: str,
        body: Any,
        *,
        request_id: str | None = None,
        sender: Sender | None = None,
    ) -> int:
        """Put a message into the inbox of a chain; sent again, it gives the one that is there.

        A signal that has become a failed message is delivered again, with its new payload. Raises ``MessageIdTaken``.
        """
        if request_id is not None and (known := self._kept[chain_id].get(request_id)) is not None:
            kept = self.messages[known]
            has = kept.message
            same = (has.kind, has.name, has.sender and has.sender.key) == (kind, name, sender and sender.key)
            if kept.free or (kept.failed and same):
                self._forget(chain_id, known, request_id)
                return self._deliver(chain_id, kind, name, body, request_id=request_id, sender=sender)
            Sent(has.kind, has.name, has.body, has.sender).require_same(
                request_id, Sent(kind, name, body, sender), exact=False
            )
        return self._deliver(chain_id, kind, name, body, request_id=request_id, sender=sender)
