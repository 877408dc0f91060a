"""The rows of the permission matrix about things that are no runs, which ``test_permission_matrix`` adds."""

from __future__ import annotations

from tests.support import outbox_matrix, schedule_matrix, task_matrix
from tests.support.matrix import Row, token
from tests.support.outbox_matrix import dead_letter

__all__ = ["ADMIN", "COMMANDS", "ENTRIES", "OPERATIONS", "REST", "dead_letter"]

OPERATIONS = schedule_matrix.OPERATIONS | outbox_matrix.OPERATIONS | task_matrix.OPERATIONS
REST = schedule_matrix.REST | outbox_matrix.REST | task_matrix.REST
REST |= {"GET lost_workers": Row(("view_worker",), lambda send: send(), of_run=False)}
ADMIN = schedule_matrix.ADMIN | outbox_matrix.ADMIN | task_matrix.ADMIN
ADMIN |= {
    **{f"instance {page}": Row((), lambda page: page("run"), of_run=False) for page in ("change", "history")},
    "instance start": Row((), lambda page: page(), of_run=False),
    "instance console run": Row(("view_instance",), lambda page: page("run")),
    "instance console run_part": Row(("view_instance",), lambda page: page("run")),
    "humantask changelist": Row((), lambda page: page(), "question", of_run=False),
    "humantask change": Row((), lambda page: page("task"), "question", of_run=False),
    "instance console desk": Row((), lambda page: page(), "question", of_run=False),
    "instance console task": Row((), lambda page: page("task"), "question"),
    "instance console task post": Row(
        (), lambda page: page("task", {"token": token(), "outcome": "approved"}), "question"
    ),
    "instance console deploy": Row(("view_worker",), lambda page: page(), of_run=False),
}
#: Entries in the admin of what the console has.
ENTRIES = {
    *(f"{model} changelist" for model in ("bulkjob", "worker", "switchedoff", "schedule", "humantask")),
    *("instance change", "instance history", "instance start", "schedule change", "humantask change"),
}
COMMANDS = schedule_matrix.COMMANDS | outbox_matrix.COMMANDS | task_matrix.COMMANDS
