"""What a reset and a fork share: the point that an operator chose, in the history that he saw."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from temporalex_django.actions.steering import Input, Steering
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.conf import get_settings
from temporalex_django.engine.ids import token
from temporalex_django.engine.points import AGAIN, DROP, Plan, is_again, planned
from temporalex_django.engine.storage import RunState
from temporalex_django.errors import UnknownWorkflow
from temporalex_django.graph.workflow import GraphWorkflow
from temporalex_django.models import Instance

T = TypeVar("T")


class TakingUp(Steering[T]):
    """Base of the two. It replays the history up to the point: the code of the run has to be here, and to fit it."""

    permission: ClassVar[str] = "reset_instance"
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
            choices=(AGAIN, DROP),
        ),
        Input(
            name="edited",
            kind=object,
            label=_("Edited inputs"),
            help=_("Other arguments for activities that are open there, by number: {number: [argument, …]}."),
        ),
    )

    @classmethod
    def why_not(cls, run: Instance, *, seq: int | None = None) -> str | None:
        del seq
        if _code_of(run.workflow, run.version) is None:
            words = _("the class {workflow} (version {version}) is not in this process, which would have to run it")
            return str(format_lazy(words, workflow=run.workflow, version=run.version))
        return None

    def plan(self, run: RunState) -> tuple[Plan, type[Workflow]]:
        """Of the run that was looked at, in the chain of the locked one, with the class that it goes on with.

        Raises ``ActionNotPossible``, ``PayloadError``.
        """
        target, storage = self.target, self.storage
        if target.pinned is None and run.run_id != target.run_id:
            self.refuse(_("it has gone on as a new run meanwhile"), closed=False)
        of = target.shown
        facts = storage.facts([of])[of]
        code = _code_of(facts.workflow, facts.version)
        if code is None:
            self.refuse(str(self.why_not(Instance(workflow=facts.workflow, version=facts.version))), closed=False)
            raise AssertionError  # refused
        plan = planned(
            storage.histories({of: 0})[of],
            facts,
            code,
            to=self.given.get("to"),
            again=is_again(self.given.get("messages", AGAIN)),
            edited=self.given.get("edited"),
            editable=not issubclass(code, GraphWorkflow),
            seed=token() >> 2,
            in_trouble=self.any_point or run.closed or run.failed_tries > 0 or of != run.run_id,
            limit=get_settings().DEADLOCK_TIMEOUT,
            atomic=True,
        )
        return plan, code


def _code_of(workflow: str, version: int) -> type[Workflow] | None:
    try:
        found = workflows.code_of(workflow, version)
    except UnknownWorkflow:
        return None
    return found if found.version == version else None


def details(plan: Plan, **more: Any) -> dict[str, Any]:
    """What the audit keeps: no payloads."""
    return {
        "activation": plan.prefix.activation,
        "messages": AGAIN if plan.again else DROP,
        **({"edited": sorted(plan.edited)} if plan.edited else {}),
        **more,
    }
