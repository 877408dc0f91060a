"""Give back a human task that one has claimed."""

from __future__ import annotations

from typing import ClassVar

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django.actions.human_task import ActionOnTask, what
from temporalex_django.authoring import people
from temporalex_django.errors import ActionNotPossible


class Release(ActionOnTask[None]):
    """Others may decide it again. Raises ``ActionNotPossible`` where he has no claim on it."""

    name: ClassVar[str] = "release"
    label: ClassVar[Promise] = _("Release")
    effect: ClassVar[Promise] = _("Others can claim and decide it again.")
    done: ClassVar[Promise] = _("It is released.")

    def perform(self) -> None:
        with self.storage.transaction():
            task = self.held()
            if task.claimed_until is None or task.claimed_by_key != people.key_of(self.user):
                self.require_candidate(task)
                self.require_unclaimed(task)
                raise ActionNotPossible(f"{what(task)} is not claimed by {self.user}: there is nothing to release")
            task.claimed_by_key = task.claimed_by_name = ""
            task.claimed_until = None
            task.save(using=self.storage.alias, update_fields=["claimed_by_key", "claimed_by_name", "claimed_until"])
            self.tell(self.subject, reason=self.reason, task=str(task.pk))
