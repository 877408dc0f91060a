"""Operations on the history of a run: reset, fork and compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from django.utils.functional import Promise
from django.utils.text import format_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from temporalex_django import access
from temporalex_django.access import Operation
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.redaction import Redactor
from temporalex_django.authoring.workflow import Workflow, start_options
from temporalex_django.backends.host import host
from temporalex_django.backends.protocol import RunTarget, find_run_class, runs_in_workers_only
from temporalex_django.backends.routing import read_history
from temporalex_django.backends.tables import inline_turn
from temporalex_django.conf import get_settings
from temporalex_django.core.history import replay
from temporalex_django.core.history.events import HistoryEvent, ReplayDifference
from temporalex_django.db.inserts import copy_forked_columns, insert_start, reopen_chain
from temporalex_django.engine import operator_overrides, reset
from temporalex_django.engine.contracts.records import RunState
from temporalex_django.engine.ids import token, uuid7
from temporalex_django.engine.operator_overrides import DROP, REDELIVER
from temporalex_django.engine.reset import (
    ReplayCheck,
    ResetPlan,
    check_replay,
    plan_of_run,
    start_of_fork,
)
from temporalex_django.engine.run_start import RunStart
from temporalex_django.engine.watchdog import watchdog
from temporalex_django.errors import ActionNotPossible, AlreadyRunning, NondeterminismError, TemporalexError
from temporalex_django.graph.workflow import GraphWorkflow
from temporalex_django.models import Chain, Instance, ScheduleSlot
from temporalex_django.operations.base import CODE, Actor
from temporalex_django.operations.run_lookup import RunAction, find_chain
from temporalex_django.operations.runs.operator_action import Input, OperatorRunAction
from temporalex_django.operations.runs.start import refused_start_operation, require_start_access, require_visible_run

# --- history action ---------------------------------------------------------------------------------------------------
#
# The base class of reset and fork, which start a run from a point of a recorded history.


T = TypeVar("T")


class ReplayFromAction(OperatorRunAction[T]):
    """Base class of ``Reset`` and ``Fork``, which start a run from a point in the history of another run.

    They replay that history up to the activation ``to``. So this process needs the code of the run, and the code must
    match the history up to there.
    """

    _replay_check: ReplayCheck | None = None
    #: True if the operation is possible without naming an activation even if the run has no problem.
    allows_any_point: ClassVar[bool] = False
    forced: ClassVar[bool] = True
    destructive: ClassVar[bool] = True
    inputs: ClassVar[tuple[Input, ...]] = (
        Input(
            name="to",
            kind=int,
            label=_("Activation"),
            help=_(
                "Number of the last activation to keep (see the history), or 0 to begin again. "
                "Default: the last one that the current code can replay."
            ),
        ),
        Input(
            name="messages",
            kind=str,
            label=_("Later messages"),
            help=_("Whether to deliver later signals and updates again (the default) or to drop them."),
            choices=(REDELIVER, DROP),
        ),
        Input(
            name="edited",
            kind=object,
            label=_("Edited inputs"),
            help=_("New arguments for activities that are open at that point, by number: {number: [argument, …]}."),
            edits=True,
        ),
    )

    @classmethod
    def why_not(cls, run: Instance, *, seq: int | None = None) -> str | None:
        del seq
        if find_run_class(run.chain_id, run.workflow, run.version) is None:
            message = _(
                "this process does not have the class {workflow} (version {version}), so it cannot replay the run"
            )
            return str(format_lazy(message, workflow=run.workflow, version=run.version))
        return None

    def check_replay(self) -> None:
        """Replay the history of the run once, before the chain is locked: the lock is not held during user code.

        The result is kept for ``plan``, and a second call does nothing. The replay may take ``LEASE_SECONDS`` in all,
        and ``DEADLOCK_TIMEOUT`` per activation. The crash marker of this process (a file that outlives it) names the
        run meanwhile, in case the code ends the process. Raises ``ActionNotPossible`` if the code does not match the
        history.
        """
        settings, storage, run_id = get_settings(), self.storage, self.target.selected_run_id
        run_record = storage.run_records([run_id]).get(run_id)
        code = None
        if run_record is not None:
            code = find_run_class(self.target.chain_id, run_record.workflow, run_record.version)
        # The result stays true: histories only grow. A bulk job calls this before it calls ``execute`` (see decision
        # 42).
        if code is None or self._replay_check is not None:
            return
        with inline_turn.crash_marker(storage).record_work("run", run_id):
            self._replay_check = check_replay(
                storage.histories({run_id: 0})[run_id],
                run_id,
                code,
                to=self.input_values.get("to"),
                limit=settings.DEADLOCK_TIMEOUT,
                max_seconds=settings.LEASE_SECONDS,
            )

    def plan(self, run: RunState) -> tuple[ResetPlan, type[Workflow]]:
        """Return ``(plan of the reset or fork, class of the new run)`` for the selected run.

        ``run`` is the locked current run of the chain. Raises ``ActionNotPossible`` and ``PayloadError``, and
        ``ActionNotPermitted`` for an edited input of an activity that the user may not edit.
        """
        target, storage = self.target, self.storage
        if target.pinned is None and run.run_id != target.run_id:
            self.refuse(_("it has continued as a new run in the meantime"), closed=False)
        run_id = target.selected_run_id
        run_record = storage.run_records([run_id])[run_id]
        code = find_run_class(self.target.chain_id, run_record.workflow, run_record.version)
        if code is None:
            self.refuse(
                str(self.why_not(Instance(workflow=run_record.workflow, version=run_record.version))), closed=False
            )
        inputs = self.input_values
        plan = plan_of_run(
            storage,
            storage.tasks_of_run(run_id),
            run,
            run_record,
            code,
            later_runs=self._later_runs,
            forks=self.allows_any_point,
            to=inputs.get("to"),
            messages=inputs.get("messages", REDELIVER),
            edited_inputs=inputs.get("edited"),
            editable=not issubclass(code, GraphWorkflow),
            seed=host().new_seed() or token() >> 2,
            limit=get_settings().DEADLOCK_TIMEOUT,
            atomic=inline_turn.runs_atomic(storage),
            replay_check=self._replay_check,
            max_seconds=get_settings().LEASE_SECONDS,
        )
        self.require_activity_access(plan.edited_activities)
        return plan, code

    def _later_runs(self) -> list[tuple[UUID, str]]:
        """Return the id and the status of the selected run and of those after it in its chain, oldest first."""
        runs = Instance.objects.using(self.storage.alias).filter(
            chain_id=self.target.chain_id, pk__gte=self.target.selected_run_id
        )
        return list(runs.order_by("pk").values_list("pk", "status"))


def audit_details(plan: ResetPlan, **extra: Any) -> dict[str, Any]:
    """Return the details of the audit row of a reset or fork, with ``extra`` added.

    They contain no payloads: for an edited input they have the digests of the old and the new one.
    """
    return {
        "activation": plan.prefix.activation,
        "messages": REDELIVER if plan.redeliver else DROP,
        **({"edited": plan.edited_digests} if plan.edited_inputs else {}),
        **extra,
    }


# --- reset ------------------------------------------------------------------------------------------------------------
#
# Reset a run: a new run continues its chain from a point of its history.


class Reset(ReplayFromAction[str]):
    """Operation that replaces a run by a new one that continues from a point of its history; returns the new run id.

    The run is closed as terminated (reason ``reset``). The new run has its id, its chain and its history up to the
    point: the end of the activation ``to``, where 0 means the start. By default it is the last activation that the
    present code replays as recorded and that did not close the run.

    The new run gets a new seed. Activities that were open at the point are scheduled again under their idempotency
    keys, timers keep their due times, and children stay with the old run. Corrections by hand are kept: edited inputs,
    and results that the code has not received yet. A closed run can be reset, too, if no other open run has its id.
    On a cluster, an atomic activity whose call has the same number and arguments returns the result that it committed.

    Runs in the caller's transaction and locks the chain; see ``OperatorRunAction.lock_run``. Raises
    ``ActionNotPossible``, ``PayloadError`` and ``UpdateTimeout``. Always audited.
    """

    name: ClassVar[str] = "reset"
    cluster: ClassVar[str | Promise] = "at once"
    label: ClassVar[Promise] = _("Reset")
    summary: ClassVar[Promise] = _("Reset a run.")
    effect: ClassVar[Promise] = _(
        "The run ends, and a new run with the same id continues from the activation that you choose, with the "
        "current code. Activities that ran after that point run again."
    )
    done: ClassVar[Promise] = _("The run is reset: a new run continues in its place.")

    def perform(self) -> str:
        # The replay runs code of users, so it comes before the lock (see decision 42).
        self.check_replay()
        target, storage = self.target, self.storage
        with storage.transaction():
            run = self.lock_run()
            plan, code = self.plan(run)
            self._reopen_chain(run, plan, code)
            new_run_id = uuid7()
            writes = reset.reset(storage, run, plan, run_id=new_run_id)
            details = audit_details(plan, run=str(plan.record.run_id), new_run=str(new_run_id))
            self.record(target.audit_subject, reason=self.reason, **details)
            # A run that a schedule has seen closed is open again, so its next slot must not overlap with it.
            if plan.record.scheduled_for is not None:
                ScheduleSlot.objects.using(storage.alias).filter(chain_id=target.chain_id).update(running=True)
            inline_turn.notify_after_reset(writes, target, storage=storage)
        return str(new_run_id)

    def _reopen_chain(self, run: RunState, plan: ResetPlan, code: type[Workflow]) -> None:
        """Make the chain ready for the new run of the class ``code``: open it, if it was closed, and set its queue.

        ``run`` is the locked current run, and ``plan`` describes the reset. Raises ``ActionNotPossible`` if the
        execution timeout of the chain has passed, or if another open run has its id.
        """
        run_record, storage = plan.record, self.storage
        if run_record.expires_at is not None and run_record.expires_at <= storage.now():
            self.refuse(gettext(operator_overrides.CHAIN_EXPIRED), closed=False)
        # The chain was moved to another version since the run that is reset, and its queue belongs to that version.
        if run.queue != code.task_queue and run_record.run_id != run.run_id:
            run.queue = code.task_queue
            Chain.objects.using(storage.alias).filter(pk=run.chain_id).update(queue=code.task_queue)
        start = RunStart(workflow_id=run_record.workflow_id, args=None, **start_options(code))
        if run.closed and not reopen_chain(run.chain_id, start, storage=storage):
            self.refuse(gettext(operator_overrides.ID_TAKEN), closed=False)


# --- fork -------------------------------------------------------------------------------------------------------------
#
# Start a run from the history of another run, which stays as it is.


class Fork(ReplayFromAction[RunTarget]):
    """Operation that starts a run in a new chain from the history of another run, and returns its ``RunTarget``.

    The history is copied up to the activation ``to``, by default the last one that the code replays. Activities that
    were open there are scheduled again, timers keep their due times, and children stay with the old run. The id of the
    new run is ``id``, or is derived from the id of the old run. No parent waits for the result of the new run.

    The new run has the subject and the tags of the old one, and the search attributes that it had at that point.
    Everything else comes from the class as it is now. A person who forks a run becomes an excluded user of its
    decisions under four eyes.

    Runs in the caller's transaction and locks the chain of the old run. Raises ``ActionNotPossible``, ``InvalidId``,
    ``AlreadyRunning``, ``PayloadError`` and ``UpdateTimeout``. Always audited.
    """

    name: ClassVar[str] = "fork"
    cluster: ClassVar[str | Promise] = _(
        "a run on a Temporal cluster cannot be copied: start a new run, or reset this one"
    )
    allows_any_point: ClassVar[bool] = True
    destructive: ClassVar[bool] = False
    label: ClassVar[Promise] = _("Fork")
    summary: ClassVar[Promise] = _("Fork a run.")
    effect: ClassVar[Promise] = _(
        "A new run with its own id continues from the activation that you choose, with the current code. This "
        "run stays as it is. Work that was open at that point is done by both runs."
    )
    done: ClassVar[Promise] = _("A new run continues from there.")
    inputs: ClassVar[tuple[Input, ...]] = (
        *ReplayFromAction.inputs,
        Input(
            name="id",
            kind=str,
            label=_("Id of the new run"),
            help=_("If empty, derived from the id of this run."),
            single=True,
        ),
    )

    @classmethod
    def refused_operation(cls, user: Person, run: Instance | None = None) -> Operation | None:
        """Return the first operation that the access policy refuses to this user, or None.

        It asks about the fork and about a start of the class; both must be allowed.
        """
        refused = super().refused_operation(user, run)
        code = None
        if refused is None and run is not None:
            code = find_run_class(run.chain_id, run.workflow, run.version)
        if code is None:
            return refused
        return refused_start_operation(user, code)

    def check(self) -> None:
        """Check that the user may fork the run, and that they may start runs of its class."""
        super().check()
        code = self.target.workflow_class
        if code is not None:
            require_start_access(self.by, code, alias=self.storage.alias)

    def perform(self) -> RunTarget:
        target, storage = self.target, self.storage
        self.check_replay()
        with storage.transaction():
            run = self.lock_run()
            plan, code = self.plan(run)
            run_record = plan.record
            new_start = start_of_fork(
                plan,
                code,
                self.input_values.get("id"),
                sender=self.by.sender,
                tags=self._tags_of(run_record.run_id),
                suffix=host().random_suffix,
            )
            workflow_id = new_start.workflow_id
            try:
                inserted_run = insert_start(new_start, storage=storage)
            # Only users who see the run that has the id learn of it; for others this raises ``ActionNotPermitted``.
            except AlreadyRunning:
                require_visible_run(
                    self.by, workflow_class=code, alias=storage.alias, workflow_id=workflow_id, closed_at=None
                )
                raise
            copy_forked_columns(inserted_run.run_id, run_record.run_id, alias=storage.alias)
            require_visible_run(self.by, workflow_class=code, alias=storage.alias, pk=inserted_run.run_id)
            # Nobody else sees the new chain before the commit. The claim loads its locked state, as in a turn.
            claimed_run = storage.claim(limit=1, queues=(), chains=[inserted_run.chain_id])[0]
            writes = reset.fork(
                storage, claimed_run, plan, source_chain=target.chain_id, id=workflow_id, snapshot=new_start.snapshot
            )
            new_target = find_chain(inserted_run.chain_id, storage=storage)
            recorded_details = audit_details(
                plan, run=str(run_record.run_id), new_run=str(inserted_run.run_id), new_id=workflow_id
            )
            self.record(target.audit_subject, reason=self.reason, **recorded_details)
            inline_turn.notify_after_reset(writes, new_target, storage=storage)
        return new_target

    def _tags_of(self, run_id: UUID) -> list[str]:
        runs = Instance.objects.using(self.storage.alias)
        return list(runs.values_list("tags", flat=True).get(pk=run_id) or ())


# --- compare ----------------------------------------------------------------------------------------------------------
#
# Compare the inputs in the history of a run with those that the present code produces.


#: Number of events for which a replay gets one more second.
REPLAYED_PER_SECOND = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class InputComparison:
    """A difference between an input in a history and the one that the present code produces.

    ``recorded`` and ``produced`` are the two values, redacted for the user. ``difference`` says where they differ.
    """

    difference: ReplayDifference
    recorded: Any
    produced: Any


class CompareInputs(RunAction[Sequence[InputComparison]]):
    """Operation that replays a run with the code of this process and returns the inputs and durations that differ.

    Nothing is written. The replay may take ``DEADLOCK_TIMEOUT`` seconds, and one second more for every ten thousand
    events, but at most ``LEASE_SECONDS``. Raises ``ActionNotPossible`` if this process lacks the code, if the code may
    run only in workers (``updates_in``), or if it does not match the history.
    """

    name: ClassVar[str] = "compare"
    cluster: ClassVar[str | Promise] = "asks"
    permission: ClassVar[str] = "view_payload"

    def __init__(self, target: RunTarget, *, by: Actor = CODE) -> None:
        super().__init__(by=by)
        self.target = target

    @classmethod
    def why_not(cls, run: Instance) -> str | None:
        """Return the text that says why this process cannot replay the run, or None if it can."""
        code = find_run_class(run.chain_id, run.workflow, run.version)
        if code is None:
            message = _(
                "this process does not have the class {workflow} (version {version}), so it cannot replay the run"
            )
        elif runs_in_workers_only(code):
            message = _("only workers run the code of {workflow} (updates_in): use the command “temporalex replay”")
        else:
            return None
        return str(format_lazy(message, workflow=run.workflow, version=run.version))

    def perform(self) -> Sequence[InputComparison]:
        run_id = self.target.selected_run_id
        if (reason := self.why_not(self.row)) is not None:
            raise ActionNotPossible(reason)
        code = host().find_class(self.target.chain_id, self.target.workflow, self.target.version)
        redactor = access.redactor_for(self.by.user, self.row)
        events = read_history(self.target, storage=self.storage)
        limit = replay_limit(len(events), maximum=get_settings().LEASE_SECONDS)
        run_with_limit = partial(watchdog.run, limit=limit, label=f"run {run_id}")
        try:
            # The replay runs code of users, which may end this process: the marker says which run did (see decision
            # 22).
            with inline_turn.crash_marker(self.storage).record_work("run", run_id):
                differences = replay.replay(code.definition, events, run=run_with_limit)
        except NondeterminismError as exc:
            raise ActionNotPossible(
                f"the history does not match the code: {redactor.redact_text(exc.message)}"
            ) from exc
        except TemporalexError as exc:
            raise ActionNotPossible(f"the replay failed: {redactor.redact_text(exc.message)}") from exc
        except Exception as exc:  # noqa: BLE001 - the code of the run may raise anything
            error = type(exc).__name__
            raise ActionNotPossible(
                f"the code raised {error} during the replay ({redactor.redact_text(str(exc))})"
            ) from None
        return [_build_comparison(difference, events[difference.event - 1], redactor) for difference in differences]


def replay_limit(events: int, *, maximum: float | None = None) -> float | None:
    """Return the number of seconds that the replay of ``events`` events may take, at most ``maximum``.

    If the setting ``DEADLOCK_TIMEOUT`` is off, this is ``maximum``. None means that there is no limit.
    """
    limit = get_settings().DEADLOCK_TIMEOUT
    if limit is None:
        return maximum
    limit += events / REPLAYED_PER_SECOND
    if maximum is None:
        return limit
    return min(limit, maximum)


def _build_comparison(difference: ReplayDifference, event: HistoryEvent, redactor: Redactor) -> InputComparison:
    """Redact both values as the history redacts the input of ``event``."""
    if difference.kind == "duration":
        return InputComparison(difference=difference, recorded=difference.recorded, produced=difference.produced)
    recorded, produced = (
        _redact_payload(payload, difference.keys, event, redactor)
        for payload in (difference.recorded, difference.produced)
    )
    return InputComparison(difference=difference, recorded=recorded, produced=produced)


def _redact_payload(payload: Any, keys: Sequence[str | int], event: HistoryEvent, redactor: Redactor) -> Any:
    """Redact the part at ``keys`` as the whole input is redacted."""
    # Redaction goes by paths of names. Rebuild the path around the value, redact it, and take the value out again.
    names = [key for key in keys if isinstance(key, str)]
    for name in reversed(names):
        payload = {name: payload}
    attributes = {**event.attributes, "args": payload, "kwargs": {}}
    redacted_payload = redactor.redact_attributes(attributes, kind=event.kind)["args"]
    for name in names:
        if not isinstance(redacted_payload, Mapping) or name not in redacted_payload:
            # A parent of the value was hidden or redacted: show its replacement.
            break
        redacted_payload = redacted_payload[name]
    return redacted_payload
