"""The exit statuses of commands, and the errors with which they end: a sentence with the next step."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import BaseCommand, CommandError
from django.db import Error as DatabaseError

from temporalex_django import errors
from temporalex_django.management.cli.printing import escape

#: The answer is no: findings, histories that do not fit, runs of a bulk job that failed.
FINDINGS = 1
#: The command line is wrong: arguments, JSON, filters, ids.
USAGE_ERROR = 2
NOT_FOUND = 3
NOT_PERMITTED = 4
#: The run or its code refuses it in its present state.
REFUSED = 5
#: No answer in time, or the run is locked elsewhere: the same command may succeed later.
TRY_AGAIN = 6
#: The project cannot work as it is set up: settings, tables, database.
NOT_SET_UP = 7
#: As in shells: 128 plus the number of the signal.
INTERRUPTED, PIPE_CLOSED = 130, 141

#: The meaning of each status, for people; ``docs/reference/commands.md`` is made from these texts.
MEANINGS = {
    0: "done",
    FINDINGS: "findings, or work left undone: errors that `doctor` found, histories that do not match the code, failed runs of a bulk job, a confirmation prompt that was not answered with yes, work that remained after `worker --burst`",
    USAGE_ERROR: "the command line is not valid: an argument, JSON, a filter, an id",
    NOT_FOUND: "no such run, schedule, class, version, query, signal or user; or several classes have used the id",
    NOT_PERMITTED: "the user of `--as-user` does not have the permission",
    REFUSED: "the request was refused: the run is closed or paused, a validator rejected it, or a handler failed",
    TRY_AGAIN: "no answer in time, or the run is busy: try again",
    NOT_SET_UP: "settings, tables or database are not set up: see `doctor`",
    INTERRUPTED: "interrupted (Ctrl-C)",
    PIPE_CLOSED: "the reader of the output closed it (`| head`)",
}
#: The first class that matches counts; an error that is not listed is ``REFUSED``.
_CODES_OF_ERRORS: tuple[tuple[type[errors.TemporalexError], int], ...] = (
    (errors.MessageIdTaken, REFUSED),
    (errors.AmbiguousId, NOT_FOUND),
    (errors.WorkflowNotFound, NOT_FOUND),
    (errors.HumanTaskNotFound, NOT_FOUND),
    (errors.WorkerNotFound, NOT_FOUND),
    (errors.ScheduleNotFound, NOT_FOUND),
    (errors.UnknownWorkflow, NOT_FOUND),
    (errors.UnknownVersion, NOT_FOUND),
    (errors.UnknownQuery, NOT_FOUND),
    (errors.UnknownSignal, NOT_FOUND),
    (errors.InvalidId, USAGE_ERROR),
    (errors.PayloadError, USAGE_ERROR),
    (errors.ScheduleInvalid, USAGE_ERROR),
    (errors.ActionNotPermitted, NOT_PERMITTED),
    (errors.TooManyUpdates, TRY_AGAIN),
    (errors.UpdateTimeout, TRY_AGAIN),
    (errors.QueryTimeout, TRY_AGAIN),
    (errors.ResultTimeout, TRY_AGAIN),
    (errors.KeyMissing, TRY_AGAIN),
    (errors.NotConfigured, NOT_SET_UP),
)
#: Next steps for errors whose own advice is for code and has another name on the command line.
_NEXT_STEPS: dict[type[errors.TemporalexError], str] = {
    errors.AmbiguousId: "Specify the class with --workflow, or pass the run's own id.",
    errors.WorkflowNotFound: "Search for it: manage.py temporalex list --id-prefix …",
    errors.WorkerNotFound: "To list the workers, run manage.py temporalex health on the worker's machine, or open the admin.",
    errors.HumanTaskNotFound: "Search for it: manage.py temporalex tasks list",
    errors.ScheduleNotFound: "List them: manage.py temporalex schedules list",
    errors.UnknownWorkflow: "Check the name; its class must be in workflows.py of an installed app.",
    errors.ActionNotPermitted: "Give that user the permission, or use another user with --as-user.",
}


def as_command_error(exc: errors.TemporalexError) -> CommandError:
    """Return the ``CommandError`` for an error of this package: its message, the next step and the exit status."""
    status = next((status for cls, status in _CODES_OF_ERRORS if isinstance(exc, cls)), REFUSED)
    # A message is one line in a terminal, whatever payload it quotes.
    text = escape(" ".join(str(exc).split()))
    next_step = _NEXT_STEPS.get(type(exc), exc.next_step)
    if isinstance(exc, errors.UpdateTimeout) and exc.update_id:
        next_step = f"To get its answer, send it again with --message-id {escape(exc.update_id)}: it runs only once."
    return CommandError(with_next_step(text, next_step), returncode=status)


def with_next_step(problem: str, next_step: str) -> str:
    """Return one text with the problem as a sentence, followed by the next step."""
    return f"{problem}{'' if problem.endswith(('.', '?', '!')) else '.'} {next_step}"


def usage_error(problem: str, next_step: str) -> CommandError:
    """Return the ``CommandError`` for an invalid command line, with the exit status ``USAGE_ERROR``."""
    return CommandError(with_next_step(problem, next_step), returncode=USAGE_ERROR)


@contextmanager
def exit_on_errors(command: BaseCommand) -> Iterator[None]:
    """Turn expected errors of the block into a ``CommandError`` or ``SystemExit`` with the exit status of the error.

    These are errors of this package and of the database, Ctrl-C, and a closed pipe. Django prints no traceback for them
    without ``--traceback``.
    """
    try:
        yield
        command.stdout.flush()  # here, where a closed pipe is still caught
    except errors.TemporalexError as exc:
        raise as_command_error(exc) from exc
    except DatabaseError as exc:
        first_line = escape((str(exc).splitlines() or [type(exc).__name__])[0])
        text = with_next_step(
            f"the database cannot be used: {first_line}", "For details, run: manage.py temporalex doctor"
        )
        raise CommandError(text, returncode=NOT_SET_UP) from exc
    except KeyboardInterrupt:
        # No message: the person who pressed Ctrl-C knows.
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        if getattr(command, "_called_from_command_line", False):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes again at its exit
        raise SystemExit(PIPE_CLOSED) from None
