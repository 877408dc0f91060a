"""Outputs of commands: text, JSON and exit codes."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from typing import IO, Any, cast

import msgspec
from django.core.management.base import BaseCommand, CommandError
from django.db import Error as DatabaseError
from django.utils import timezone

from temporalex_django import errors
from temporalex_django.authoring.backend import Description
from temporalex_django.authoring.run_columns import Place, stored_columns
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.models import Instance
from temporalex_django.present.sentences import Summary

# --- outputs ----------------------------------------------------------------------------------------------------------
#
# The objects that commands print as JSON with ``--json``.
#
# A test compares the JSON Schema of each class with a file in ``tests/golden/commands``.


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The state of a run: ``state`` is one word for programs, and ``text`` the sentences for people.

    ``trouble`` is true if a person should look at the run. ``since`` is when it came into the state, and ``until`` when
    it leaves the state by itself; null if that is unknown.
    """

    state: str
    text: str
    trouble: bool
    since: datetime | None
    until: datetime | None


def summary_output(summary: Summary, *, short: bool = False) -> Where:
    """Return the JSON output for the summary of a run; with ``short``, its text has at most 140 characters."""
    text = summary.short_text if short else summary.text
    return Where(state=summary.state, text=text, trouble=summary.trouble, since=summary.since, until=summary.until)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunListed:
    """A run, as a line of ``temporalex list``."""

    id: str
    run_id: str
    workflow: str
    version: int
    queue: str
    status: str
    closed: bool
    summary: Where
    created_at: datetime
    starts_at: datetime | None
    started_at: datetime | None
    closed_at: datetime | None
    tags: Sequence[str] | None


def run_output(run: Instance, summary: Summary) -> RunListed:
    """Return the line that ``list`` prints for a run."""
    columns = stored_columns(partial(getattr, run), Place.LIST)
    return RunListed(closed=not run.is_open, summary=summary_output(summary, short=True), **columns)


def status_text(status: str, *, blocked: bool) -> str:
    """Return the status of a run; that it is blocked is a state beside it, which somebody has to look at."""
    return f"{status}, blocked" if blocked else status


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDescribed:
    """The result of ``temporalex describe``.

    ``run`` is what ``handle.describe()`` returns, and ``summary`` is the sentence about the run.
    """

    run: Description
    queue: str
    created_at: datetime
    parent_run_id: str | None
    summary: Where


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPrinted:
    """An event of a history, as a line of ``temporalex history``.

    ``activation`` is the number of the activation in which it was recorded, and ``at`` the time of that.
    """

    number: int
    activation: int
    kind: str
    at: datetime
    attributes: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNamed:
    """The run that was started, or on which a command acted."""

    id: str
    run_id: str
    workflow: str
    version: int


def run_fields(target: RunTarget) -> dict[str, Any]:
    """Return the fields of ``RunNamed``, by name, for the target of an operation."""
    return {
        "id": target.workflow_id,
        "run_id": str(target.selected_run_id),
        "workflow": target.workflow,
        "version": target.version,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalSent(RunNamed):
    """The result of ``temporalex signal``: the run, and the name of the signal.

    The run reads the signal when a worker advances it next.
    """

    signal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateAnswered(RunNamed):
    """The result of ``temporalex update``: the run, the name of the update, and its answer."""

    update: str
    result: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAnswered(RunNamed):
    """The result of ``temporalex query``: the run, the name of the query, and its answer."""

    query: str
    result: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphResumed(RunNamed):
    """The result of ``temporalex resume``: the run, and the event that its waiting step has got."""

    event: str


# --- printing ---------------------------------------------------------------------------------------------------------
#
# The output of commands: JSON for programs, tables for people, and progress on standard error.
#
# A table is as wide as the terminal. Without a terminal, or without rich (the extra ``rich``), each row is one line of
# any length. Without rich, progress is a number.


_MIN_WIDTH, _UNLIMITED_WIDTH = 20, 10_000
_BAR_WIDTH = 30
ReportProgress = Callable[..., None]


def escape(text: object) -> str:
    """Return the text as one line that is safe to print on a terminal: line ends and control characters are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def write_line(command: BaseCommand, text: str) -> None:
    """Write a line to the output of the command; characters that its encoding lacks are escaped."""
    # A UnicodeEncodeError in the middle of a list would lose the rest of it.
    encoding = getattr(command.stdout, "encoding", None) or "utf-8"
    command.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def print_json(command: BaseCommand, value: Any) -> None:
    """Print one value as JSON with indentation."""
    write_line(command, json.dumps(_to_builtins(value), indent=2))


def print_json_line(command: BaseCommand, value: Any) -> None:
    """Print one value as JSON on a single line, for commands that print many values."""
    write_line(command, json.dumps(_to_builtins(value), separators=(",", ":")))


def print_result(command: BaseCommand, value: Any, *lines: str, as_json: bool) -> None:
    """Print the result of a command: ``value`` as JSON, or lines of text that say it to people."""
    if as_json:
        print_json(command, value)
        return
    for line in lines:
        write_line(command, line)


def _to_builtins(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=repr)


def print_table(command: BaseCommand, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows as a table; without a heading line if all headings are empty."""
    cells = [[escape(cell) for cell in row] for row in rows]
    lines = _plain_lines(headings, cells) if find_spec("rich") is None else _rich_lines(command, headings, cells)
    write_line(command, "\n".join(line.rstrip() for line in lines))


def _plain_lines(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    lines = [headings, *rows] if any(headings) else rows
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for row in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))


