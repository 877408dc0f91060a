"""Redaction of human tasks: their titles, comments and shown values are payloads of the run.

A task is shown whole to the people who match one of its candidates, and to the person who decided it. For everybody
else these values are redacted as the payloads of the run are (``access.redactor_for``).
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from functools import cached_property

from temporalex_django.access import redactor_for
from temporalex_django.authoring import authorization
from temporalex_django.authoring.authorization import Person
from temporalex_django.models import HumanTask, Instance
from temporalex_django.operations.base import storage
from temporalex_django.operations.human_tasks.inbox import principals, role_words


def redact_tasks(tasks: Iterable[HumanTask], user: Person | None) -> list[HumanTask]:
    """Return the tasks as ``user`` may see them; code (None) sees all of them whole.

    Redacted tasks are copies, which must not be saved. If something has to be redacted, the groups and permissions of
    the user are read once for all tasks, and so are those of the people on whose behalf they decide.
    """
    if user is None:
        return [*tasks]
    viewer = _Viewer(user)
    return [_redact_task(task, user, viewer) for task in tasks]


def _redact_task(task: HumanTask, user: Person, viewer: _Viewer) -> HumanTask:
    columns = {"id": task.run_id, "chain_id": task.chain_id, "workflow_id": task.workflow_id, "workflow": task.workflow}
    # The row of the task has all columns that a redactor needs, so no run is read for a list of tasks.
    redactor = redactor_for(user, Instance.from_db(storage().alias, [*columns], [*columns.values()]))
    is_decider = bool(viewer.key) and viewer.key == task.decided_by_key
    if (redactor.shows_error_text and task.shows is None) or is_decider or viewer.is_candidate(task):
        return task
    # A copy: the caller may save or compare the original.
    redacted_task = copy(task)
    redacted_task.title = redactor.redact_text(task.title)
    redacted_task.comment = redactor.redact_text(task.comment) if task.comment else ""
    redacted_task.shown_value = None if task.shows is None else redactor.redact_payload(task.shown_value)
    return redacted_task


class _Viewer:
    """A user to whom tasks are shown, together with the people on whose behalf they decide."""

    def __init__(self, user: Person) -> None:
        self.user = user
        self.key = authorization.sender_key(user)

    @cached_property
    def matchers(self) -> list[_CandidateMatcher]:
        return [_CandidateMatcher(person) for person in (self.user, *principals(self.user))]

    def is_candidate(self, task: HumanTask) -> bool:
        return any(matcher.matches(task) for matcher in self.matchers)


class _CandidateMatcher:
    """The candidates that match one person, read once to be compared with many tasks.

    The rules are those of ``authorization.matches_candidate``. A superuser matches every group and permission.
    """

    def __init__(self, user: Person) -> None:
        sender = authorization.sender_of(user)
        self.is_active = bool(getattr(user, "is_active", True))
        self.has_all_roles = bool(getattr(user, "is_superuser", False))
        self.identities = set() if sender is None else {f"user:{sender.name}"}
        if self.is_active and not self.has_all_roles:
            self.identities |= {*role_words(user)}

    def matches(self, task: HumanTask) -> bool:
        """Return True if one of the task's candidates matches the person."""
        candidates = [*task.asked, *(f"user:{delegation['to']}" for delegation in task.delegated)]
        matches_role = self.has_all_roles and any(not candidate.startswith("user:") for candidate in candidates)
        # Compare sets that were read once per person; ``matches_candidate`` would query once per task.
        return self.is_active and (matches_role or not self.identities.isdisjoint(candidates))
