"""Log entries of the SDK in a worker of this package: they name errors as ours do, without their texts."""

from __future__ import annotations

import logging
from typing import Final

from temporalio import activity as sdk

from temporalex_django.core.error_text import error_line


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
