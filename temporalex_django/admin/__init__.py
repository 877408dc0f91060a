"""Django's admin for runs, schedules, workers, human tasks and the audit log. It can start and operate runs.

The autodiscovery of the default admin site registers these classes.
"""

from __future__ import annotations

from temporalex_django.admin.background_tasks import EndedTaskAdmin, EnqueuedTaskAdmin
from temporalex_django.admin.instance import InstanceAdmin
from temporalex_django.admin.model_admin_mixin import WorkflowAdminMixin
from temporalex_django.admin.read_only import (
    BulkJobAdmin,
    HumanTaskAdmin,
    OperatorActionAdmin,
    OutboxAdmin,
    SwitchedOffAdmin,
    WorkerAdmin,
)
from temporalex_django.admin.schedules.schedule import ScheduleAdmin

__all__ = [
    "BulkJobAdmin",
    "EndedTaskAdmin",
    "EnqueuedTaskAdmin",
    "HumanTaskAdmin",
    "InstanceAdmin",
    "OperatorActionAdmin",
    "OutboxAdmin",
    "ScheduleAdmin",
    "SwitchedOffAdmin",
    "WorkerAdmin",
    "WorkflowAdminMixin",
]
