"""The rows of the permission matrix about things that are no runs, which ``test_permission_matrix`` adds."""

from __future__ import annotations

from tests.support import outbox_matrix, schedule_matrix, task_matrix
from tests.support.matrix import Row
from tests.support.outbox_matrix import dead_letter

__all__ = ["ADMIN", "COMMANDS", "OPERATIONS", "REST", "dead_letter"]

OPERATIONS = schedule_matrix.OPERATIONS | outbox_matrix.OPERATIONS | task_matrix.OPERATIONS
REST = schedule_matrix.REST | outbox_matrix.REST | task_matrix.REST
REST |= {"GET lost_workers": Row(("view_worker",), lambda send: send(), of_run=False)}
ADMIN = schedule_matrix.ADMIN | outbox_matrix.ADMIN | task_matrix.ADMIN
COMMANDS = schedule_matrix.COMMANDS | outbox_matrix.COMMANDS | task_matrix.COMMANDS
