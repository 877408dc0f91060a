"""Start a run."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from django.db import models

from temporalex_django.actions.base import CODE, Action, Actor, Subject, plain
from temporalex_django.actions.targets import Target
from temporalex_django.authoring.unique import SEPARATOR, check_id
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.core import payloads
from temporalex_django.core.durations import seconds
from temporalex_django.errors import InvalidId, PayloadError
from temporalex_django.runtime.ids import uuid7
from temporalex_django.runtime.inserting import NewStart, insert_start, ring_on_commit

#: Key of the advisory note beside a generated id: such an id is nobody else's, so nothing is checked.
_SUFFIX_BYTES = 4


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
        by: Actor = CODE,
    ) -> None:
        super().__init__(by=by)
        self.workflow = workflow
        self.args = args
        self.id = id
        self.value = value
        self.subject = subject

    def perform(self) -> Target:
        cls = self.workflow
        new = self._new()
        with self.storage.transaction() if self.audited else self.storage.savepoint_free():
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
