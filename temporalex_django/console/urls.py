"""URLs of the console, for ``path("workflows/", include("temporalex_django.console.urls"))``."""

from __future__ import annotations

from django.urls import URLPattern, path
from django.utils.translation import gettext_lazy as _

from temporalex_django.console.bulk import BulkActionView
from temporalex_django.console.jobs import JobActionView, JobListView, JobView
from temporalex_django.console.mount import NAMESPACE, Mount
from temporalex_django.console.overview import OverviewView
from temporalex_django.console.runs import ExportView, RunListView
from temporalex_django.operations.bulk import ResumeBulk, StopBulk


def patterns(mount: Mount) -> list[URLPattern]:
    """Return the URL patterns of a console that is mounted at a place of the project."""
    stop = JobActionView(mount, StopBulk, _("The job has been stopped. The remaining runs stay as they are."))
    resume = JobActionView(mount, ResumeBulk, _("The job will continue."))
    protect = mount.protect
    return [
        path("", protect(OverviewView(mount)), name="overview"),
        path("runs/", protect(RunListView(mount)), name="runs"),
        path("runs/export/", protect(ExportView(mount)), name="export"),
        path("runs/bulk/", protect(BulkActionView(mount)), name="bulk"),
        path("jobs/", protect(JobListView(mount)), name="jobs"),
        path("jobs/<uuid:job>/", protect(JobView(mount)), name="job"),
        path("jobs/<uuid:job>/stop/", protect(stop), name="stop_job"),
        path("jobs/<uuid:job>/resume/", protect(resume), name="resume_job"),
    ]


app_name = NAMESPACE
urlpatterns = patterns(Mount())
