"""The Django app."""

from __future__ import annotations

import logging
import os
import sys
import threading
from http import HTTPStatus
from importlib import import_module
from typing import TYPE_CHECKING

from django.apps import AppConfig, apps
from django.conf import settings
from django.utils.module_loading import module_has_submodule
from django.utils.translation import gettext_lazy as _

from temporalex_django.conf import get_settings, problems
from temporalex_django.db import background_hooks
from temporalex_django.db.background_hooks import BACKGROUND_HOOKS, BackgroundHook
from temporalex_django.errors import NotConfigured, WorkflowDefinitionError

if TYPE_CHECKING:
    from temporalex_django.actions.forgetting import CleanupJob
    from temporalex_django.authoring.backend import BoundBackend
    from temporalex_django.authoring.django_tasks import TaskHost

logger = logging.getLogger("temporalex_django")


class TemporalexConfig(AppConfig):
    """Loads the system checks and the modules ``workflows`` and ``activities`` of every installed app."""

    name = "temporalex_django"
    label = "temporalex_django"
    verbose_name = _("Workflows")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Raises ``NotConfigured`` when a setting is wrong: nothing must be stored as it would be without it."""
        from temporalex_django import checks  # noqa: PLC0415 - importing it registers them

        if errors := problems():
            if sys.argv[1:2] == ["check"] or sys.argv[1:3] == ["temporalex", "doctor"]:  # they list them all
                return
            raise NotConfigured(" ".join(errors))
        from temporalex_django.authoring import backend, django_tasks  # noqa: PLC0415 - nothing is needed before the app is ready
        from temporalex_django.db import guarded_orm, guarded_services  # noqa: PLC0415 - it needs the settings

        _register_refusals()
        backend.bind(_get_backend)
        django_tasks.bind(_get_task_host)
        guarded_orm.install()
        guarded_services.install()
        BACKGROUND_HOOKS[:] = [
            BackgroundHook(has_work=_has_bulk_jobs, run=_run_bulk_jobs),
            *(_cleanup_hook(kind) for kind in ("ANSWERS", "JOBS", "TASK_ENDS")),
        ]
        background_hooks.bind_run_due(_run_burst)
        checks.definition_errors[:] = _import_app_modules()
        _start_local_runner()


def _register_refusals() -> None:
    """Validators refuse by raising what Django, and Django REST framework if it is loaded, refuse requests by."""
    from django.core.exceptions import PermissionDenied, ValidationError  # noqa: PLC0415 - as above

    from temporalex_django.core import failures  # noqa: PLC0415 - as above

    failures.add_refusal(ValidationError)
    failures.add_refusal(PermissionDenied)
    failures.add_refusal(Exception, _is_rest_framework_refusal)


def _is_rest_framework_refusal(exc: Exception) -> bool:
    """Whether it is an ``APIException`` that blames the client."""
    module = sys.modules.get("rest_framework.exceptions")  # where one is raised, it is loaded
    return (
        module is not None
        and isinstance(exc, module.APIException)
        and exc.status_code < HTTPStatus.INTERNAL_SERVER_ERROR
    )


def _import_app_modules() -> list[tuple[str, WorkflowDefinitionError]]:
    """Import the modules of all apps.

    Those that define what cannot be a workflow are for ``manage.py check`` to report, all of them.
    """
    definition_errors = []
    for app in apps.get_app_configs():
        for name in ("activities", "workflows"):
            if app.module is None or not module_has_submodule(app.module, name):
                continue
            try:
                import_module(f"{app.name}.{name}")
            except WorkflowDefinitionError as exc:
                logger.error("%s.%s is not loaded: %s", app.name, name, exc)
                definition_errors.append((f"{app.name}.{name}", exc))
    return definition_errors


def _get_backend() -> BoundBackend:
    from temporalex_django.client import backend  # noqa: PLC0415 - it needs the models

    return backend()


def _get_task_host() -> TaskHost:
    from temporalex_django.tasks.results import DjangoTaskHost  # noqa: PLC0415 - it needs the models, and Django's tasks

    return DjangoTaskHost()


def _run_burst(seconds: float) -> int:
    from temporalex_django.workers.loop import run_until_idle  # noqa: PLC0415 - a process that serves pages has no worker

    return run_until_idle(timeout=seconds)


def _has_bulk_jobs(alias: str) -> bool:
    from temporalex_django.actions.bulk_jobs import has_running_jobs  # noqa: PLC0415 - it needs the models

    return has_running_jobs(alias)


def _run_bulk_jobs(alias: str) -> bool:
    from temporalex_django.actions.bulk_jobs import run_jobs  # noqa: PLC0415 - it needs the models

    return run_jobs(alias)


def _cleanup_hook(kind: str) -> BackgroundHook:
    def cleanup_job() -> CleanupJob:
        from temporalex_django.actions import forgetting  # noqa: PLC0415 - it needs the models

        job: CleanupJob = getattr(forgetting, kind)
        return job

    return BackgroundHook(
        has_work=lambda alias: cleanup_job().has_rows(alias), run=lambda alias: cleanup_job().delete_batch(alias)
    )


def _start_local_runner() -> None:
    """``runserver`` advances workflows in threads of its own (setting ``LOCAL_RUNNER``), in the process that serves."""
    is_runserver = sys.argv[1:2] == ["runserver"] and (os.environ.get("RUN_MAIN") == "true" or "--noreload" in sys.argv)
    local_runner = get_settings().LOCAL_RUNNER
    if not is_runserver or not (settings.DEBUG if local_runner is None else local_runner):
        return

    def start_worker() -> None:
        from temporalex_django.authoring.workflow import registry  # noqa: PLC0415 - as below
        from temporalex_django.workers.development import DevelopmentWorker  # noqa: PLC0415 - it needs the models

        apps.ready_event.wait()
        DevelopmentWorker().start()
        print(  # noqa: T201 - beside what runserver says of itself, whatever the logging of the project
            f"Workflows are advanced by this process: {len(registry)} classes "
            "(TEMPORALEX['LOCAL_RUNNER'] = False leaves them to `manage.py temporalex worker`).",
            flush=True,
        )

    threading.Thread(target=start_worker, name="temporalex-begin", daemon=True).start()
