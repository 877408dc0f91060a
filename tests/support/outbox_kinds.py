"""A kind of the outbox for tests: it appends a line to a file, which may be missing or refuse lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from temporalex_django.db import outbox
from temporalex_django.db.outbox import DeliveryRefused, OutboxRow
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.errors import ActionNotPossible, TemporalexError


class AppendLine:
    """Appends ``line`` to the file at ``path``; a line that begins with ``no`` is refused."""

    max_tries = 3

    def __init__(self) -> None:
        self.settled: list[Any] = []
        self.refused: list[str] = []

    def prepare(self, row: OutboxRow, storage: DjangoStorage) -> Any:
        return row.body

    def send(self, prepared: Any) -> Any:
        if prepared["line"].startswith("no"):
            raise DeliveryRefused(ActionNotPossible(f"the line {prepared['line']!r} was refused"))
        with Path(prepared["path"]).open("a") as file:
            file.write(prepared["line"] + "\n")
        return prepared["line"]

    def settle(self, row: OutboxRow, answer: Any, storage: DjangoStorage) -> None:
        self.settled.append(answer)

    def refuse(self, row: OutboxRow, error: TemporalexError, storage: DjangoStorage) -> None:
        self.refused.append(error.code)


def register() -> AppendLine:
    """Register the kind ``file.append`` in this process, and return it."""
    kind = AppendLine()
    outbox.register("file", lambda name: {"append": kind}[name])
    return kind
