"""URLs of the console, for ``path("workflows/", include("temporalex_django.console.urls"))``."""

from __future__ import annotations

from django.urls import URLPattern, path
from django.utils.translation import gettext_lazy as _

from temporalex_django.console.bulk import BulkActionView
from temporalex_django.console.deploy import DeployView
from temporalex_django.console.desk import DeskView, ReassignView, TaskPageView
from temporalex_django.console.fleet import (
    FleetActionView,
    FleetView,
    RunDueView,
    SwitchActionView,
    SwitchListView,
    run_due_view,
)
from temporalex_django.console.jobs import JobActionView, JobListView, JobView
from temporalex_django.console.mount import NAMESPACE, Mount
from temporalex_django.console.overview import OverviewView
from temporalex_django.console.run.events import CompareView
from temporalex_django.console.run.messages import QueryView, SendMessageView
from temporalex_django.console.run.operator_views import OperatorActionView
from temporalex_django.console.run.page import RunPageView
from temporalex_django.console.run.start import StartView
from temporalex_django.console.runs import ExportView, RunListView
from temporalex_django.console.schedules import (
    BackfillView,
    DeleteScheduleView,
    ScheduleActionView,
    ScheduleListView,
    ScheduleView,
    TriggerView,
)
from temporalex_django.operations.bulk import ResumeBulk, StopBulk
from temporalex_django.operations.fleet.switches import DrainWorker, SwitchOff, SwitchOn, UndrainWorker
from temporalex_django.operations.runs.control import RunDue
from temporalex_django.operations.schedules.operations import (
    PauseSchedule,
    StopBackfill,
    TriggerSchedule,
    UnpauseSchedule,
)


def patterns(mount: Mount) -> list[URLPattern]:
    """Return the URL patterns of a console that is mounted at a place of the project."""
    stop = JobActionView(mount, StopBulk, _("The job has been stopped. The remaining runs stay as they are."))
    resume = JobActionView(mount, ResumeBulk, _("The job will continue."))
    protect = mount.protect
    drain = FleetActionView(
        mount,
        DrainWorker,
        _("The worker will stop taking new work within a few seconds. It will finish what it is running."),
    )
    undrain = FleetActionView(mount, UndrainWorker, _("The worker will take new work again within a few seconds."))
    switch_off = SwitchActionView(
        mount, SwitchOff, _("Switched off. Workers will stop taking this work within a second.")
    )
    switch_on = SwitchActionView(mount, SwitchOn, _("Switched on. Waiting work will continue within a second."))
    return [
        path("", protect(OverviewView(mount)), name="overview"),
        path("runs/", protect(RunListView(mount)), name="runs"),
        path("runs/export/", protect(ExportView(mount)), name="export"),
        path("runs/bulk/", protect(BulkActionView(mount)), name="bulk"),
        path("runs/start/", protect(StartView(mount)), name="start"),
        path("runs/<uuid:run_id>/", protect(RunPageView(mount)), name="run"),
        path("runs/<uuid:run_id>/do/<slug:action>/", protect(OperatorActionView(mount)), name="do"),
        path("runs/<uuid:run_id>/message/", protect(SendMessageView(mount)), name="message"),
        path("runs/<uuid:run_id>/query/", protect(QueryView(mount)), name="query"),
        path("runs/<uuid:run_id>/compare/", protect(CompareView(mount)), name="compare"),
        path("runs/<uuid:run_id>/<slug:part>/", protect(RunPageView(mount)), name="run_part"),
        path("workers/", protect(FleetView(mount)), name="workers"),
        path("workers/run-due/", run_due_view(protect(RunDueView(mount, RunDue))), name="run_due"),
        path("workers/<str:worker>/drain/", protect(drain), name="drain"),
        path("workers/<str:worker>/undrain/", protect(undrain), name="undrain"),
        path("switches/", protect(SwitchListView(mount)), name="switches"),
        path("switches/off/", protect(switch_off), name="switch_off"),
        path("switches/on/", protect(switch_on), name="switch_on"),
        *_schedule_patterns(mount),
        path("deploy/", protect(DeployView(mount)), name="deploy"),
        path("desk/", protect(DeskView(mount)), name="desk"),
        path("desk/reassign/", protect(ReassignView(mount)), name="reassign"),
        path("desk/<uuid:task>/", protect(TaskPageView(mount)), name="task"),
        path("jobs/", protect(JobListView(mount)), name="jobs"),
        path("jobs/<uuid:job>/", protect(JobView(mount)), name="job"),
        path("jobs/<uuid:job>/stop/", protect(stop), name="stop_job"),
        path("jobs/<uuid:job>/resume/", protect(resume), name="resume_job"),
    ]


def _schedule_patterns(mount: Mount) -> list[URLPattern]:
    protect = mount.protect
    pause = ScheduleActionView(
        mount, PauseSchedule, _("Paused. The schedule will skip its slots until you unpause it.")
    )
    unpause = ScheduleActionView(mount, UnpauseSchedule, _("Unpaused. The schedule will fire again."))
    stop_backfill = ScheduleActionView(
        mount, StopBackfill, _("The backfill has been stopped. Slots that are already waiting will still be started.")
    )
    actions = {
        "pause": pause,
        "unpause": unpause,
        "trigger": TriggerView(mount, TriggerSchedule),
        "backfill": BackfillView(mount),
        "stop-backfill": stop_backfill,
        "delete": DeleteScheduleView(mount),
    }
    return [
        path("schedules/", protect(ScheduleListView(mount)), name="schedules"),
        path("schedules/<int:schedule>/", protect(ScheduleView(mount)), name="schedule"),
        *(
            path(f"schedules/<int:schedule>/{name}/", protect(view), name=f"{name.replace('-', '_')}_schedule")
            for name, view in actions.items()
        ),
    ]


app_name = NAMESPACE
urlpatterns = patterns(Mount())
