"""Commands as a shell runs them, in this process, and what they print without what differs each time."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from django.core.management import base
from django.core.management.base import OutputWrapper

from temporalex_django.management.commands.temporalex import Command
from temporalex_django.operations.fleet import stats
from temporalex_django.operations.read import describe, project_state, run_summary
from temporalex_django.present import diagnosis, human_tasks, problems, schedule_diagnosis, sentences, timeline

#: Of the same width as what they stand for, so that tables keep their shape.
_SAME: tuple[tuple[str, str], ...] = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "00000000-0000-0000-0000-000000000000"),
    (r"\d{4}-\d\d-\d\d([T ])\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?", r"2026-11-03\g<1>14:02:00"),
    (r'"(seed|head)":-?\d+', r'"\g<1>":1'),
)


@contextmanager
def timeless() -> Iterator[None]:
    """Sentences say the same whenever they are made."""
    with ExitStack() as stack:
        for module in (diagnosis, human_tasks, schedule_diagnosis, sentences, timeline, problems):
            for name, said in (("format_time", "14:02"), ("format_at", "at 14:02"), ("format_duration", "3 s")):
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, lambda *_, said=said: said))
        stack.enter_context(patch.object(sentences, "DUE_GRACE_PERIOD", timedelta(days=1)))
        for module in (describe, stats, problems, project_state, run_summary):  # a busy machine is late
            stack.enter_context(patch.object(module, "DUE_GRACE_PERIOD", timedelta(seconds=40)))
        yield


class Terminal(io.StringIO):
    """A stream that says whether somebody looks at it."""

    def __init__(self, *, tty: bool = False, encoding: str = "utf-8") -> None:
        super().__init__()
        self.tty = tty
        self.said = encoding

    def isatty(self) -> bool:
        return self.tty

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.said


@dataclass(frozen=True)
class Ran:
    """What a command left: its output, what it said on the side, its exit status."""

    out: str
    err: str
    status: int


def shell(*arguments: Any, tty: bool = False, encoding: str = "utf-8") -> Ran:
    """``manage.py temporalex``, from the command line: it may exit, and no exception gets out of it."""
    out, err = Terminal(tty=tty, encoding=encoding), Terminal(tty=tty)
    command, status = Command(stdout=OutputWrapper(out), stderr=OutputWrapper(err)), 0
    told = io.StringIO()  # argparse writes there
    with patch.object(base.connections, "close_all"), patch("sys.stderr", told):
        try:
            command.run_from_argv(["manage.py", "temporalex", *map(str, arguments)])
        except SystemExit as exc:
            status = int(exc.code or 0)
    return Ran(out.getvalue(), err.getvalue() + told.getvalue(), status)


def stable(text: str) -> str:
    """Without ids, times and spans."""
    for pattern, instead in _SAME:
        text = re.sub(pattern, instead, text)
    return text


def transcript(*arguments: Any, columns: int | None = None) -> str:
    """A command and what came of it, as a golden file has it."""
    ran = shell(*arguments)
    shown = shlex.join(["temporalex", *map(str, arguments)])
    parts = [f"$ {shown}" if columns is None else f"$ COLUMNS={columns} {shown}", ran.out.rstrip("\n")]
    parts += [f"(stderr) {ran.err.strip()}"] if ran.err else []
    parts += [f"(exit status {ran.status})"] if ran.status else []
    return stable("\n".join(part for part in parts if part)) + "\n"
