"""Start a run that takes up another one, which stays as it is."""

from __future__ import annotations

import os
from typing import ClassVar
from uuid import UUID

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django.access import Operation
from temporalex_django.actions import inline
from temporalex_django.actions.start import admit_start, require_there, start_lacks
from temporalex_django.actions.steering import Input
from temporalex_django.actions.taking_up import TakingUp, code_here, details
from temporalex_django.actions.targets import RunTarget, find_chain
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.workflow import fork_options
from temporalex_django.core.four_eyes import fork_snapshot
from temporalex_django.db.inserts import NewStart, copy_subject, insert_start
from temporalex_django.engine import anew
from temporalex_django.engine.points import fork_id
from temporalex_django.errors import AlreadyRunning
from temporalex_django.models import Instance


class Fork(TakingUp[RunTarget]):
    """A new chain, with the id that is given or one made of that of the run; its run has the history up to a point.

    The point is chosen, and what was open there is treated, as for a reset, see ``Reset``; without ``to`` it is behind
    the last activation that the code goes through. Nobody waits for the new run. It has the subject and the tags of the
    other one, the search attributes that it had there, and what its class says now. A person who forks it is shut out
    of its decisions under four eyes. Gives its target.

    In the caller's transaction, under the lock of the chain that it is made from: see ``Steering.held``. Raises
    ``ActionNotPossible``, ``InvalidId``, ``AlreadyRunning``, ``PayloadError``, ``UpdateTimeout``. Always audited.
    """

    name: ClassVar[str] = "fork"
    any_point: ClassVar[bool] = True
    destructive: ClassVar[bool] = False
    label: ClassVar[Promise] = _("Fork")
    effect: ClassVar[Promise] = _(
        "A new run with an id of its own goes on from the activation that you choose, with the code that is there now. "
        "This one stays as it is. What was open there is done by both."
    )
    done: ClassVar[Promise] = _("A new run goes on from there.")
    inputs: ClassVar[tuple[Input, ...]] = (
        *TakingUp.inputs,
        Input(
            name="id", kind=str, label=_("Id of the new run"), help=_("Empty: made of the id of this one."), single=True
        ),
    )

    @classmethod
    def lacks(cls, user: Person, run: Instance | None = None) -> Operation | None:
        """Also asks for what a start of its class takes."""
        found = super().lacks(user, run)
        code = None if found is not None or run is None else code_here(run.workflow, run.version)
        return found if code is None else start_lacks(user, code)

    def check(self) -> None:
        """Also asks for what a start of its class takes."""
        super().check()
        code = code_here(self.target.workflow, self.target.version)
        if code is not None:
            admit_start(self.by, code, alias=self.storage.alias)

    def perform(self) -> RunTarget:
        target, storage = self.target, self.storage
        self.rehearse()
        with storage.transaction():
            run = self.held()
            plan, code = self.plan(run)
            facts = plan.record
            named = fork_id(target.workflow_id, self.given.get("id"), code.unique, suffix=lambda: os.urandom(4).hex())
            seed = facts.seed if plan.prefix.activation else plan.seed
            options = fork_options(code, tags=self._tags(facts.run_id))
            snapshot = fork_snapshot(facts.snapshot, self.by.sender)
            new = NewStart(
                workflow_id=named,
                args=facts.args,
                seed=seed,
                snapshot=snapshot,
                search_attributes=plan.search_attributes,
                **options,
            )
            try:
                started = insert_start(new, storage=storage)
            except AlreadyRunning:  # of whom is told to who sees that run
                require_there(self.by, of=code, alias=storage.alias, workflow_id=named, closed_at=None)
                raise
            copy_subject(started.run_id, facts.run_id, alias=storage.alias)
            require_there(self.by, of=code, alias=storage.alias, pk=started.run_id)
            begun = storage.claim(limit=1, queues=(), chains=[started.chain_id])[0]
            writes = anew.fork(storage, begun, plan, source_chain=target.chain_id, id=named, snapshot=snapshot)
            made = find_chain(started.chain_id, storage=storage)
            kept = details(plan, run=str(facts.run_id), new_run=str(started.run_id), new_id=named)
            self.tell(target.subject, reason=self.reason, **kept)
            inline.taken_up(writes, made, storage=storage)
        return made

    def _tags(self, of: UUID) -> list[str]:
        runs = Instance.objects.using(self.storage.alias)
        return list(runs.values_list("tags", flat=True).get(pk=of) or ())
