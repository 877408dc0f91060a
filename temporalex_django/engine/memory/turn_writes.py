"""What a turn stores, in memory; what it tells other runs first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from temporalex_django.core.copying import deep_copy
from temporalex_django.core.history.activation import FailedSignal
from temporalex_django.engine.activity_policy import edited_inputs
from temporalex_django.engine.lookup import the_one
from temporalex_django.engine.memory.activity_tasks import MemoryTasks
from temporalex_django.engine.memory.starts import MemoryStarts
from temporalex_django.engine.memory.tables import MemoryMessage
from temporalex_django.engine.other_runs import PARENT_CLOSED, NewChild, NewMessage, Reached
from temporalex_django.engine.storage import InboxMessage, NewRun, Outcome, RunFacts, RunState, RunWrite, TaskState
from temporalex_django.engine.taker import Taker
from temporalex_django.errors import AmbiguousId, InvalidId


class MemoryWrites(MemoryStarts, MemoryTasks):
    """``RunStorage.write``."""

    def write(
        self, writes: Sequence[RunWrite], *, taker: Taker | None = None, last: bool = False
    ) -> Callable[[], list[TaskState]]:
        """Nobody takes while it writes, and nobody waits: there are no workers."""
        del taker, last
        for write in writes:
            for child in write.children:
                self._start_child(child)
        for write in writes:
            for message in write.messages:
                self._tell(message)
        for write in writes:
            if write.close_children:
                self._close_children(write.run)
        for write in writes:
            self._write(write)
        return list

    # -- other runs ---------------------------------------------------------------------------------------------------

    def _start_child(self, child: NewChild) -> None:
        try:
            chain_id = self._new_chain(child)
        except InvalidId as exc:
            self._tell(child.refusal(exc))
            return
        if chain_id is None:
            self._tell(child.refusal())
        else:
            self._children[child.parent_run][child.parent_seq] = chain_id

    def _tell(self, message: NewMessage) -> None:
        reached = message.judged(self._reached(message))
        if reached.chain_id is not None:
            self._deliver(
                reached.chain_id,
                message.kind,
                message.name,
                message.body,
                run_id=message.run_id,
                request_id=message.request_id,
            )
        if message.ask is not None:
            name, body = message.answer(reached)
            self._deliver(message.ask[0], "external", name, body, run_id=message.ask[1])

    def _reached(self, message: NewMessage) -> Reached:
        """Where a message goes: to the chain that it names, an open child, or the open run of an id."""
        if message.child is not None:
            run_id, seq = message.child
            return self._if_open(self._children[run_id].get(seq))
        if message.chain_id is not None or message.workflow_id is None:  # somebody may have deleted the parent
            return Reached(message.chain_id if message.chain_id in self.chains else None)
        if (chain_id := self._by_run_id(message.workflow_id)) is not None:
            return self._if_open(chain_id)
        found = self._found(message.workflow_id)
        try:
            one = the_one(message.workflow_id, [run for run in found if not run.closed])
        except AmbiguousId as exc:
            return Reached(None, error=exc)
        return self._if_open(one.chain_id) if one is not None else Reached(None, known=bool(found))

    def _if_open(self, chain_id: UUID | None) -> Reached:
        """The chain, unless it is closed or deleted."""
        if chain_id is None or chain_id not in self.chains or self.chains[chain_id].closed:
            return Reached(None)
        facts = self.current(chain_id).facts
        return Reached(chain_id, workflow=facts.workflow, version=facts.version)

    def _close_children(self, parent: RunState) -> None:
        """What ``parent_close`` says, to the open children of a run that closes."""
        for chain_id in self._children[parent.run_id].values():
            if chain_id not in self.chains:
                continue  # somebody has deleted it
            policy = self.current(chain_id).facts.parent_close
            if not self.chains[chain_id].closed and policy != "abandon":
                kind = "cancel" if policy == "request_cancel" else "terminate"
                self._deliver(chain_id, kind, "", dict(PARENT_CLOSED))

    # -- the run itself -----------------------------------------------------------------------------------------------

    def _write(self, write: RunWrite) -> None:
        state, run = write.run, self.runs[write.run.run_id]
        self._note_what_is_left(write)
        self._append(run, write.events)
        if changes := deep_copy(write.instance):
            known = {name: changes[name] for name in ("started_at", "search_attributes") if name in changes}
            if known:
                changes.pop("search_attributes", None)
                changes["facts"] = replace(run.facts, **known)
            self.runs[state.run_id] = replace(run, **changes)
        for task in write.tasks:
            self._schedule(task)
        for seq, retry in write.retried_tasks.items():
            self._retry(state.run_id, seq, retry)
        self._drop(state.run_id, None if write.drop_tasks else write.cancelled_tasks)
        self._settle(write)
        if write.cut_off:
            at = write.events[-1].at
            open_ones = [t for t in self.human_tasks.values() if t.run_id == state.run_id and not t.task.ending]
            closed = (replace(one, changes=("closed",), task=one.task.as_closed("run_closed", at)) for one in open_ones)
            write.human_tasks += closed
        for one in write.human_tasks:
            self.human_tasks[one.id] = one
        if state.closed:
            self._open_keys.discard(state.chain_id)
        if write.next_run is not None:
            like, new = self.runs[write.next_run.like or state.run_id], write.next_run.run_id
            self._new_run(state.chain_id, _following(like.facts, write.next_run), tags=like.tags)
            if write.next_run.like is None:
                self.runs[new] = replace(self.runs[new], stored=like.stored, paused=like.paused)
        self.chains[state.chain_id] = _stored(write)

    def _note_what_is_left(self, write: RunWrite) -> None:
        run_id, inbox = write.run.run_id, self._inboxes[write.run.chain_id]
        if write.leaves_activities:
            write.note_edited(edited_inputs(self.tasks_of(run_id)))
        if write.gives_up_activities:
            write.note_given_up(edited_inputs(self.tasks_of(run_id)))
        if write.cut_off:
            write.note_unread(self.messages[number].message for number in sorted(inbox))

    def _settle(self, write: RunWrite) -> None:
        chain_id = write.run.chain_id
        inbox, ids = self._inboxes[chain_id], self._kept[chain_id]
        for number in write.consumed:
            inbox.discard(number)
            gone = self.messages.discard(number)
            if gone is not None and gone.message.request_id is not None:
                ids.discard(gone.message.request_id)
        for number in write.parked:
            self._change(number, fresh=False)
        for number, outcome in write.settled.items():
            inbox.discard(number)
            self._change(number, fresh=False, outcome=deep_copy(outcome))
        for update_id, outcome in write.outcomes.items():
            if (known := ids.get(update_id)) is not None:
                self._change(known, outcome=deep_copy(outcome))
        if write.closing is not None:
            self._answer(write, write.closing)
        for number, after in write.waiting.items():
            if (kept := self.messages.get(number)) is not None:
                self._change(number, fresh=False, message=replace(kept.message, after=after))
        for failed in write.failed:
            self._keep_failed(chain_id, write.run.run_id, failed)
        fresh = next((number for number in inbox if self.messages[number].fresh), None)
        if fresh is None:
            self._fresh.discard(chain_id)
        else:
            self._ring(chain_id, fresh)

    def _keep_failed(self, chain_id: UUID, run_id: UUID, failed: FailedSignal) -> None:
        outcome = Outcome(status="failed", value={**failed.failure, "run": str(run_id), "number": failed.number})
        known = self._kept[chain_id].get(failed.id)
        if known is not None:
            self._change(known, fresh=False, outcome=outcome)
            return
        number = next(self._ids)
        message = InboxMessage(
            id=number,
            kind="signal",
            name=failed.name,
            body=deep_copy(failed.payload),
            request_id=failed.id,
            sender=failed.sender,
        )
        self.messages[number] = MemoryMessage(message=message, chain_id=chain_id, fresh=False, outcome=outcome)
        self._kept[chain_id][failed.id] = number

    def redeliver(self, chain_id: UUID, message_id: str) -> bool:
        """Put a failed message behind the others of its inbox, as new. False: there is none of that id."""
        number = self._failed(chain_id, message_id)
        if number is None:
            return False
        has = self.messages[number].message
        self._forget(chain_id, number, message_id)
        self._deliver(chain_id, "signal", has.name, has.body, request_id=message_id, sender=has.sender)
        return True

    def discard(self, chain_id: UUID, message_id: str) -> bool:
        """Settle a failed message as discarded. False: there is none of that id."""
        number = self._failed(chain_id, message_id)
        if number is None:
            return False
        outcome = self.messages[number].outcome
        assert outcome is not None
        self._change(number, outcome=replace(outcome, status="discarded"))
        return True

    def failed_messages(self, chain_id: UUID) -> list[MemoryMessage]:
        """The failed messages of a chain, oldest first."""
        return [kept for _, kept in sorted(self.messages.items()) if kept.chain_id == chain_id and kept.failed]

    def _failed(self, chain_id: UUID, message_id: str) -> int | None:
        number = self._kept[chain_id].get(message_id)
        return number if number is not None and self.messages[number].failed else None

    def _answer(self, write: RunWrite, answer: Outcome) -> None:
        """The chain closed: updates in progress are answered, what is left in the inbox is for the next turn."""
        chain_id, open_ones = write.run.chain_id, []
        for number in self._kept[chain_id].values():
            kept = self.messages[number]
            if kept.outcome is not None and kept.outcome.status == "accepted":
                open_ones.append(kept.message.name)
                self._change(number, outcome=deep_copy(answer))
        for number in self._inboxes[chain_id]:
            self._change(number, fresh=True)
        if write.cut_off:
            write.warn_of_unfinished(open_ones)


def _following(facts: RunFacts, new: NewRun) -> RunFacts:
    """Of the next run of a chain: what its predecessor was started with, but for what it is given."""
    given = {
        "args": deep_copy(new.args),
        "seed": new.seed,
        "carried_messages": deep_copy(new.carried_messages),
        "snapshot": deep_copy(new.snapshot),
        "search_attributes": deep_copy(new.search_attributes),
    }
    return replace(facts, run_id=new.run_id, started_at=None, **given)


def _stored(write: RunWrite) -> RunState:
    """The row of the chain after a turn."""
    run = write.run
    if write.next_run is not None:  # the chain goes on with a run that has no history yet; time does not go back
        begin: dict[str, Any] = {
            "head_token": None,
            "length": 0,
            "activations": 0,
            "failed_tries": 0,
            "atomic_due": None,
        }
        return replace(
            run, run_id=write.next_run.run_id, due_at=run.due_at or run.activated_at, crashes=0, closed=False, **begin
        )
    after = replace(run, crashes=0 if write.delivered else run.crashes)
    return replace(after, due_at=None, deadline=None) if run.closed else after
