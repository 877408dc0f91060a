"""Switch something on again."""

from __future__ import annotations

from typing import ClassVar

from temporalex_django.errors import ActionNotPossible
from temporalex_django.models import SwitchedOff
from temporalex_django.operations.fleet.switches import SwitchOff


class SwitchOn(SwitchOff):
    """Operation that switches a queue, an activity or a workflow class on again and returns the row that was deleted.

    Work that waited continues within a second. Raises ``ActionNotPossible`` for something that is not off. Runs in the
    caller's transaction. Audited.
    """

    name: ClassVar[str] = "switch_on"

    def perform(self) -> SwitchedOff:
        with self.storage.transaction():
            rows = SwitchedOff.objects.using(self.storage.alias).select_for_update()
            row = rows.filter(kind=self.kind, name=self.switch_name).first()
            if row is None:
                raise ActionNotPossible(f"the {self.kind} {self.switch_name} is not switched off")
            SwitchedOff.objects.using(self.storage.alias).filter(pk=row.pk).delete()
            self.record_switch(self.reason)
        return row
