"""Alerts by web processes, for the time when no worker is left."""

from __future__ import annotations

import logging
import threading
import time

from django.db import Error as DatabaseError
from django.db import connections

from temporalex_django.conf import get_settings
from temporalex_django.core.failures import error_line
from temporalex_django.engine import policy
from temporalex_django.operations.alerts.rounds import is_round_due, run_round

logger = logging.getLogger("temporalex_django.operations")

_lock = threading.Lock()
_looked_at = 0.0


def ensure_rounds() -> None:
    """Do a round of alerts in a thread of its own if no process has done one for two minutes.

    Web processes call this after each request. Once a minute it costs one statement, in that thread; otherwise nothing.
    """
    global _looked_at  # noqa: PLW0603 - one look a minute for the whole process
    with _lock:
        if time.monotonic() - _looked_at < policy.ALERT_SECONDS:
            return
        _looked_at = time.monotonic()
    threading.Thread(target=look, args=[get_settings().DATABASE], name="temporalex-alerts", daemon=True).start()


def look(alias: str) -> None:
    """Do a round of alerts if no process has done one for two minutes. Closes the connections of the thread."""
    try:
        if is_round_due(alias, since=policy.ALERT_WEB_SECONDS):
            run_round(alias, is_worker=False)
    except DatabaseError as exc:
        logger.warning("a web process could not look for problems: %s", error_line(exc))
    finally:
        connections.close_all()
