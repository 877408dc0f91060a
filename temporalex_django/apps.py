"""The Django app."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

from django.apps import AppConfig, apps
from django.conf import settings
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _

from temporalex_django.conf import get_settings

if TYPE_CHECKING:
    from temporalex_django.authoring.binding import Backend


class TemporalexConfig(AppConfig):
    """Loads the system checks and the modules ``workflows`` and ``activities`` of every installed app."""

    name = "temporalex_django"
    label = "temporalex_django"
    verbose_name = _("Workflows")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from temporalex_django import checks  # noqa: F401, PLC0415 - importing it registers them
        from temporalex_django.authoring import binding  # noqa: PLC0415 - nothing is needed before the app is ready
        from temporalex_django.runtime import connections, guarded_orm  # noqa: F401, PLC0415 - receivers prepare sessions

        binding.bind(_backend)
        guarded_orm.install()
        autodiscover_modules("activities", "workflows")
        _run_locally()


def _backend() -> Backend:
    from temporalex_django.client import backend  # noqa: PLC0415 - it needs the models

    return backend()


def _run_locally() -> None:
    """``runserver`` advances workflows in threads of its own (setting ``LOCAL_RUNNER``), in the process that serves."""
    serves = sys.argv[1:2] == ["runserver"] and (os.environ.get("RUN_MAIN") == "true" or "--noreload" in sys.argv)
    wanted = get_settings().LOCAL_RUNNER
    if not serves or not (settings.DEBUG if wanted is None else wanted):
        return

    def begin() -> None:
        from temporalex_django.workers.local import LocalRunner  # noqa: PLC0415 - it needs the models

        apps.ready_event.wait()
        LocalRunner().start()

    threading.Thread(target=begin, name="temporalex-begin", daemon=True).start()
