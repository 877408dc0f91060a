"""Move an open run to another version of its class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from django.db import transaction

from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.run_columns import RUN_COLUMNS
from temporalex_django.authoring.workflow import fork_options, start_options
from temporalex_django.backends.protocol import RunTarget, refusal_of
from temporalex_django.backends.tables import inline_turn
from temporalex_django.conf import codec
from temporalex_django.core.history.events import HistoryEvent as Event
from temporalex_django.core.history.people import next_run_snapshot
from temporalex_django.core.history.replay import replay
from temporalex_django.db.inserts import notify_on_commit
from temporalex_django.engine.contracts.records import RunState
from temporalex_django.engine.ids import token, uuid7
from temporalex_django.engine.run_closing import close_for_move
from temporalex_django.engine.run_start import RunStart
from temporalex_django.errors import TemporalexError
from temporalex_django.graph.instance import snapshot_for_version
from temporalex_django.graph.projection import Projection
from temporalex_django.graph.workflow import GraphWorkflow
from temporalex_django.models import ActivityTask, Chain, Instance
from temporalex_django.operations.base import CODE, Actor
from temporalex_django.operations.run_lookup import RunAction


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
        """Move the run to the other version in the open transaction, or return the reason why that is impossible.

        If it returns a reason, the caller has to roll back.
        """
        target = self.target
        if refusal := refusal_of(target.backend, self.name):
            return str(refusal)
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
        """Reserve the id of the run in the other version of its class, or return the reason why that is impossible.

        This matters only for classes whose ids are unique per version: an open run of the other version may have the
        id.
        """
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
        """Return the columns of the run that its new class determines, by name, such as its tags and timeouts.

        Tags that the run was started with are kept.
        """
        old_class = self.target.workflow_class
        own_tags = [tag for tag in self.target.row.tags or () if old_class is None or tag not in old_class.tags]
        options = fork_options(self.new_class, tags=own_tags)
        return {column.name: options.get(column.name) for column in RUN_COLUMNS if column.of_class}

    def _notify_new_queue(self, run: RunState) -> None:
        # Workers claim chains by their queue, and the new version may have another one.
        Chain.objects.using(self.storage.alias).filter(pk=run.chain_id).update(queue=self.new_class.task_queue)
        notify_on_commit(alias=self.storage.alias, queues=[self.new_class.task_queue])
