"""Do one thing to many runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar
from uuid import UUID

from django.db.models import QuerySet

from temporalex_django import access
from temporalex_django.actions.base import CODE, Action, Actor, Subject, plain
from temporalex_django.actions.bulk_jobs import steering
from temporalex_django.actions.signal import SendSignal
from temporalex_django.authoring.people import APP
from temporalex_django.conf import codec, get_settings
from temporalex_django.core.names import check_message_id, check_name, shown
from temporalex_django.core.payloads import text
from temporalex_django.engine.ids import uuid7
from temporalex_django.engine.lookup import as_run_id
from temporalex_django.errors import ActionNotPossible, WorkflowNotFound
from temporalex_django.models import BulkItem, BulkJob, Instance

_TOGETHER = 500


class StartBulk(Action[BulkJob]):
    """Note a job, which workers go through: any action on a run by its name, or ``signal``, on each of these runs.

    ``runs`` are run ids, or a queryset of runs (a filter), of which there are those that the access policy leaves; at
    most ``BULK_LIMIT``. ``inputs`` are those of the action (of ``signal``: ``signal``, ``payload``). Its permission is
    asked now, and for each run when it is its turn. With a ``token`` the same person gets the job that he started with
    it before. Gives the job.

    One transaction, that of the caller if he has one. Raises ``ActionNotPermitted``, ``ActionNotPossible`` (no such
    action, no run, too many), ``WorkflowNotFound`` for an id that there is not for him, ``PayloadError``, ``TypeError``
    for inputs that the action does not take, ``InvalidId`` for a token that is none. Audited.
    """

    name: ClassVar[str] = "start_bulk"
    permission: ClassVar[str] = "bulk_actions"
    forced: ClassVar[bool] = True

    def __init__(
        self,
        action: str,
        *,
        runs: Sequence[str] | QuerySet[Instance],
        reason: str = "",
        token: str | None = None,
        by: Actor = CODE,
        **inputs: Any,
    ) -> None:
        super().__init__(by=by)
        self.action = action
        self.runs = runs
        self.reason = text(reason, what="the reason")
        self.token = None if token is None else check_message_id(token, what="bulk job")
        self.needs, self.given = _checked(action, inputs)

    def check(self) -> None:
        """Also asks for the permission of the action itself."""
        super().check()
        wanted = access.Operation(action=self.action, permission=f"{APP}.{self.needs}")
        access.admit(self.by.user, wanted, alias=self.storage.alias)

    def perform(self) -> BulkJob:
        alias, user = self.storage.alias, self.by.user
        token = None if self.token is None else f"{getattr(user, 'pk', None) or ''}:{self.token}"
        with self.storage.transaction():
            job = BulkJob(
                id=uuid7(),
                action=self.action,
                given=codec().encode(self.given),
                reason=self.reason,
                token=token,
                actor_id=getattr(user, "pk", None),
                actor_name=(self.by.account if user is None else str(user))[:200],
                by_code=user is None,
                source=self.by.source,
                address=self.by.address,
                total=0,
                created_at=self.storage.now(),
            )
            if token is not None and (before := self._before(job, token)) is not None:
                return before
            found = self._found()
            job.total = len(found)
            job.save(using=alias)
            items = [BulkItem(job_id=job.pk, run_id=run) for run in found]
            BulkItem.objects.using(alias).bulk_create(items, batch_size=_TOGETHER)
            self.tell(
                Subject(run_id=None, workflow="", workflow_id=""),
                reason=self.reason,
                job=str(job.pk),
                of=self.action,
                runs=job.total,
            )
        return job

    def _before(self, job: BulkJob, token: str) -> BulkJob | None:
        """The job of that token; else ``job`` has it now, and who comes with it at the same time waits for us."""
        jobs = BulkJob.objects.using(self.storage.alias)
        jobs.bulk_create([job], ignore_conflicts=True)
        found = jobs.get(token=token)
        return None if found.pk == job.pk else found

    def _found(self) -> list[UUID]:
        """The runs, newest first."""
        alias, limit = self.storage.alias, get_settings().BULK_LIMIT
        narrowed = access.runs_for(self.by.user, alias=alias)
        there = Instance.objects.using(alias) if narrowed is None else narrowed
        wanted: set[UUID] = set()
        if isinstance(self.runs, QuerySet):
            there = there.filter(pk__in=self.runs.using(alias).order_by().values("pk"))
        else:
            wanted = {self._id(one) for one in self.runs}
            there = there.filter(pk__in=list(wanted)[: limit + 1])
        found = list(there.order_by("-id").values_list("pk", flat=True)[: limit + 1])
        if max(len(wanted), len(found)) > limit:
            raise ActionNotPossible(f"a bulk job takes {limit:,} runs at most (BULK_LIMIT): choose fewer")
        if missing := wanted - set(found):
            raise WorkflowNotFound(f"there is no run {min(map(str, missing))}")
        if not found:
            raise ActionNotPossible("there is no run to do that to")
        return found

    def _id(self, run: object) -> UUID:
        run_id = as_run_id(run) if isinstance(run, str) else None
        if run_id is None:
            raise WorkflowNotFound(f"there is no run {shown(run)}")
        return run_id


def _checked(action: str, inputs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The permission of the action, and its inputs as they will be stored."""
    if action == SendSignal.name:
        if unknown := sorted(set(inputs) - {"signal", "payload"}):
            raise TypeError(f"signal takes no {', '.join(unknown)}")
        name = check_name(inputs.get("signal"), what="signal")
        payload = plain(inputs.get("payload"), what=f"the payload of signal {name!r}")
        return SendSignal.permission, {"signal": name, "payload": payload}
    found = steering(action) if isinstance(action, str) else None
    if found is None:
        raise ActionNotPossible(f"{shown(action)} is nothing that is done to runs")
    return found.permission, found._checked(inputs)  # noqa: SLF001 - as it would check them itself
