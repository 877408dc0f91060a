"""Start a run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from django.db import models

from temporalex_django import access
from temporalex_django.actions.base import CODE, Action, Actor, Subject, plain, refuse_inside_workflow
from temporalex_django.actions.targets import RunTarget
from temporalex_django.authoring import authorization
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.authoring.unique import check_id
from temporalex_django.authoring.workflow import Workflow, input_or_default, start_options
from temporalex_django.core import payloads
from temporalex_django.core.handing_over import warn_lossy_value
from temporalex_django.db.inserts import NewStart, insert_start
from temporalex_django.engine.ids import uuid7
from temporalex_django.errors import ActionNotPermitted, AlreadyRunning, InvalidId, PayloadError
from temporalex_django.graph.snapshot import start_snapshot


class Start(Action[RunTarget]):
    """Insert a chain that is due now, and its first run, on the caller's connection: they vanish with his transaction.

    The id is ``id``, or made of ``value`` for a class with ``unique``, or made up. Locks nothing that exists. Raises
    ``InvalidId``, ``PayloadError`` (the input cannot be encoded, or does not fit the annotation of ``run``; a search
    attribute or tag is none) and ``AlreadyRunning``; nothing is written then.
    """

    name: ClassVar[str] = "start"
    permission: ClassVar[str] = "start_instance"
    ordinary: ClassVar[bool] = True

    def __init__(
        self,
        workflow: type[Workflow],
        *,
        args: Any = None,
        id: str | None = None,
        value: str | None = None,
        subject: models.Model | None = None,
        telemetry: Mapping[str, Any] | None = None,
        search_attributes: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        by: Actor = CODE,
    ) -> None:
        super().__init__(by=by)
        self.workflow = workflow
        self.args = args
        self.id = id
        self.value = value
        self.subject = saved_subject(subject, of=workflow.name)
        self.telemetry = telemetry
        self.search_attributes = search_attributes
        self.tags = tags

    def check(self) -> None:
        """Also asks for the class's own permission, and whether it may be started from there."""
        refuse_inside_workflow(self.name)
        admit_start(self.by, self.workflow, alias=self.storage.alias)

    @property
    def of_workflow(self) -> str:
        return self.workflow.name

    def perform(self) -> RunTarget:
        cls = self.workflow
        new = self._new()
        try:
            with self.together():
                started = insert_start(new, storage=self.storage)
                self.tell(Subject(run_id=str(started.run_id), workflow=cls.name, workflow_id=new.workflow_id))
                self._require_there(pk=started.run_id)
        except AlreadyRunning:  # told to who sees the run that has the id; to others it sounds as if it were free
            self._require_there(workflow_id=new.workflow_id, closed_at=None)
            raise
        return RunTarget(
            chain_id=started.chain_id,
            run_id=started.run_id,
            queue=new.queue,
            closed=False,
            paused=False,
            workflow_id=new.workflow_id,
            workflow=cls.name,
            version=cls.version,
            status="pending",
        )

    def _require_there(self, **run: Any) -> None:
        require_there(self.by, of=self.workflow, alias=self.storage.alias, **run)

    def _new(self) -> NewStart:
        cls = self.workflow
        workflow_id = self._id()
        what = f"the input of {cls.name}"
        args = plain(input_or_default(cls, self.args), what=what)
        # here it is the caller's error, later it would be the run's
        payloads.convert(args, cls.definition.args_type, label=what)
        warn_lossy_value(self.args, args, lambda: cls.definition.args_type, reader=f"run of {cls.name}")
        return NewStart(
            workflow_id=workflow_id,
            args=args,
            generated=self.id is None and self.value is None,
            subject=self.subject,
            snapshot=start_snapshot(
                cls,
                telemetry=None if self.telemetry is None else plain(self.telemetry, what="telemetry"),
                started_by=authorization.sender_of(self.by.user),
            ),
            **start_options(cls, search_attributes=self.search_attributes, tags=self.tags),
        )

    def _id(self) -> str:
        unique = self.workflow.unique
        if self.id is not None:
            if self.value is not None:
                raise InvalidId(f"{self.workflow.name}: give id= or value=, not both")
            return check_id(self.id) if unique is None else unique.check(self.id)
        if self.value is None and unique is not None:
            raise InvalidId(f"{self.workflow.name} has `unique`: start it with a value")
        if self.value is None:
            return str(uuid7())
        if unique is None:
            raise InvalidId(f"{self.workflow.name} has no `unique`, so it takes an id, not a value")
        return unique.run_id_for(self.value, lambda: os.urandom(4).hex())


def saved_subject(subject: models.Model | None, *, of: str) -> models.Model | None:
    """What a run is about. Raises ``PayloadError`` for what is no saved model instance."""
    if subject is not None and not isinstance(subject, models.Model):
        raise PayloadError(f"the subject of {of} must be a saved model instance, not {subject!r}")
    if subject is not None and subject.pk is None:
        kind = type(subject).__name__
        raise PayloadError(
            f"the subject of {of} must be a saved model instance, not one that was deleted or never saved: "
            f"this {kind} has no key. Save it first, or start without subject="
        )
    return subject


def admit_start(by: Actor, cls: type[Workflow], *, alias: str) -> None:
    """Whoever makes a run of that class may start it, in whatever way. Raises ``ActionNotPermitted``."""
    user = by.user
    if user is None:
        return
    for asked in _asked(cls):
        access.admit(user, asked, alias=alias)
    if by.source != CODE.source and not access.policy().startable(user, cls):
        raise ActionNotPermitted(
            f"{cls.name} (version {cls.version}) is not started from here: it is internal, or an old version"
        )


def start_lacks(user: Person, cls: type[Workflow]) -> access.Operation | None:
    """What of that this person may not do from a face; without a permission: nobody may."""
    asked = access.policy()
    refused = next((one for one in _asked(cls) if not asked.allows(user, one)), None)
    if refused is None and not asked.startable(user, cls):
        return access.Operation(action=Start.name, permission=None, workflow=cls.name)
    return refused


def _asked(cls: type[Workflow]) -> Iterator[access.Operation]:
    """What the access policy is asked about whoever makes a run of that class."""
    asked = access.Operation(action=Start.name, permission=f"{APP}.{Start.permission}", workflow=cls.name)
    yield asked
    if cls.start_permission is not None:
        yield replace(asked, permission=cls.start_permission)


def require_there(by: Actor, *, of: type[Workflow], alias: str, **run: Any) -> None:
    """Nobody starts from a face what there is not for him: a run among those of another tenant, say.

    Raises ``ActionNotPermitted`` when no run that there is for him is such a ``run``.
    """
    if by.user is None or by.source == CODE.source:
        return
    narrowed = access.runs_for(by.user, alias=alias)
    if narrowed is not None and not narrowed.filter(**run).exists():
        raise ActionNotPermitted(f"{by.user} may not start this {of.name}: it would not be among his runs")
