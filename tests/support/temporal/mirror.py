"""The mirror of a ``TemporalEnvironment``: runs in memory, as each activation on the server has left them."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from temporalex_django.core.failures import error_data, run_failure_cause
from temporalex_django.core.history.events import CLOSING, end_kinds_of
from temporalex_django.engine.activity_policy import failed_outcome
from temporalex_django.engine.blocked import block_mark_of
from temporalex_django.engine.contracts.records import HumanTaskWrite, NewTask, Outcome
from temporalex_django.engine.refusals import RefusedSignal
from temporalex_django.engine.run_start import RunStart
from temporalex_django.errors import ActionNotPermitted, WorkflowClosed
from temporalex_django.testing.memory_run_reads import MemoryReads
from tests.support.temporal.runs import RunReport

_ENDED = end_kinds_of("activity")


class Mirror(MemoryReads):
    """The part of a ``TemporalEnvironment`` that stores what its runs report."""

    def _mirror(self, report: RunReport) -> int:
        """Store a run as its activation left it. Returns 1 if code was activated."""
        storage, run_id = self.storage, UUID(report.run_id)
        if report.error is not None:
            chain_id = self._chain_of_id.get(report.workflow_id)
            if chain_id is not None:
                self._latest[run_id] = report
                self.errors[run_id] = report.error
                if report.is_unexpected:
                    self._unexpected.append(report.error)
                row = storage.runs.get(run_id)
                if row is not None:
                    storage.runs[run_id] = replace(row, blocked=block_mark_of(report.error, tries=1, now=self.clock))
                    # Its timers fire once it goes on; until then the clock must not stop at them.
                    storage.chains[chain_id] = replace(storage.chains[chain_id], due_at=None)
            return 0
        if run_id in storage.runs and storage.runs[run_id].status == "terminated":
            return 0  # it was activated before it was terminated
        if run_id not in storage.runs:
            self._add_run(report, run_id)
        chain_id = storage._chain_of_run[run_id]
        self._latest[run_id] = report
        if self.errors.pop(run_id, None) is not None:
            storage.runs[run_id] = replace(storage.runs[run_id], blocked=None)
        self._mirror_row(report, run_id, chain_id)
        self._mirror_commands(report, run_id)
        self._mirror_messages(report, run_id, chain_id)
        return 1 if report.completion is not None else 0

    def _add_run(self, report: RunReport, run_id: UUID) -> None:
        """Add a run that the server has started: a child, or the next run of a chain."""
        storage, run = self.storage, report.run
        chain_id = self._chain_of_id.get(report.workflow_id)
        if chain_id is not None and storage.runs[storage.chains[chain_id].run_id].status == "continued_as_new":
            state, start = storage.chains[chain_id], report.events[0].attributes
            storage._add_next_run(
                state,
                storage.current_run(chain_id).facts.successor(
                    run_id,
                    args=start["args"],
                    seed=start["seed"],
                    carried_messages=run._facts.get("carried"),
                    snapshot=start.get("snapshot"),
                    search_attributes=start.get("search_attributes"),
                ),
                None,
            )
            row = storage.runs[run_id]
            storage.runs[run_id] = replace(row, facts=replace(row.facts, attempt=run.run_info.attempt))
            storage.chains[chain_id] = replace(state, run_id=run_id, length=0, activations=0, closed=False)
            self._told[chain_id] = report.now
            return
        parent_run, seq, attributes = self._children_of[report.workflow_id]
        start = RunStart(
            workflow_id=attributes["id"],
            workflow=attributes["workflow"],
            args=attributes["args"],
            version=attributes["version"],
            queue=attributes["queue"],
            scope=attributes["scope"],
            parent=self.storage.runs[parent_run].facts.workflow_id,
            parent_chain=storage._chain_of_run[parent_run],
            parent_run=parent_run,
            parent_seq=seq,
            parent_close=attributes["parent_close"],
            tags=attributes.get("tags"),
            metadata=attributes.get("metadata"),
            search_attributes=attributes.get("search_attributes"),
            snapshot=run._facts.get("snapshot"),
            seed=report.events[0].attributes["seed"],
        )
        chain_id = storage._new_chain(start)
        assert chain_id is not None, f"the server has started {report.workflow_id}, which is open"
        storage.rekey(chain_id, run_id)
        self._register(chain_id, report.workflow_id)
        self._told[chain_id] = report.now

    def _mirror_row(self, report: RunReport, run_id: UUID, chain_id: UUID) -> None:
        storage, visible, events = self.storage, report.visible, report.events
        row, closing = storage.runs[run_id], report.run.history.closing
        assert visible is not None
        status = visible.status if closing is None else CLOSING[closing.kind]
        is_open = closing is None
        facts = replace(row.facts, search_attributes=dict(visible.search_attributes) or None)
        storage.runs[run_id] = replace(
            row,
            facts=facts,
            status=status,
            published=visible.published,
            published_at=visible.published_at,
            stored=visible.stored if report.run.executor.definition.stored else None,
            accepts=visible.accepts if is_open else {"signals": [], "updates": []},
            waiting_for=visible.waiting_for if is_open else [],
            waits=visible.waits if is_open else [],
            started_at=events[0].at if events else None,
            closed_at=None if closing is None else closing.at,
            closing=None if closing is None else closing.attributes,
            cause=run_failure_cause(closing.attributes) if status == "failed" and closing is not None else None,
            events=events,
        )
        closed = closing is not None and status != "continued_as_new"
        state = storage.chains[chain_id]
        if state.run_id == run_id:
            storage.chains[chain_id] = replace(
                state,
                length=len(events),
                activations=events[-1].activation if events else 0,
                activated_at=report.now,
                due_at=report.next_timer if is_open else None,
                closed=closed,
            )
            if closed:
                storage._open_keys.discard(chain_id)
        for task in report.human_tasks:
            write = HumanTaskWrite(
                run_id=run_id,
                chain_id=chain_id,
                workflow=facts.workflow,
                workflow_id=facts.workflow_id,
                changes=(),
                task=task,
            )
            storage.human_tasks[write.id] = write
        self._mirror_activities(report, run_id, chain_id, is_open=is_open)

    def _mirror_activities(self, report: RunReport, run_id: UUID, chain_id: UUID, *, is_open: bool) -> None:
        storage, record = self.storage, self.storage.runs[run_id].facts
        ended, known = self._ended_seqs(report), storage._task_ids_by_run[run_id]
        for event in report.events:
            if event.kind == "ChildStarted" and (run_id, event.attributes["seq"]) not in self._seen_children:
                # Another child may have the id of an earlier one.
                child = run_id, event.attributes["seq"], event.attributes
                self._seen_children.add(child[:2])
                self._children_of[self.cluster_id(event.attributes["id"])] = child
            if event.kind != "ActivityScheduled" or event.attributes["seq"] in ended or not is_open:
                continue
            attributes = event.attributes
            if attributes["seq"] in known or (run_id, attributes["seq"]) in self._ended:
                continue
            options = attributes.get("options", {})
            definition = report.run.executor.definition
            storage._schedule(
                NewTask(
                    run_id=run_id,
                    chain_id=chain_id,
                    workflow_id=record.workflow_id,
                    workflow=record.workflow,
                    seq=attributes["seq"],
                    activity=attributes["activity"],
                    args=attributes["args"],
                    kwargs=attributes.get("kwargs", {}),
                    options=options,
                    queue=options.get("queue") or storage.chains[chain_id].queue,
                    atomic=bool(options.get("atomic")),
                    scheduled_at=event.at,
                    headers=report.run.run_info.headers,
                    tags=definition.tags,
                    metadata=definition.metadata,
                )
            )
        storage._drop_tasks(run_id, [seq for seq in known if seq in ended] if is_open else None)

    def _mirror_commands(self, report: RunReport, run_id: UUID) -> None:
        completion = report.completion
        if completion is None or not completion.changed:
            return
        key = (run_id, report.events[-1].activation)
        if key in self._known_commands:  # the server had the activation done again
            self.commands[self._known_commands[key]] = list(completion.commands)
            return
        self._known_commands[key] = len(self.commands)
        self.commands.append(list(completion.commands))

    def _mirror_messages(self, report: RunReport, run_id: UUID, chain_id: UUID) -> None:
        storage, record = self.storage, self.storage.runs[run_id].facts
        numbers = storage._message_numbers[chain_id]
        for event in report.events:
            update_id = event.attributes.get("id")
            if not event.kind.startswith("Update") or update_id not in numbers:
                continue
            match event.kind:
                case "UpdateAccepted":
                    outcome = Outcome(status="accepted")
                case "UpdateCompleted":
                    outcome = Outcome(status="completed", value=event.attributes["result"])
                case _:
                    outcome = failed_outcome(event.attributes)
            self._answer(numbers[update_id], outcome)
        completion = report.completion
        if completion is None:
            return
        for failed in completion.failed:
            storage._store_failed(chain_id, run_id, failed)
        for refusal in completion.refused:
            self.refused.append(
                RefusedSignal(
                    run_id=run_id,
                    workflow=record.workflow,
                    workflow_id=record.workflow_id,
                    at=report.now,
                    signal=refusal.name,
                    permission=refusal.permission,
                    sender=refusal.sender,
                )
            )
            if refusal.job is not None and (message_id := refusal.job.attributes.get("id")) in numbers:
                error = ActionNotPermitted(self.refused[-1].reason)
                self._answer(numbers[message_id], Outcome(status="rejected", value=error_data(error)))
        closing = report.run.history.closing
        if closing is not None and closing.kind != "WorkflowContinuedAsNew":
            status = CLOSING[closing.kind]
            error = WorkflowClosed(
                f"{record.workflow} {record.workflow_id} closed ({status}) before the update completed"
            )
            for number in list(numbers.values()):
                row = storage.messages[number]
                if row.outcome is not None and row.outcome.status == "accepted":
                    self._answer(number, Outcome(status="failed", value=error_data(error)))

    def _ended_seqs(self, report: RunReport) -> set[int]:
        return {event.attributes["seq"] for event in report.events if event.kind in _ENDED}

    def _answer(self, number: int, outcome: Outcome) -> None:
        self.storage._update_message(number, fresh=False, outcome=outcome)
