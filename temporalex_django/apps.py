"""The app configuration: it checks settings, imports the workflows of all apps and starts the local runner."""

from __future__ import annotations

import logging
import os
import sys
import threading
from http import HTTPStatus
from importlib import import_module
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core import mail
from django.core.signals import request_finished
from django.db import connections
from django.db.models.signals import post_migrate
from django.utils.module_loading import module_has_submodule
from django.utils.translation import gettext_lazy as _

from temporalex_django.conf import get_settings, problems
from temporalex_django.contrib import exporters
from temporalex_django.core.names import TEMPORAL
from temporalex_django.db import background_hooks
from temporalex_django.db.background_hooks import ALERT_HOOKS, BACKGROUND_HOOKS, SCHEDULE_HOOKS, BackgroundHook
from temporalex_django.errors import NotConfigured, ScheduleInvalid, WorkflowDefinitionError
from temporalex_django.interceptors.chain import chain, load_interceptors
from temporalex_django.telemetry.recording import recorder

if TYPE_CHECKING:
    from temporalex_django.authoring.backend import Backend
    from temporalex_django.authoring.django_tasks import TaskHost
    from temporalex_django.operations.fleet.switches import CleanupJob

logger = logging.getLogger("temporalex_django")


class TemporalexConfig(AppConfig):
    """The app config of the package.

    It loads the system checks and the modules ``workflows`` and ``activities`` of every installed app.
    """

    name = "temporalex_django"
    label = "temporalex_django"
    verbose_name = _("Workflows")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Check the settings, connect the engine to Django and import the modules of all apps.

        Raises ``NotConfigured`` when a setting is wrong, so that nothing is stored under the default of that setting,
        and ``WorkflowDefinitionError`` for a class on a cluster that cannot work there.
        """
        from temporalex_django import checks  # noqa: PLC0415 - importing it registers them

        if errors := problems():
            if _lists_problems():
                return
            raise NotConfigured(" ".join(errors))
        from temporalex_django.authoring import backend, django_tasks  # noqa: PLC0415 - nothing is needed before the app is ready
        from temporalex_django.db import guards, outbox  # noqa: PLC0415 - they need the settings and the models

        _register_refusals()
        backend.bind(_get_backend)
        django_tasks.bind(_get_task_host)
        guards.install_orm_guard()
        guards.install_service_guard()
        # Assign the slice: other modules imported this very list, and a second ready() must not add the hooks again.
        BACKGROUND_HOOKS[:] = [
            BackgroundHook(has_work=_has_bulk_jobs, run=_run_bulk_jobs),
            *(_cleanup_hook(kind) for kind in ("ANSWERS", "JOBS", "TASK_ENDS", "SLOTS")),
            BackgroundHook(has_work=lambda _: _are_facts_due(), run=_sample_facts),
        ]
        SCHEDULE_HOOKS[:] = [BackgroundHook(has_work=_has_due_schedules, run=_fire_due_schedules)]
        ALERT_HOOKS[:] = [BackgroundHook(has_work=_is_alert_round_due, run=_run_alert_round)]
        request_finished.connect(_alert_without_workers, dispatch_uid="temporalex_django.alerts")
        background_hooks.bind_run_due(_run_burst)
        outbox.register(TEMPORAL, _load_cluster_kind)
        exporters.install(get_settings().METRICS)
        chain.install(load_interceptors(tuple(get_settings().INTERCEPTORS)))
        checks.definition_errors[:] = _import_app_modules()
        if (problem := next(checks.shared_transaction_problems(TEMPORAL), None)) and not _lists_problems():
            raise WorkflowDefinitionError(f"{problem}: the class cannot run on a Temporal cluster")
        post_migrate.connect(_sync_schedules, sender=self, dispatch_uid="temporalex_django.schedules")
        _start_local_runner()


def _lists_problems() -> bool:
    """Return True if this process runs a command, such as ``check``, that lists all problems itself."""
    return sys.argv[1:2] == ["check"] or sys.argv[1:3] == ["temporalex", "doctor"]


def _register_refusals() -> None:
    """Register exceptions by which a validator rejects a message; others count as faults in the code."""
    from django.core.exceptions import PermissionDenied, ValidationError  # noqa: PLC0415 - as above

    from temporalex_django.core import failures  # noqa: PLC0415 - as above

    failures.add_refusal(ValidationError)
    failures.add_refusal(PermissionDenied)
    failures.add_refusal(Exception, _is_rest_framework_refusal)


def _is_rest_framework_refusal(exc: Exception) -> bool:
    """Return True for an ``APIException`` that blames the client, with a status below 500."""
    # REST framework is optional. Code that raises its exceptions has loaded the module, so this need not import it.
    module = sys.modules.get("rest_framework.exceptions")
    return (
        module is not None
        and isinstance(exc, module.APIException)
        and exc.status_code < HTTPStatus.INTERNAL_SERVER_ERROR
    )


def _import_app_modules() -> list[tuple[str, WorkflowDefinitionError | ScheduleInvalid]]:
    """Import modules; return ``(module, error)`` for bad ones, so that ``check`` can report all of them."""
    definition_errors = []
    for app in apps.get_app_configs():
        for name in ("activities", "workflows", "schedules"):
            if app.module is None or not module_has_submodule(app.module, name):
                continue
            try:
                import_module(f"{app.name}.{name}")
            except (WorkflowDefinitionError, ScheduleInvalid) as exc:
                logger.error("%s.%s is not loaded: %s", app.name, name, exc)
                definition_errors.append((f"{app.name}.{name}", exc))
    return definition_errors


def _sync_schedules(*, using: str, **options: Any) -> None:
    """Store declared schedules after ``migrate``. A test database has none until ``drain(schedules=True)``."""
    from temporalex_django.models import Schedule  # noqa: PLC0415 - it needs the models
    from temporalex_django.operations.schedules.sync import sync_schedules  # noqa: PLC0415 - it needs the models

    del options
    # Django's test runner and pytest-django replace the outbox before they create the databases.
    if using != get_settings().DATABASE or hasattr(mail, "outbox"):
        return
    if not settings.USE_TZ:  # a system check says so, and a migration must not fail for it
        return
    # A migration backwards removes the tables.
    if Schedule._meta.db_table in connections[using].introspection.table_names():  # noqa: SLF001 - Django documents it
        sync_schedules(using)


def _get_backend() -> Backend:
    from temporalex_django import client  # noqa: PLC0415 - it needs the models
    from temporalex_django.authoring import backend  # noqa: PLC0415 - as above

    backend.bind(client.backend)  # from now on, without this function
    return client.backend()


def _get_task_host() -> TaskHost:
    from temporalex_django.tasks.results import DjangoTaskHost  # noqa: PLC0415 - it needs the models, and Django's tasks

    return DjangoTaskHost()


def _run_burst(seconds: float) -> int:
    from temporalex_django.workers.loop import run_until_idle  # noqa: PLC0415 - a process that serves pages has no worker

    return run_until_idle(timeout=seconds)


def _has_bulk_jobs(alias: str) -> bool:
    from temporalex_django.operations.bulk import has_running_jobs  # noqa: PLC0415 - it needs the models

    return has_running_jobs(alias)


def _run_bulk_jobs(alias: str) -> bool:
    from temporalex_django.operations.bulk import run_jobs  # noqa: PLC0415 - it needs the models

    return run_jobs(alias)


def _has_due_schedules(alias: str) -> bool:
    from temporalex_django.operations.schedules.fire import has_due  # noqa: PLC0415 - it needs the models

    return has_due(alias)


def _fire_due_schedules(alias: str) -> bool:
    from temporalex_django.operations.schedules.fire import fire_due  # noqa: PLC0415 - it needs the models

    return fire_due(alias)


def _is_alert_round_due(alias: str) -> bool:
    from temporalex_django.operations.alerts import is_round_due  # noqa: PLC0415 - it needs the models

    return is_round_due(alias)


def _run_alert_round(alias: str) -> bool:
    from temporalex_django.operations.alerts import run_round  # noqa: PLC0415 - it needs the models

    run_round(alias)
    return False


def _alert_without_workers(**_: Any) -> None:
    """Send alerts from a web process if no worker does; the receiver of ``request_finished``."""
    if get_settings().ALERTS:
        from temporalex_django.operations.alerts import ensure_rounds  # noqa: PLC0415 - it needs the models

        ensure_rounds()


def _are_facts_due() -> bool:
    # Asked every two seconds, also where no metrics are exported.
    if not recorder.samples_facts:
        return False
    from temporalex_django.operations.fleet.facts import is_due  # noqa: PLC0415 - it needs the models

    return is_due()


def _sample_facts(alias: str) -> bool:
    from temporalex_django.operations.fleet.facts import sample  # noqa: PLC0415 - it needs the models

    return sample(alias)


def _cleanup_hook(kind: str) -> BackgroundHook:
    """Return the hook that deletes rows by the job ``kind`` of ``operations.fleet.switches``, found at each call."""

    def cleanup_job() -> CleanupJob:
        from temporalex_django.operations.fleet import switches  # noqa: PLC0415 - it needs the models

        job: CleanupJob = getattr(switches, kind)
        return job

    return BackgroundHook(
        has_work=lambda alias: cleanup_job().has_rows(alias), run=lambda alias: cleanup_job().delete_batch(alias)
    )


def _start_local_runner() -> None:
    """Start a development worker in threads of ``runserver``. ``LOCAL_RUNNER`` None follows ``DEBUG``."""
    # With autoreload, a parent process watches the files and a child with RUN_MAIN serves: only the child starts one.
    is_runserver = sys.argv[1:2] == ["runserver"] and (os.environ.get("RUN_MAIN") == "true" or "--noreload" in sys.argv)
    local_runner = get_settings().LOCAL_RUNNER
    if not is_runserver or not (settings.DEBUG if local_runner is None else local_runner):
        return

    def start_worker() -> None:
        from temporalex_django.workers.app_modules import describe_classes  # noqa: PLC0415 - as below
        from temporalex_django.workers.development import DevelopmentWorker  # noqa: PLC0415 - it needs the models

        # The thread starts inside ready(), when the apps after this one are not ready yet.
        apps.ready_event.wait()
        DevelopmentWorker().start()
        # Printed like the lines of runserver itself, because the logging of the project may show nothing.
        print(  # noqa: T201 - see above
            f"This process runs workflows: {describe_classes('class', 'classes')} "
            "(set TEMPORALEX['LOCAL_RUNNER'] = False to leave them to `manage.py temporalex worker`).",
            flush=True,
        )

    threading.Thread(target=start_worker, name="temporalex-begin", daemon=True).start()


def _load_cluster_kind(name: str) -> Any:
    """Return the code that sends outbox rows to the cluster; it is imported at the first call."""
    return import_module("temporalex_django.backends.cluster.outgoing").KINDS[name]
