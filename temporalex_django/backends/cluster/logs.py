"""Log entries of the SDK in a worker of this package: they name errors as ours do, without their texts.

The core of the SDK would write its entries to the standard output, with the failures of tasks in them. A process whose
output nobody reads would stop at a full pipe.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Final

from temporalio import activity as sdk
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

from temporalex_django.core.failures import error_line


class _ErrorLines(logging.Filter):
    """Replaces the traceback of an entry by a line with the type and the places of the error.

    The text of an error may quote a payload.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            # The error of the SDK has the text of the one that the code raised.
            record.msg, record.args = "%s: %s", (record.getMessage(), error_line(error.__cause__ or error))
            record.exc_info = record.exc_text = None
        return True


_FILTER: Final = _ErrorLines()


def hide_error_texts() -> None:
    """Let the entries of the SDK about attempts name errors without their texts."""
    sdk.logger.base_logger.addFilter(_FILTER)  # a second time changes nothing


_lock = threading.Lock()
#: By process. That of a parent stays, since its threads, for which its end would wait, are not in the child.
_runtimes: Final[dict[int, Runtime]] = {}


def core_runtime() -> Runtime:
    """Return the runtime of the SDK's core for this process, whose entries go to the logger of this package.

    They begin with the module of the core, and lack their fields, which may quote payloads.
    """
    with _lock:
        if os.getpid() not in _runtimes:
            logger = logging.getLogger("temporalex_django.backends")
            forwarding = LogForwardingConfig(logger, append_target_to_name=False, append_log_fields_to_message=False)
            log_filter = TelemetryFilter(core_level="WARN", other_level="ERROR")
            _runtimes[os.getpid()] = Runtime(
                telemetry=TelemetryConfig(logging=LoggingConfig(filter=log_filter, forwarding=forwarding))
            )
        return _runtimes[os.getpid()]


def _forget_lock() -> None:
    """Make a new lock in a child process: another thread of the parent may have held the old one."""
    global _lock  # noqa: PLW0603 - as above
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)
