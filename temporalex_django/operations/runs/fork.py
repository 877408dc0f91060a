"""Start a run from the history of another run, which stays as it is."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django.access import Operation
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.workflow import fork_options
from temporalex_django.backends.host import host
from temporalex_django.backends.protocol import RunTarget, find_run_class
from temporalex_django.backends.tables import inline_turn
from temporalex_django.core.human_tasks import fork_snapshot
from temporalex_django.db.inserts import NewStart, copy_forked_columns, insert_start
from temporalex_django.engine import reset
from temporalex_django.engine.reset import fork_id
from temporalex_django.errors import AlreadyRunning
from temporalex_django.models import Instance
from temporalex_django.operations.run_lookup import find_chain
from temporalex_django.operations.runs.history_action import ReplayFromAction, audit_details
from temporalex_django.operations.runs.operator_action import Input
from temporalex_django.operations.runs.start import refused_start_operation, require_start_access, require_visible_run


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
            workflow_id = fork_id(
                target.workflow_id, self.input_values.get("id"), code.unique, suffix=host().random_suffix
            )
            # A copied history replays only under the seed with which it was recorded; the mark behind it sets the new
            # one.
            seed = run_record.seed if plan.prefix.activation else plan.seed
            options = fork_options(code, tags=self._tags_of(run_record.run_id))
            snapshot = fork_snapshot(run_record.snapshot, self.by.sender)
            new_start = NewStart(
                workflow_id=workflow_id,
                args=run_record.args,
                seed=seed,
                snapshot=snapshot,
                search_attributes=plan.search_attributes,
                **options,
            )
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
                storage, claimed_run, plan, source_chain=target.chain_id, id=workflow_id, snapshot=snapshot
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
