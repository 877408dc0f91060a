"""Go on with a bulk job that was stopped."""

from __future__ import annotations

from typing import ClassVar

from temporalex_django.actions.stop_bulk import StopBulk
from temporalex_django.models import BulkJob


class ResumeBulk(StopBulk):
    """The other way round: workers go on with the runs that it has not come to."""

    name: ClassVar[str] = "resume_bulk"
    from_state: ClassVar[str] = BulkJob.State.STOPPED
    to_state: ClassVar[str] = BulkJob.State.RUNNING
