"""Do one thing to many runs, or to activities or timers of many runs."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar
from uuid import UUID

from django.core.exceptions import EmptyResultSet
from django.db.models import QuerySet

from temporalex_django import access
from temporalex_django.actions.base import CODE, Action, Actor, Subject, plain
from temporalex_django.actions.bulk_items import UNREAD
from temporalex_django.actions.bulk_jobs import steering
from temporalex_django.actions.signal import SendSignal
from temporalex_django.authoring.authorization import APP
from temporalex_django.conf import codec, get_settings
from temporalex_django.core.names import check_message_id, check_name, quoted
from temporalex_django.core.payloads import check_text
from temporalex_django.engine.ids import uuid7
from temporalex_django.engine.lookup import parse_run_id
from temporalex_django.errors import ActionNotPermitted, ActionNotPossible, IdempotencyKeyReused, WorkflowNotFound
from temporalex_django.models import BulkItem, BulkJob, Instance

_TOGETHER = 500
#: A time, or the id that begins at one (see ``narrowing``), among the values of a filter.
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:.*|[0-9a-f]{8}-?[0-9a-f]{4}-?0{4}-?0{4}-?0{12}")


class StartBulk(Action[BulkJob]):
    """Note a job, which workers go through: any action of operators by its name, or ``signal``, on each of these runs.

    An action on activities or timers is done to each of those that the runs have now and to which it can be done; the
    ``selectors`` of the action, among the ``inputs``, choose among them.

    ``runs`` are run ids, or a queryset of runs (a filter), of which there are those that the access policy leaves; at
    most ``BULK_LIMIT``. ``among`` are the runs that a face leaves him besides, and ``admits`` says of one whether it
    leaves him that: of a queryset the others are left out, an id of another is refused. ``inputs`` are those of the
    action (of ``signal``: ``signal``, ``payload``). Its permission is asked now, and for each run when it is its turn;
    a queryset takes that to look at runs, too. With a ``token`` the same person gets the job that he started with it
    before, if he asks for the same and while it is kept (see ``forgetting``); the times in a queryset do not
    count there. Gives the job.

    One transaction, that of the caller if he has one. Raises ``ActionNotPermitted``, ``ActionNotPossible`` (no such
    action, no run, too many, an input that only one run can have), ``WorkflowNotFound`` for an id that there is not for
    him, ``PayloadError``, ``TypeError`` for inputs that the action does not take and for ``runs`` that are none,
    ``InvalidId`` for a token that is none, ``IdempotencyKeyReused`` for one that came with something else before.
    Audited.
    """

    name: ClassVar[str] = "start_bulk"
    permission: ClassVar[str] = "bulk_actions"
    forced: ClassVar[bool] = True

    def __init__(
        self,
        action: str,
        *,
        runs: Iterable[str | UUID] | QuerySet[Instance],
        reason: str = "",
        token: str | None = None,
        among: QuerySet[Instance] | None = None,
        admits: Callable[[Instance], bool] | None = None,
        by: Actor = CODE,
        **inputs: Any,
    ) -> None:
        super().__init__(by=by)
        self.action = action
        self.runs = _chosen(runs)
        self.reason = check_text(reason, label="the reason")
        self.token = None if token is None else check_message_id(token, label="bulk job")
        self.among = among
        self.admits = admits
        self.needs, self.given, self.selection = _checked(action, inputs)

    def check(self) -> None:
        """Also asks for the permission of the action itself, and who chooses by what runs are like looks at them."""
        super().check()
        if isinstance(self.runs, QuerySet):
            access.admit(self.by.user, access.VIEW, alias=self.storage.alias)
        wanted = access.Operation(action=self.action, permission=f"{APP}.{self.needs}")
        action = steering(self.action)
        edits = action is not None and any(one.edits and one.name in self.given for one in action.inputs)
        more = [access.EDIT] if edits else []
        more += [access.VIEW_PAYLOAD] if edits or (action is not None and action.sees_payloads) else []
        for asked in (wanted, *more):
            access.admit(self.by.user, asked, alias=self.storage.alias)

    def perform(self) -> BulkJob:
        alias, user, token = self.storage.alias, self.by.user, self._key
        with self.storage.transaction():
            job = BulkJob(
                id=uuid7(),
                action=self.action,
                given=codec().encode(self.given),
                reason=self.reason,
                token=token,
                asked="" if token is None else self._asked(),
                actor_id=getattr(user, "pk", None),
                actor_name=(self.by.account if user is None else str(user))[:200],
                by_code=user is None,
                source=self.by.source,
                address=self.by.address,
                request_id=self.by.request_id,
                program=self.by.program,
                total=0,
                created_at=self.storage.now(),
            )
            if token is not None and (before := self._before(job, token)) is not None:
                return before
            self._require_room()
            parts = self._parts(self._found())
            job.total = len(parts)
            job.save(using=alias)
            items = [BulkItem(job_id=job.pk, run_id=run, part=seq) for run, seq in parts]
            BulkItem.objects.using(alias).bulk_create(items, batch_size=_TOGETHER)
            self.tell(
                Subject(run_id=None, workflow="", workflow_id=""),
                reason=self.reason,
                job=str(job.pk),
                of=self.action,
                runs=len({run for run, _ in parts}),
                **({} if self._action_of == "run" else {"parts": job.total, **self.selection}),
            )
        return job

    def _require_room(self) -> None:
        """Raises ``ActionNotPossible`` where jobs of this person run in such number that others would wait long."""
        key, most = getattr(self.by.user, "pk", None), get_settings().BULK_JOBS
        if key is None:
            return
        running = BulkJob.objects.using(self.storage.alias).filter(actor_id=key, state=BulkJob.State.RUNNING)
        if running.exclude(total=0).count() >= most:
            raise ActionNotPossible(
                f"{most} bulk jobs of {self.by.user} are running, and no more may at a time (BULK_JOBS): wait until one "
                "has ended, or stop one"
            )

    @property
    def _key(self) -> str | None:
        """Of who asks, and his token: whatever characters are in both, there is none of another person."""
        return None if self.token is None else _digest([str(getattr(self.by.user, "pk", None)), self.token])

    def _before(self, job: BulkJob, token: str) -> BulkJob | None:
        """The job of that token; else ``job`` has it now, and who comes with it at the same time waits for us."""
        jobs = BulkJob.objects.using(self.storage.alias)
        jobs.bulk_create([job], ignore_conflicts=True)
        found = jobs.get(token=token)
        if found.asked != job.asked:
            raise IdempotencyKeyReused(f"the token {self.token} came with another bulk job before")
        return None if found.pk == job.pk else found

    def _asked(self) -> str:
        """What was asked for, but for the moment at which it was."""
        runs: Sequence[str]
        if isinstance(self.runs, QuerySet):
            try:
                rows = self._chosen_rows(self.runs)
                sql, values = rows.query.get_compiler(using=self.storage.alias).as_sql()
            except EmptyResultSet:
                sql, values = "", ()
            runs = [sql, *(said for said in map(str, values) if not _MOMENT.fullmatch(said))]
        else:
            runs = sorted({str(self._id(one)) for one in self.runs})
        return _digest([self.action, self.given, self.reason, runs, self.selection])

    def _found(self) -> list[UUID]:
        """The runs, newest first."""
        alias, limit = self.storage.alias, get_settings().BULK_LIMIT
        narrowed = access.runs_for(self.by.user, alias=alias)
        there = Instance.objects.using(alias) if narrowed is None else narrowed
        if self.among is not None and not access.is_every(self.among):
            there = there.filter(pk__in=self.among.using(alias).order_by().values("pk"))
        wanted: set[UUID] = set()
        if isinstance(self.runs, QuerySet):
            there = there.filter(pk__in=self._chosen_rows(self.runs))
        else:
            wanted = {self._id(one) for one in self.runs}
            there = there.filter(pk__in=list(wanted)[: limit + 1])
        found = list(there.order_by("-id").values_list("pk", flat=True)[: limit + 1])
        if max(len(wanted), len(found)) > limit:
            raise ActionNotPossible(f"a bulk job takes {limit:,} runs at most (BULK_LIMIT): choose fewer")
        if missing := wanted - set(found):
            raise WorkflowNotFound(f"there is no run {min(map(str, missing))}")
        found = self._admitted(found)
        if not found:
            raise ActionNotPossible("there is no run to do that to")
        if len(found) > 1 and (one := self._of_one_run()):
            raise ActionNotPossible(f"the input {one!r} is for one run, and these are {len(found):,}: leave it out")
        return found

    @property
    def _action_of(self) -> str:
        action = steering(self.action)
        return "run" if action is None else action.of

    def _parts(self, runs: list[UUID]) -> list[tuple[UUID, int | None]]:
        """The items of the job. Raises ``ActionNotPossible`` for none, and for too many."""
        action, limit = steering(self.action), get_settings().BULK_LIMIT
        if action is None:
            return [(run, None) for run in runs]
        parts = action.parts(runs, self.selection, alias=self.storage.alias, most=limit + 1)
        if not parts:
            raise ActionNotPossible(f"none of the {len(runs):,} runs has any {action.of} to do that to")
        if len(parts) > limit:
            raise ActionNotPossible(
                f"a bulk job takes {action.count_of(limit)} at most (BULK_LIMIT), and these are more: choose fewer"
            )
        return parts

    def _chosen_rows(self, runs: QuerySet[Instance]) -> QuerySet[Instance, Any]:
        """Their keys; of a slice in its order, which says which they are."""
        found = runs.using(self.storage.alias)
        return (found if found.query.is_sliced else found.order_by()).values("pk")

    def _admitted(self, found: list[UUID]) -> list[UUID]:
        """Those that the face leaves him one by one. Raises ``ActionNotPermitted`` for one that he has named."""
        if self.admits is None:
            return found
        rows = Instance.objects.using(self.storage.alias).filter(pk__in=found).defer(*UNREAD)
        refused = {run.pk: run for run in rows if not self.admits(run)}
        if refused and not isinstance(self.runs, QuerySet):
            run = refused[max(refused)]
            raise ActionNotPermitted(f"{self.by.user} may not {self.action} {run.workflow} {run.workflow_id}")
        return [one for one in found if one not in refused]

    def _of_one_run(self) -> str | None:
        """An input that was given and that no two runs can have."""
        action = steering(self.action)
        inputs = () if action is None else action.inputs
        return next((one.name for one in inputs if one.single and self.given.get(one.name)), None)

    def _id(self, run: object) -> UUID:
        run_id = run if isinstance(run, UUID) else parse_run_id(run) if isinstance(run, str) else None
        if run_id is None:
            raise WorkflowNotFound(f"there is no run {quoted(run)}")
        return run_id


def _digest(said: object) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode("utf-8", "replace")).hexdigest()


def _chosen(runs: object) -> QuerySet[Instance] | list[object]:
    """Raises ``TypeError`` for what is neither run ids nor a queryset of runs."""
    if isinstance(runs, QuerySet):
        if not issubclass(runs.model, Instance):
            raise TypeError(f"runs is a queryset of {runs.model.__name__}: one of Instance is wanted, or run ids")
        return runs
    if isinstance(runs, str | bytes | Mapping) or not isinstance(runs, Iterable):
        raise TypeError(f"runs={quoted(runs)}: a list of run ids is wanted, or a queryset of runs")
    return [*runs]


def _checked(action: str, inputs: dict[str, Any]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The permission of the action, its inputs, and what chooses among the parts of runs, as they will be stored."""
    if action == SendSignal.name:
        if unknown := sorted(set(inputs) - {"signal", "payload"}):
            raise TypeError(f"signal takes no {', '.join(unknown)}")
        name = check_name(inputs.get("signal"), label="signal")
        payload = plain(inputs.get("payload"), what=f"the payload of signal {name!r}")
        return SendSignal.permission, {"signal": name, "payload": payload}, {}
    found = steering(action) if isinstance(action, str) else None
    if found is None:
        raise ActionNotPossible(f"{quoted(action)} is nothing that is done to runs")
    chooses = {one.name for one in found.selectors}
    selection = found.checked(found.selectors, {name: value for name, value in inputs.items() if name in chooses})
    values = found.checked(found.inputs, {name: value for name, value in inputs.items() if name not in chooses})
    return found.permission, values, selection
