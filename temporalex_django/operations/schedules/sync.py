"""Schedules declared in code: their rows are created and updated after ``migrate``, and what differs is listed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from django.apps import apps

from temporalex_django.authoring.schedules.schedule import Schedule as Declaration
from temporalex_django.authoring.schedules.schedule import registered_schedules
from temporalex_django.backends.host import host
from temporalex_django.db.storage import FIRED_COLUMNS, DjangoStorage
from temporalex_django.errors import (
    TemporalexError,
)
from temporalex_django.models import Schedule
from temporalex_django.operations.schedules.definition import (
    ScheduleDefinition,
    apply_columns,
    changed_columns,
)
from temporalex_django.operations.schedules.store import logger, state_columns, state_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDifference:
    """A difference between a schedule declared in code and its row in the database.

    ``kind`` says what ``sync_schedules`` does about it:

    - ``new``: it creates the row.
    - ``changed``: it updates ``columns`` of the row.
    - ``gone``: the code no longer declares it, so the row is marked as gone, which pauses it.
    - ``returned``: the code declares it again, so the row is no longer gone.
    - ``conflict``: nothing, because people own a schedule of that name.
    - ``invalid``: nothing, because the declaration is wrong; ``message`` says how.
    """

    name: str
    kind: Literal["new", "changed", "gone", "returned", "conflict", "invalid"]
    module: str
    columns: list[str] = field(default_factory=list)
    message: str = ""

    @property
    def text(self) -> str:
        """The difference as a sentence, which names the module of the declaration and says what to do."""
        match self.kind:
            case "new":
                return f"{self.module} declares the schedule {self.name}, which has no row yet: run migrate"
            case "changed":
                columns = ", ".join(self.columns)
                return f"{self.module} has changed the schedule {self.name} ({columns}): run migrate"
            case "gone":
                return (
                    f"{self.module} no longer declares the schedule {self.name}: migrate marks it as gone and pauses it"
                )
            case "returned":
                return f"{self.module} declares the schedule {self.name} again: run migrate"
            case "conflict":
                return f"{self.module} declares the schedule {self.name}, but a user has already created a schedule with that name: rename one of them"
            case _:
                return f"{self.module} declares a schedule that is not valid: {self.message}"


def schedule_differences(alias: str) -> list[ScheduleDifference]:
    """Return how the schedules declared in this process differ from their rows, sorted by name. One read."""
    return sorted(_differences(host().storage(alias)), key=lambda difference: difference.name)


def _differences(storage: DjangoStorage) -> Iterator[ScheduleDifference]:
    declarations, now = registered_schedules(), storage.now()
    rows = {row.name: row for row in Schedule.objects.using(storage.alias)}
    for name, declaration in declarations.items():
        module, row = declaration.module, rows.get(name)
        try:
            definition = ScheduleDefinition.of_declaration(declaration)
            definition.check(now)
            columns = definition.columns()
        except TemporalexError as exc:
            yield ScheduleDifference(name=name, kind="invalid", module=module, message=str(exc))
            continue
        if row is None:
            yield ScheduleDifference(name=name, kind="new", module=module)
        elif row.owner != Schedule.Owner.CODE:
            yield ScheduleDifference(name=name, kind="conflict", module=module)
        elif row.gone_since is not None:
            yield ScheduleDifference(name=name, kind="returned", module=module)
        elif changed := changed_columns(row, {**columns, "module": module}):
            yield ScheduleDifference(name=name, kind="changed", module=module, columns=changed)
    for name, row in rows.items():
        is_current = row.owner != Schedule.Owner.CODE or name in declarations or row.gone_since is not None
        if not is_current and _is_imported(row.module):
            yield ScheduleDifference(name=name, kind="gone", module=row.module)


def _is_imported(module: str) -> bool:
    """Return True if the module belongs to an installed app and was imported: its schedules are known then."""
    return module in sys.modules and apps.get_containing_app_config(module) is not None


def sync_schedules(alias: str) -> list[ScheduleDifference]:
    """Create and update the rows of schedules declared in code; return the differences that there were.

    Called after ``migrate``. A row whose declaration is gone is marked. Each schedule is a transaction of its own.
    Schedules that people paused stay paused, and nothing is deleted. A difference that people have to mend is logged as
    an error.
    """
    storage, declarations = host().storage(alias), registered_schedules()
    differences = schedule_differences(alias)
    for difference in differences:
        match difference.kind:
            case "conflict" | "invalid":
                logger.error("%s", difference.text)
            case "gone":
                _mark_gone(difference.name, storage)
                logger.warning(
                    "the schedule %s is paused: %s no longer declares it", difference.name, difference.module
                )
            case _:
                put_declaration(declarations[difference.name], storage)
                logger.info("the schedule %s of %s: %s", difference.name, difference.module, difference.kind)
    return differences


def _mark_gone(name: str, storage: DjangoStorage) -> None:
    with storage.transaction():
        rows = Schedule.objects.using(storage.alias).select_for_update()
        row = rows.filter(name=name, owner=Schedule.Owner.CODE, gone_since=None).first()
        if row is not None:
            row.gone_since = storage.now()
            row.save(using=storage.alias, update_fields=["gone_since"])


def put_declaration(declaration: Declaration, storage: DjangoStorage) -> Schedule:
    """Create or update the row of a schedule declared in code, in a transaction, and return it.

    A row that was marked as gone is active again. Raises ``ScheduleInvalid``, ``PayloadError`` and ``UnknownWorkflow``
    for a declaration that is wrong.
    """
    now, definition = storage.now(), ScheduleDefinition.of_declaration(declaration)
    definition.check(now)
    columns = {**definition.columns(), "module": declaration.module}
    with storage.transaction():
        rows = Schedule.objects.using(storage.alias)
        # Two processes that migrate at once: the second one waits here and finds the row.
        rows.bulk_create([_new_row(columns, now)], ignore_conflicts=True)
        row = rows.select_for_update().get(name=declaration.name)
        apply_columns(row, columns, now)
        row.gone_since = None
        fired = state_columns(state_of(row))
        for name in FIRED_COLUMNS:
            setattr(row, name, fired[name])
        row.save(using=storage.alias)
    return row


def _new_row(columns: dict[str, object], now: object) -> Schedule:
    values = {"position": now, "created_at": now, "changed_at": now, "owner": Schedule.Owner.CODE}
    return Schedule(**{**columns, **values})