def _rich_lines(command: BaseCommand, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    from rich.console import Console  # noqa: PLC0415 - a worker draws no tables
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    grid = Table(box=None, pad_edge=False, show_header=any(headings), header_style="", padding=(0, 2, 0, 0))
    for heading in headings:
        grid.add_column(heading, overflow="fold")
    for row in rows:
        grid.add_row(*map(Text, row))
    buffer = io.StringIO()
    Console(file=buffer, width=_table_width(command), color_system=None, force_terminal=False).print(grid)
    return buffer.getvalue().splitlines()


def _table_width(command: BaseCommand) -> int:
    # Cutting columns in a pipe would break grep and friends.
    if command.stdout.isatty() or "COLUMNS" in os.environ:
        return max(_MIN_WIDTH, shutil.get_terminal_size().columns)
    return _UNLIMITED_WIDTH


def format_local_time(at: datetime | None) -> str:
    """Return a time in the time zone of the project as text, such as ``2026-01-31 14:02:00``; empty for None."""
    if at is None:
        return ""
    return timezone.localtime(at).strftime("%Y-%m-%d %H:%M:%S")


def is_watched(command: BaseCommand, *, lines: bool = False) -> bool:
    """Return True if a progress bar should be shown: standard error is a terminal.

    ``lines`` is True if the command prints lines meanwhile. If these go to a terminal, they show the progress, and the
    bar is left out.
    """
    return command.stderr.isatty() and not (lines and command.stdout.isatty())


def _ignore_progress(*_: object) -> None:
    pass


@contextmanager
def progress(command: BaseCommand, *, lines: bool = False) -> Iterator[ReportProgress]:
    """Show a progress bar on standard error during the block, if that is a terminal.

    ``lines`` is True if the command prints lines meanwhile; if these go to a terminal, the bar is left out. The value
    is a function that moves the bar; it takes the number that is done, the total, and a note.
    """
    if not is_watched(command, lines=lines):
        yield _ignore_progress
        return
    with _show_count(command) if find_spec("rich") is None else _show_bar(command) as report:
        yield report


@contextmanager
def _show_count(command: BaseCommand) -> Iterator[ReportProgress]:
    line = ""

    def report(done: int, total: int, note: str = "") -> None:
        nonlocal line
        width, line = len(line), f"{done:,} of {total:,}{escape(note)}"
        command.stderr.write("\r" + line.ljust(width), ending="")

    try:
        yield report
    finally:
        if line:
            command.stderr.write("")


@contextmanager
def _show_bar(command: BaseCommand) -> Iterator[ReportProgress]:
    from rich.console import Console  # noqa: PLC0415 - a worker draws no bars
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415 - as above

    # Django wraps its streams, and rich needs the raw one; the check for a terminal was made above.
    console = Console(file=cast("IO[str]", getattr(command.stderr, "_out", command.stderr)), force_terminal=True)
    count_column = TextColumn("{task.completed:,.0f} of {task.total:,.0f}{task.fields[said]}", markup=False)
    bar = Progress(BarColumn(bar_width=_BAR_WIDTH), count_column, TimeRemainingColumn(), console=console)
    task_id = bar.add_task("", total=None, said="")

    def report(done: int, total: int, note: str = "") -> None:
        bar.update(task_id, completed=done, total=total, said=escape(note))
        bar.start()  # only the first call does anything: before it there is nothing to show

    try:
        yield report
    finally:
        if bar.live.is_started:
            bar.stop()


# --- exit codes -------------------------------------------------------------------------------------------------------
#
# The exit statuses of commands, and the errors with which they end: a sentence with the next step.


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
    (errors.TaskNotFound, NOT_FOUND),
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
    errors.TaskNotFound: "List them: manage.py temporalex enqueued",
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
