"""Sentry: an event for each activity that fails for good, and for each run that is blocked.

    TEMPORALEX = {"INTERCEPTORS": ["temporalex_django.contrib.sentry.Sentry"]}

Initialize ``sentry_sdk`` in your project. An event has the types of its exceptions and the code that they passed. It
has no messages of exceptions, no local variables and nothing of a web request, because these may quote payloads.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.urls import NoReverseMatch, reverse

from temporalex_django.conf import get_settings
from temporalex_django.core.failures import error_line
from temporalex_django.errors import NotConfigured
from temporalex_django.interceptors import Interceptor, Problem

try:
    import sentry_sdk
    from sentry_sdk.integrations.logging import ignore_logger
    from sentry_sdk.utils import event_from_exception
except ImportError as exc:
    raise NotConfigured(
        "temporalex_django.contrib.sentry needs the module sentry_sdk: install temporalex-django[sentry]"
    ) from exc

#: Loggers that report the same problems. Sentry makes an event of each line with the level ERROR.
_LOGGERS = ("temporalex_django.engine", "temporalex_django.workflow", "temporalex_django.workers")
#: Namespaces of the URLs of the console: below the admin site, or alone.
_CONSOLES = ("admin:temporalex_console", "temporalex_console")
#: Parts of an event that may quote payloads, or data of a web request.
_PARTS = ("request", "breadcrumbs", "extra", "logentry", "message")


class Sentry(Interceptor):
    """Reports activities that failed for good and blocked runs, each as one event.

    Events have the tags ``workflow``, ``workflow_id``, ``run_id``, ``queue``, ``activity`` and ``attempt``. Problems
    with the same type, class and activity are one issue. With ``ALERTS["BASE_URL"]`` an event has the address of the
    run's page in the console, as ``run_url`` of the context ``temporalex``.
    """

    def __init__(self) -> None:
        for name in _LOGGERS:
            ignore_logger(name)

    def problem(self, problem: Problem) -> None:
        """Send an event. The SDK sends it in a thread of its own."""
        client = sentry_sdk.get_client()
        if not client.is_active():
            return
        if problem.error is not None:
            event, hint = event_from_exception(problem.error, client_options=client.options)
        else:
            event, hint = {"exception": {"values": [{"type": problem.type}]}}, {}
        tags = {
            name: str(value)
            for name in ("kind", "workflow", "workflow_id", "run_id", "queue", "activity", "attempt")
            if (value := getattr(problem, name)) is not None
        }
        with sentry_sdk.new_scope() as scope:
            scope.set_context("temporalex", {"run_url": _run_url(problem.run_id), **tags})
            for name, value in tags.items():
                scope.set_tag(name, value)
            scope.fingerprint = ["temporalex", problem.kind, problem.type, problem.workflow, problem.activity or ""]
            scope.set_transaction_name(f"{problem.workflow}.{problem.activity or 'run'}")
            place = "" if problem.error is None else error_line(problem.error)
            scope.add_event_processor(lambda sent, _hint: _without_payloads(sent, place))
            scope.capture_event({**event, "level": "error", "logger": "temporalex_django"}, hint=hint)


def _without_payloads(event: Any, place: str) -> Any:
    """Drop parts that may quote payloads. ``place`` is the error's type with its code locations."""
    for part in _PARTS:
        event.pop(part, None)
    for number, exception in enumerate(event.get("exception", {}).get("values", ())):
        exception["value"] = place if number == 0 else ""
        exception.get("mechanism", {}).pop("data", None)
        for frame in exception.get("stacktrace", {}).get("frames", ()):
            frame.pop("vars", None)
    for thread in event.get("threads", {}).get("values", ()):
        for frame in thread.get("stacktrace", {}).get("frames", ()):
            frame.pop("vars", None)
    return event


def _run_url(run_id: str) -> str | None:
    """Return the address of the page of a run, or None without ``BASE_URL``, or without the console."""
    base = get_settings().ALERTS.get("BASE_URL", "").rstrip("/")
    if not base:
        return None
    for namespace in _CONSOLES:
        with suppress(NoReverseMatch):
            return f"{base}{reverse(f'{namespace}:run', args=[run_id])}"
    return None
