"""The tables of the engine.

They hold all state of runs (see decision 2). Only ``db``, ``liveness`` and ``operations`` write them.
"""

from __future__ import annotations

from temporalex_django.models.activities import (
    ActivityTask,
    DoneOnce,
    EndedTask,
    EnqueuedTask,
    FailedAttempt,
    Limit,
    Permit,
    SwitchedOff,
)
from temporalex_django.models.fleet import (
    Alert,
    BulkItem,
    BulkJob,
    DeployCheck,
    Lease,
    LostWorker,
    OperatorAction,
    Worker,
)
from temporalex_django.models.human_tasks import Candidate, Ending, FourEyesScope, HumanTask, HumanTaskQuerySet
from temporalex_django.models.messages import KeptAnswer, Message, Outbox
from temporalex_django.models.runs import Chain, HistoryEvent, Instance, InstanceQuerySet, SearchAttribute, Status
from temporalex_django.models.schedules import Schedule, ScheduleSlot

__all__ = [
    "ActivityTask",
    "Alert",
    "BulkItem",
    "BulkJob",
    "Candidate",
    "Chain",
    "DeployCheck",
    "DoneOnce",
    "EndedTask",
    "Ending",
    "EnqueuedTask",
    "FailedAttempt",
    "FourEyesScope",
    "HistoryEvent",
    "HumanTask",
    "HumanTaskQuerySet",
    "Instance",
    "InstanceQuerySet",
    "KeptAnswer",
    "Lease",
    "Limit",
    "LostWorker",
    "Message",
    "OperatorAction",
    "Outbox",
    "Permit",
    "Schedule",
    "ScheduleSlot",
    "SearchAttribute",
    "Status",
    "SwitchedOff",
    "Worker",
]
