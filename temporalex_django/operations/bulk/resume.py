"""Resume a bulk job that was stopped."""

from __future__ import annotations

from typing import ClassVar

from temporalex_django.models import BulkJob
from temporalex_django.operations.bulk.stop import StopBulk


class ResumeBulk(StopBulk):
    """Operation that resumes a stopped bulk job: workers continue with the runs that are left."""

    name: ClassVar[str] = "resume_bulk"
    from_state: ClassVar[str] = BulkJob.State.STOPPED
    to_state: ClassVar[str] = BulkJob.State.RUNNING
