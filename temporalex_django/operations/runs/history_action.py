"""The base class of reset and fork, which start a run from a point of a recorded history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from temporalex_django.authoring.workflow import Workflow
from temporalex_django.backends.host import host
from temporalex_django.backends.protocol import find_run_class
from temporalex_django.backends.tables import inline_turn
from temporalex_django.conf import get_settings
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.engine.contracts.records import RunState
from temporalex_django.engine.ids import token
from temporalex_django.engine.reset import (
    DROP,
    REDELIVER,
    ReplayCheck,
    ResetPlan,
    check_replay,
    make_plan,
    should_redeliver,
    successors,
)
from temporalex_django.errors import ActionNotPossible
from temporalex_django.graph.workflow import GraphWorkflow
from temporalex_django.models import Instance
from temporalex_django.operations.runs.operator_action import Input, OperatorRunAction

T = TypeVar("T")


class ReplayFromAction(OperatorRunAction[T]):
    """Base class of ``Reset`` and ``Fork``, which start a run from a point in the history of another run.

    They replay that history up to the activation ``to``. So this process needs the code of the run, and the code must
    match the history up to there.
    """

    permission: ClassVar[str] = "reset_instance"
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
            # ``refuse`` has raised; this is for the type checker.
            raise AssertionError
        redeliver = should_redeliver(self.input_values.get("messages", REDELIVER))
        plan = make_plan(
            storage.histories({run_id: 0})[run_id],
            run_record,
            code,
            to=self.input_values.get("to"),
            redeliver=redeliver,
            # Messages that later runs of the chain have read come again, too (see decision 43).
            successor_histories=self._later_histories(run_id) if redeliver and run_id != run.run_id else (),
            tasks=storage.tasks_of_run(run_id),
            edited_inputs=self.input_values.get("edited"),
            editable=not issubclass(code, GraphWorkflow),
            seed=host().new_seed() or token() >> 2,
            in_trouble=self.allows_any_point or run.closed or run.failed_tries > 0 or run_id != run.run_id,
            limit=get_settings().DEADLOCK_TIMEOUT,
            atomic=inline_turn.runs_atomic(storage),
            replay_check=self._replay_check,
            max_seconds=get_settings().LEASE_SECONDS,
        )
        self.require_activity_access(plan.edited_activities)
        return plan, code

    def _later_histories(self, first_run_id: UUID) -> Iterator[Sequence[HistoryEvent]]:
        """Yield the histories of the runs that followed ``first_run_id`` by continue-as-new, oldest first.

        Messages that these runs have read are delivered to the new run again. One read for each. Raises
        ``ActionNotPossible`` for too many runs and, if the operation is a reset, for a run that was reset.
        """
        runs = Instance.objects.using(self.storage.alias).filter(chain_id=self.target.chain_id, pk__gte=first_run_id)
        try:
            later_ids = successors(list(runs.order_by("pk").values_list("pk", "status")), forked=self.allows_any_point)
        except ActionNotPossible as exc:
            self.refuse(exc.message, closed=False)
            raise
        return (self.storage.histories({run_id: 0})[run_id] for run_id in later_ids)


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
