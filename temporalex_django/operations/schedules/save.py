"""Create a schedule, or change one."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import ClassVar

from django.db import IntegrityError

from temporalex_django import access
from temporalex_django.core.names import quoted
from temporalex_django.errors import ActionNotPermitted, ActionNotPossible, RunChanged, ScheduleInvalid
from temporalex_django.models import Schedule
from temporalex_django.operations.base import CODE, Actor, refuse_inside_workflow
from temporalex_django.operations.runs.start import require_start_access
from temporalex_django.operations.schedules.definition import (
    KEPT,
    RUN_COLUMNS,
    TIME_COLUMNS,
    ScheduleDefinition,
    apply_columns,
)
from temporalex_django.operations.schedules.operations import ScheduleAction, require_run_access


class SaveSchedule(ScheduleAction[Schedule]):
    """Operation that creates or changes a schedule that people own, and returns its row.

    If the specs or the zone change, the first slot comes after the present time. If the class, the input or the overlap
    policy changes, later runs are started in the name of this user. So they need the permissions to start runs of the
    class, and to cancel or terminate runs if the policy does so. These are asked for again at each fire. Everybody who
    has edited the times or the input may not decide in later runs under four eyes.

    ``create`` True refuses a name that exists, and False one that does not. ``expected`` has values of ``changed_at``:
    the row must have one of them, so that nobody overwrites a change that they have not seen; None means any.

    Locks and writes one row, in the caller's transaction. Raises ``ScheduleInvalid``, ``ScheduleNotFound``,
    ``UnknownWorkflow``, ``PayloadError`` and ``RunChanged``. Also raises ``ActionNotPossible`` for a schedule declared
    in code and for a name that exists, and ``ActionNotPermitted`` if the user does not see the schedule that has the
    name.
    """

    name: ClassVar[str] = "save_schedule"

    def __init__(
        self,
        definition: ScheduleDefinition,
        *,
        create: bool,
        expected: Collection[datetime] | None = None,
        reason: str = "",
        by: Actor = CODE,
    ) -> None:
        super().__init__(definition.name, reason=reason, by=by)
        self.definition = definition
        self.create = create
        self.expected = expected

    def check(self) -> None:
        super().check()
        refuse_inside_workflow(self.name)
        if self.by.user is not None:
            workflow = self.definition.workflow_class()
            require_run_access(self.by, workflow, self.definition.overlap, alias=self.storage.alias)
            # As at each fire: nobody schedules a class that they could not start, such as an internal one.
            if workflow is not None:
                require_start_access(self.by, workflow.choose(None, {}), alias=self.storage.alias)

    @property
    def workflow_name(self) -> str | None:
        return self.definition.workflow or None

    def perform(self) -> Schedule:
        now = self.now()
        self.definition.check(now)
        with self.storage.transaction():
            row = self._new_row() if self.create else self.lock()
            if row.owner == Schedule.Owner.CODE:
                raise ActionNotPossible(
                    f"the schedule {row.name} is declared in {row.module}: change it there. You can pause, trigger and "
                    "backfill it here"
                )
            self._check_row(row)
            changed = apply_columns(row, self.definition.columns(), now)
            if row.editor_id is None or not {*changed}.isdisjoint(RUN_COLUMNS):
                row.editor_id = getattr(self.by.user, "pk", None)
                row.editor_name = self.actor_name
            sender = self.by.sender
            edits_run = not {*changed}.isdisjoint((*TIME_COLUMNS, *RUN_COLUMNS[:-1]))
            if sender is not None and edits_run and sender.key not in row.editors:
                row.editors = [*row.editors, sender.key]
            self._write(row)
            self.record_schedule(row, changed=changed)
        return row

    def _check_row(self, row: Schedule) -> None:
        """Raise ``RunChanged`` for a change by somebody else, and ``ScheduleInvalid`` for an input of another class."""
        if self.expected is not None and row.changed_at not in self.expected:
            seen = max(self.expected, default=None)
            raise RunChanged(
                f"the schedule {row.name} was changed after you read it",
                changes={
                    "changed_at": {"was": None if seen is None else seen.isoformat(), "is": row.changed_at.isoformat()}
                },
            )
        # The class says which parts of an input are hidden, so an input must not get to another class unseen.
        is_kept = self.definition.args is KEPT and not self.definition.arguments_function
        is_same = (row.workflow, row.task) == (self.definition.workflow, self.definition.task)
        if is_kept and (not is_same or row.arguments_function):
            raise ScheduleInvalid(
                f"schedule {quoted(row.name)}: give its input in `args`, because the stored one was made for "
                f"{row.workflow or row.task}"
            )

    def _new_row(self) -> Schedule:
        if self.definition.args is KEPT:
            raise ScheduleInvalid("a new schedule has no input to keep: give one in `args`")
        return Schedule(name=self.schedule_name, owner=Schedule.Owner.PEOPLE, created_at=self.now())

    def _write(self, row: Schedule) -> None:
        alias = self.storage.alias
        try:
            with self.storage.savepoint():
                if row._state.adding:  # noqa: SLF001 - Django documents it
                    row.save(using=alias, force_insert=True)
                self.save(row)
                row.save(using=alias)
        except IntegrityError:
            self._require_visible(row.name)
            raise ActionNotPossible(f"there is a schedule {row.name} already: choose another name") from None

    def _require_visible(self, name: str) -> None:
        user = self.by.user
        if user is None or self.by.source == CODE.source:
            return
        if not access.schedules_for(user, alias=self.storage.alias).filter(name=name).exists():
            raise ActionNotPermitted(f"{user} may not use this name for a schedule: choose another name")
