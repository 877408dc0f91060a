"""What a reset and a fork share: the point that an operator chose, in the history that he saw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from temporalex_django.actions import inline
from temporalex_django.actions.steering import Input, Steering
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.conf import get_settings
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.engine.ids import token
from temporalex_django.engine.points import (
    DROP,
    REDELIVER,
    ReplayCheck,
    ResetPlan,
    check_replay,
    make_plan,
    should_redeliver,
    successors,
)
from temporalex_django.engine.storage import RunState
from temporalex_django.errors import ActionNotPossible, UnknownWorkflow
from temporalex_django.graph.workflow import GraphWorkflow
from temporalex_django.models import Instance

T = TypeVar("T")


class TakingUp(Steering[T]):
    """Base of the two. It replays the history up to the point: the code of the run has to be here, and to fit it."""

    permission: ClassVar[str] = "reset_instance"
    _rehearsal: ReplayCheck | None = None
    #: Whether it is done to a run that is in no trouble when no activation is named.
    any_point: ClassVar[bool] = False
    forced: ClassVar[bool] = True
    destructive: ClassVar[bool] = True
    inputs: ClassVar[tuple[Input, ...]] = (
        Input(
            name="to",
            kind=int,
            label=_("Activation"),
            help=_("The last one that is kept, 0 for the start. Empty: the last one that is good."),
        ),
        Input(
            name="messages",
            kind=str,
            label=_("Later messages"),
            help=_("Signals and updates that came later: delivered again (as when it is empty), or dropped."),
            choices=(REDELIVER, DROP),
        ),
        Input(
            name="edited",
            kind=object,
            label=_("Edited inputs"),
            help=_("Other arguments for activities that are open there, by number: {number: [argument, …]}."),
            edits=True,
        ),
    )

    @classmethod
    def why_not(cls, run: Instance, *, seq: int | None = None) -> str | None:
        del seq
        if code_here(run.workflow, run.version) is None:
            words = _("the class {workflow} (version {version}) is not in this process, which would have to run it")
            return str(format_lazy(words, workflow=run.workflow, version=run.version))
        return None

    def rehearse(self) -> None:
        """Replay the run before it is locked: code of users runs, and nobody is to wait for that.

        Once. For at most ``LEASE_SECONDS``, and ``DEADLOCK_TIMEOUT`` for each activation; noted in the crash marker of
        this process. Raises ``ActionNotPossible``.
        """
        settings, storage, of = get_settings(), self.storage, self.target.shown
        facts = storage.run_records([of]).get(of)
        code = None if facts is None else code_here(facts.workflow, facts.version)
        if code is None or self._rehearsal is not None:
            return
        with inline.marker(storage).record_work("run", of):
            self._rehearsal = check_replay(
                storage.histories({of: 0})[of],
                of,
                code,
                to=self.given.get("to"),
                limit=settings.DEADLOCK_TIMEOUT,
                max_seconds=settings.LEASE_SECONDS,
            )

    def plan(self, run: RunState) -> tuple[ResetPlan, type[Workflow]]:
        """Of the run that was looked at, in the chain of the locked one, with the class that it goes on with.

        Raises ``ActionNotPossible``, ``PayloadError``.
        """
        target, storage = self.target, self.storage
        if target.pinned is None and run.run_id != target.run_id:
            self.refuse(_("it has gone on as a new run meanwhile"), closed=False)
        of = target.shown
        facts = storage.run_records([of])[of]
        code = code_here(facts.workflow, facts.version)
        if code is None:
            self.refuse(str(self.why_not(Instance(workflow=facts.workflow, version=facts.version))), closed=False)
            raise AssertionError  # refused
        again = should_redeliver(self.given.get("messages", REDELIVER))
        plan = make_plan(
            storage.histories({of: 0})[of],
            facts,
            code,
            to=self.given.get("to"),
            redeliver=again,
            successor_histories=self._later(of) if again and of != run.run_id else (),
            tasks=storage.tasks_of_run(of),
            edited_inputs=self.given.get("edited"),
            editable=not issubclass(code, GraphWorkflow),
            seed=token() >> 2,
            in_trouble=self.any_point or run.closed or run.failed_tries > 0 or of != run.run_id,
            limit=get_settings().DEADLOCK_TIMEOUT,
            atomic=True,
            replay_check=self._rehearsal,
            max_seconds=get_settings().LEASE_SECONDS,
        )
        self.admit_activities(plan.edited_activities)
        return plan, code

    def _later(self, of: UUID) -> Iterator[Sequence[HistoryEvent]]:
        """Histories of the runs as which one that is not the present one has gone on."""
        runs = Instance.objects.using(self.storage.alias).filter(chain_id=self.target.chain_id, pk__gte=of)
        try:
            later = successors(list(runs.order_by("pk").values_list("pk", "status")), forked=self.any_point)
        except ActionNotPossible as exc:
            self.refuse(exc.message, closed=False)
            raise
        return (self.storage.histories({run_id: 0})[run_id] for run_id in later)


def code_here(workflow: str, version: int) -> type[Workflow] | None:
    """The class, if this process has it in that version."""
    try:
        found = workflows.class_for_run(workflow, version)
    except UnknownWorkflow:
        return None
    return found if found.version == version else None


def details(plan: ResetPlan, **more: Any) -> dict[str, Any]:
    """The details for the audit: no payloads, and the digests of the old and the new input of an edit."""
    return {
        "activation": plan.prefix.activation,
        "messages": REDELIVER if plan.redeliver else DROP,
        **({"edited": plan.edited_digests} if plan.edited_inputs else {}),
        **more,
    }
