"""Start a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from django.db import models

from temporalex_django.actions.base import CODE, Action, Actor, Subject, plain
from temporalex_django.actions.targets import Target
from temporalex_django.authoring.unique import check_id
from temporalex_django.authoring.workflow import Workflow, timeouts
from temporalex_django.core import payloads
from temporalex_django.errors import InvalidId, PayloadError
from temporalex_django.graph.snapshot import first
from temporalex_django.runtime.ids import uuid7
from temporalex_django.runtime.inserting import NewStart, insert_start, ring_on_commit


class Start(Action[Target]):
    """Insert a chain that is due now, and its first run, on the caller's connection: they vanish with his transaction.

    The id is ``id``, or made of ``value`` for a class with ``unique``, or made up. Locks nothing that exists. Raises
    ``InvalidId``, ``PayloadError`` (the input cannot be encoded, or does not fit the annotation of ``run``) and
    ``AlreadyRunning``; nothing is written then.
    """

    name: ClassVar[str] = "start"
    permission: ClassVar[str] = "start_instance"

    def __init__(
        self,
        workflow: type[Workflow],
        *,
        args: Any = None,
        id: str | None = None,
        value: str | None = None,
        subject: models.Model | None = None,
        telemetry: Mapping[str, Any] | None = None,
        by: Actor = CODE,
    ) -> None:
        super().__init__(by=by)
        if subject is not None and (not isinstance(subject, models.Model) or subject.pk is None):
            raise PayloadError(f"the subject of {workflow.name} must be a saved model instance, not {subject!r}")
        self.workflow = workflow
        self.args = args
        self.id = id
        self.value = value
        self.subject = subject
        self.telemetry = telemetry

    def perform(self) -> Target:
        cls = self.workflow
        new = self._new()
        with self.together():
            started = insert_start(new, storage=self.storage)
            self.tell(Subject(run_id=str(started.run_id), workflow=cls.name, workflow_id=new.workflow_id))
        ring_on_commit(alias=self.storage.alias, queues=[new.queue])
        return Target(
            chain_id=started.chain_id,
            run_id=started.run_id,
            queue=new.queue,
            closed=False,
            workflow_id=new.workflow_id,
            workflow=cls.name,
            version=cls.version,
            status="pending",
        )

    def _new(self) -> NewStart:
        cls = self.workflow
        workflow_id = self._id()
        what = f"the input of {cls.name}"
        args = plain(self.args, what=what)
        # here it is the caller's error, later it would be the run's
        payloads.fit(args, cls.definition.args_type, what=what)
        limits = timeouts(cls)
        return NewStart(
            workflow_id=workflow_id,
            workflow=cls.name,
            args=args,
            version=cls.version,
            queue=cls.task_queue,
            scope="global" if cls.unique is None else cls.unique.scope,
            generated=self.id is None and self.value is None,
            timeout=limits.get("execution_timeout"),
            run_timeout=limits.get("run_timeout"),
            subject=self.subject,
            tags=list(cls.tags) or None,
            metadata=dict(cls.metadata) or None,
            snapshot=None if self.telemetry is None else first(cls, plain(self.telemetry, what="telemetry")),
        )

    def _id(self) -> str:
        unique = self.workflow.unique
        if self.id is not None:
            if self.value is not None:
                raise InvalidId(f"{self.workflow.name}: give id= or value=, not both")
            return check_id(self.id)
        if self.value is None and unique is not None:
            raise InvalidId(f"{self.workflow.name} has `unique`: start it with a value")
        if self.value is None:
            return str(uuid7())
        if unique is None:
            raise InvalidId(f"{self.workflow.name} has no `unique`, so it takes an id, not a value")
        return unique.run_id_for(self.value, lambda: os.urandom(4).hex())
