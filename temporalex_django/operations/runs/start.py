"""Starts of one run or many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar
from uuid import UUID

from django.db import models

from temporalex_django import access
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.authoring.requests import REPLACED, StartOutcome, StartRequest, require_reusable
from temporalex_django.authoring.start_api import Startable
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.backends.host import host
from temporalex_django.backends.protocol import AuditSubject, RunTarget
from temporalex_django.backends.routing import backend_of_class
from temporalex_django.conf import get_settings
from temporalex_django.core.names import TABLES
from temporalex_django.db.inserts import StartedRun, insert_many, insert_start
from temporalex_django.db.paced_starts import replace_waiting_input, throttle_start
from temporalex_django.db.start_conflicts import last_ended_status
from temporalex_django.engine.run_start import RunStart, start_of_request
from temporalex_django.errors import (
    ActionNotPermitted,
    AlreadyEnded,
    AlreadyRunning,
    PayloadError,
    WorkflowClosed,
    WorkflowNotFound,
)
from temporalex_django.graph.instance import start_snapshot
from temporalex_django.operations.base import CODE, Action, Actor, refuse_inside_workflow
from temporalex_django.operations.run_lookup import find_run
from temporalex_django.operations.runs.control import Terminate

# --- start ------------------------------------------------------------------------------------------------------------
#
# Start a run.


#: Tries of a start that uses or terminates the open run with its id.
_MAX_TRIES = 5


class Start(Action[RunTarget]):
    """Operation that starts a run and returns its target.

    It inserts a chain that is due when the run begins, and that run, in the caller's transaction if one is open. It
    locks nothing that exists. ``request`` describes the run. The business id is the ``id`` of the request; for a class
    with ``unique`` it may be derived from its ``value``; without either it is generated.

    ``outcome`` says afterwards what it did. With ``on_conflict`` "terminate_existing" it locks the chain of the open
    run, as ``Terminate`` does; with "use_existing" it locks nothing.

    Raises ``InvalidId``, ``InvalidStart``, ``PayloadError`` and ``AlreadyRunning``; nothing is written then.
    ``PayloadError`` means that the input cannot be encoded or does not fit the annotation of ``run``, or that a search
    attribute or a tag is invalid.
    """

    name: ClassVar[str] = "start"
    permission: ClassVar[str] = "start_instance"
    is_routine: ClassVar[bool] = True

    def __init__(self, request: StartRequest, *, schedulers: Sequence[str] = (), by: Actor = CODE) -> None:
        """Prepare the start of the run of ``request``.

        ``schedulers`` are the keys of users who had a part in its schedule: they may not decide under four eyes.
        """
        super().__init__(by=by)
        self.request = request
        self.schedulers = schedulers
        self.headers = request.headers
        self.outcome: StartOutcome = "started"
        #: The run, once it is started or used.
        self.target: RunTarget | None = None
        #: The backend that will store the run outside of the tables; None for the tables.
        self.backend = backend_of_class(request.workflow)
        require_saved_subject(request.subject, workflow_name=request.workflow.name)

    def flush(self) -> None:
        """Send the start to the cluster, if the run lives there; inside a transaction, leave that to a worker."""
        if self.target is not None and self.backend is not None:
            self.backend.flush(self.target.chain_id, storage=self.storage)

    def check(self) -> None:
        """Check that the user may start runs of this class from this interface.

        Raises ``ActionNotPermitted``, and ``NestingError`` inside workflow code.
        """
        refuse_inside_workflow(self.name)
        require_start_access(self.by, self.request.workflow, alias=self.storage.alias)

    @property
    def workflow_name(self) -> str:
        return self.request.workflow.name

    def _run_ids(self) -> dict[str, str | None]:
        return {"workflow_id": self.request.id}

    def perform(self) -> RunTarget:
        new_start = self.build()
        if self.request.on_conflict == "fail" and self.request.debounce is None:
            return self._insert(new_start)
        with self.storage.transaction():
            return self._insert_or_resolve(new_start)

    def _insert(self, new_start: RunStart) -> RunTarget:
        """Insert the run and its audit row. A user who may not see a run with the id gets ``ActionNotPermitted``.

        Others get ``AlreadyRunning``, or ``AlreadyEnded`` if a closed run has it and the request does not allow that.
        """
        may_repeat, throttle = self.request.on_closed == "allow", self.request.parsed_throttle
        try:
            if not may_repeat:
                self._require_reusable(new_start)
            # A start that fails must not count in its throttle, so both are in one transaction.
            is_plain = may_repeat and throttle is None
            with self.audit_transaction() if is_plain else self.storage.transaction():
                if throttle is not None:
                    new_start = throttle_start(new_start, throttle, storage=self.storage)
                start = insert_start if self.backend is None else self.backend.start
                inserted_run = start(new_start, storage=self.storage)
                # Again, because a run may have begun and ended between the check above and the insert.
                if not may_repeat:
                    self._require_reusable(new_start, besides=inserted_run.chain_id)
                target = self.note_started(new_start, inserted_run)
                # Check after the insert: the policy narrows a queryset, so it can judge only rows. A refusal rolls
                # back.
                self._require_visible(pk=inserted_run.run_id)
        # Report it only to users who see the run that has the id. Others get the same ``ActionNotPermitted`` as for a
        # new run that would not exist for them, so nobody can find out which ids of other tenants are taken.
        except AlreadyEnded:
            self._require_visible(workflow_id=new_start.workflow_id)
            raise
        except AlreadyRunning:
            self._require_visible(workflow_id=new_start.workflow_id, closed_at=None)
            raise
        return target

    def note_started(self, new_start: RunStart, started: StartedRun, **details: Any) -> RunTarget:
        """Write the audit row of the run that was inserted in the open transaction, and return its ``RunTarget``.

        ``details`` go into the JSON column of the audit row. ``target`` of this operation is set.
        """
        cls = self.request.workflow
        self.record(
            AuditSubject(run_id=str(started.run_id), workflow=cls.name, workflow_id=new_start.workflow_id), **details
        )
        self.target = RunTarget(
            chain_id=started.chain_id,
            run_id=started.run_id,
            queue=new_start.queue,
            closed=False,
            paused=False,
            workflow_id=new_start.workflow_id,
            workflow=cls.name,
            version=cls.version,
            status="pending",
            backend=TABLES if self.backend is None else self.backend.name,
        )
        return self.target

    def _require_reusable(self, new_start: RunStart, *, besides: UUID | None = None) -> None:
        """Raise ``AlreadyEnded`` if ``on_closed`` forbids to use the id again. ``besides`` is a chain to ignore."""
        require_reusable(
            last_ended_status(new_start, storage=self.storage, besides=besides),
            self.request.on_closed,
            workflow=new_start.workflow,
            workflow_id=new_start.workflow_id,
        )

    def _insert_or_resolve(self, new_start: RunStart) -> RunTarget:
        """Insert the run or apply ``on_conflict``. It is tried a few times: others start and end runs meanwhile.

        The unique index of the open keys decides in the end.
        """
        has_failed = False
        for tries_left in reversed(range(_MAX_TRIES)):
            if self.request.debounce is not None and (waiting_run := self._replace_input(new_start)) is not None:
                return waiting_run
            try:
                return self._insert(new_start)
            except AlreadyEnded:
                raise
            except AlreadyRunning as exc:
                # A debounced start looks once more for a run that another caller has just started.
                if exc.pending or not tries_left or (has_failed and self.request.on_conflict == "fail"):
                    raise
                has_failed = True
            if self.request.on_conflict == "fail":
                continue
            open_run = self._find_open(new_start)
            if open_run is None:
                continue
            if self.request.on_conflict == "use_existing":
                return self._use(open_run)
            try:
                Terminate(open_run, reason=REPLACED, by=self.by).execute()
            except WorkflowClosed:
                continue
            self.outcome = "replaced"
        raise AssertionError("the last try returns or raises")

    def _replace_input(self, new_start: RunStart) -> RunTarget | None:
        """Debounce: give the input to a run that has not begun, and return that run, or None."""
        replace_input = replace_waiting_input if self.backend is None else self.backend.replace_input
        ids = replace_input(new_start, self.by.sender, storage=self.storage)
        if ids is None:
            return None
        self._require_visible(pk=ids.run_id)
        self.outcome = "debounced"
        return self.note_started(new_start, ids, outcome=self.outcome)

    def _find_open(self, new_start: RunStart) -> RunTarget | None:
        version = new_start.version if new_start.scope == "version" else None
        try:
            target = find_run(new_start.workflow_id, storage=self.storage, workflow=new_start.workflow, version=version)
        except WorkflowNotFound:
            return None
        if target.closed or target.pinned is not None:
            return None
        return target

    def _use(self, open_run: RunTarget) -> RunTarget:
        """Write the audit row. Raises ``ActionNotPermitted`` if the user may not look at that run."""
        access.require_access(self.by.user, access.VIEW, alias=self.storage.alias, run=open_run.row)
        self.outcome, self.target = "existing", open_run
        self.record(open_run.audit_subject, outcome=self.outcome)
        return open_run

    def _require_visible(self, **lookups: Any) -> None:
        require_visible_run(self.by, workflow_class=self.request.workflow, alias=self.storage.alias, **lookups)

    def build(self) -> RunStart:
        """Validate the request, and return the chain and the run to insert, as a ``RunStart``.

        Raises ``InvalidId``, ``InvalidStart`` and ``PayloadError`` for an invalid id, time or input. Nothing is
        written.
        """
        request, cls = self.request, self.request.workflow
        if request.needs_id:
            workflow_id = host().generate_id(cls)
        else:
            workflow_id = request.business_id(suffix=host().random_suffix)
        return start_of_request(
            request,
            workflow_id=workflow_id,
            seed=host().new_seed(),
            by=self.by.user,
            make_snapshot=start_snapshot,
            schedulers=self.schedulers,
            generated=request.needs_id and host().has_random_ids,
            headers=self.headers,
            checks_input=host().checks_input,
            limit=get_settings().MAX_PAYLOAD_BYTES,
        )


def require_saved_subject(subject: models.Model | None, *, workflow_name: str) -> models.Model | None:
    """Return the subject of a run, the object that it is started for, if it is a saved model instance or None.

    Raises ``PayloadError`` for anything else. ``workflow_name`` is used in the message.
    """
    if subject is not None and not isinstance(subject, models.Model):
        raise PayloadError(f"the subject of {workflow_name} must be a saved model instance, not {subject!r}")
    if subject is not None and subject.pk is None:
        kind = type(subject).__name__
        raise PayloadError(
            f"the subject of {workflow_name} must be a saved model instance, not one that was deleted or never saved: "
            f"this {kind} has no key. Save it first, or start without subject="
        )
    return subject


def require_start_access(by: Actor, cls: type[Workflow], *, alias: str) -> None:
    """Raise ``ActionNotPermitted`` unless the actor may start runs of that class.

    Every operation that creates a run of the class calls this. Code may start everything.
    """
    user = by.user
    if user is None:
        return
    require_start_permission(by, cls, alias=alias)
    if by.source != CODE.source and not access.policy().startable(user, cls):
        raise ActionNotPermitted(
            f"you cannot start {cls.name} (version {cls.version}) here: it is internal, or an old version"
        )


def require_start_permission(by: Actor, cls: type[Startable], *, alias: str) -> None:
    """Raise ``ActionNotPermitted`` unless the actor has the permissions that a start of the class needs."""
    for operation in _start_operations(cls) if by.user is not None else ():
        access.require_access(by.user, operation, alias=alias)


def refused_start_operation(user: Person, cls: type[Workflow]) -> access.Operation | None:
    """Return the first operation that the access policy refuses to a user who starts the class from an interface.

    None if nothing is refused. A returned operation without a permission means that nobody may start the class there.
    """
    access_policy = access.policy()
    refused_operation = next(
        (operation for operation in _start_operations(cls) if not access_policy.allows(user, operation)), None
    )
    if refused_operation is None and not access_policy.startable(user, cls):
        return access.Operation(action=Start.name, permission=None, workflow=cls.name)
    return refused_operation


def _start_operations(cls: Any) -> Iterator[access.Operation]:
    """Yield the operations that the access policy must allow before the run is created."""
    operation = access.Operation(action=Start.name, permission=f"{APP}.{Start.permission}", workflow=cls.name)
    yield operation
    if cls.start_permission is not None:
        yield replace(operation, permission=cls.start_permission)


def require_visible_run(by: Actor, *, workflow_class: type[Workflow], alias: str, **lookups: Any) -> None:
    """Raise ``ActionNotPermitted`` if the user sees no run that matches ``lookups``, which are filters of ``Instance``.

    Called after a start, it keeps users from starting a run that they would not see, such as one of another tenant.
    Code, and users in whose name code acts, are not restricted.
    """
    if by.user is None or by.source == CODE.source:
        return
    visible_runs = access.runs_for(by.user, alias=alias)
    if visible_runs is not None and not visible_runs.filter(**lookups).exists():
        raise ActionNotPermitted(
            f"{by.user} may not start this {workflow_class.name}: the run would not be visible to them"
        )


# --- start many -------------------------------------------------------------------------------------------------------
#
# Start many runs at once.


def start_many(requests: Sequence[StartRequest], *, by: Actor = CODE) -> list[Start | AlreadyRunning]:
    """Start these runs in one transaction, the caller's if one is open; the result is in the order of the requests.

    For each request, the result has the operation ``Start``, with its ``target`` and its ``outcome``, or
    ``AlreadyRunning`` if an open run has the id. All other errors are raised before anything is written, and are those
    of ``Start``.

    Requests that set ``on_conflict``, ``on_closed``, a throttle or a debounce are started one by one. The others take
    one statement per thousand. Each start of a user is audited.
    """
    starts = [Start(request, by=by) for request in requests]
    for start in {start.request.workflow: start for start in starts}.values():
        with start.audit_denials():
            start.check()
    new_starts = []
    for start in starts:
        with start.client_call():
            new_starts.append(start.build())
    results: list[Start | AlreadyRunning] = [*starts]
    if not starts:
        return results
    storage = starts[0].storage
    with storage.transaction():
        _insert_plain(starts, new_starts, results)
        for number, start in enumerate(starts):
            if start.request.has_policy:
                try:
                    start.perform()
                except AlreadyRunning as exc:
                    results[number] = exc
    for start in starts:
        start.flush()
    return results


def _insert_plain(
    starts: Sequence[Start], new_starts: Sequence[RunStart], results: list[Start | AlreadyRunning]
) -> None:
    """Insert starts without a policy, in few statements for each backend. The lists correspond by index."""
    for backend in dict.fromkeys(start.backend for start in starts):
        numbers = [
            number for number, start in enumerate(starts) if start.backend is backend and not start.request.has_policy
        ]
        insert = insert_many if backend is None else backend.start_many
        inserted = insert([new_starts[number] for number in numbers], storage=starts[0].storage)
        for number, ids in zip(numbers, inserted, strict=True):
            if isinstance(ids, AlreadyRunning):
                results[number] = ids
            else:
                starts[number].note_started(new_starts[number], ids)


def target_of(start: Start) -> RunTarget:
    """Return the ``RunTarget`` of an operation that ``start_many`` returned: the run that it started or used."""
    assert start.target is not None
    return start.target
