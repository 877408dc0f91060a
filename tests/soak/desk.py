"""Where everything that workflows are told goes through, and what is known of it."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from django.db import Error, connection

from temporalex_django.client import backend
from temporalex_django.errors import (
    NotAccepting,
    RunBlocked,
    RunPaused,
    TemporalexError,
    TooManyUpdates,
    UpdateFailed,
    UpdateRejected,
    UpdateTimeout,
    WorkflowClosed,
    WorkflowSwitchedOff,
)

T = TypeVar("T")
#: Not now: the same is asked again later, under the same id.
LATER = (NotAccepting, RunBlocked, RunPaused, WorkflowSwitchedOff, TooManyUpdates, UpdateTimeout)
Key = tuple[str, str]


class Desk:
    """``told``: name and arguments of each update by run and id.

    In the end it is ``answered``, ``refused``, or ``failed``: its activity had no attempt left. Told once, and asked as
    often as it takes. ``signals``: how many each run was sent.
    """

    def __init__(self, chance: random.Random, folder: Path) -> None:
        self.chance = chance
        self.folder = folder
        self.effects = folder / "effects"
        self.effects.touch()
        self.told: dict[Key, tuple[str, Any]] = {}
        self.answered: dict[Key, Any] = {}
        self.refused: dict[Key, str] = {}
        self.failed: dict[Key, str] = {}
        self.signals: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._number = 0

    def number(self) -> int:
        self._number += 1
        return self._number

    def patiently(self, do: Callable[[], T], *, seconds: float = 60.0) -> T:
        """What the database refuses while it restarts is asked again."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return do()
            except Error:
                if time.monotonic() > deadline:
                    raise
                connection.close()
                time.sleep(0.1)

    def signal(self, run: str, name: str, payload: Any = None) -> None:
        """Sent once: its id is that of every try. What is closed by now takes none."""
        number = self.number()
        with suppress(WorkflowClosed):
            self.patiently(lambda: backend().handle(run).signal(name, payload, id=f"s{number}"))
            self.signals[run] += 1

    def update(self, run: str, name: str, args: Any = None) -> Any:
        """A new one; None when it is not known yet what came of it."""
        key = (run, f"u{self.number()}")
        self.told[key] = (name, args)
        return self.ask(key)

    def ask(self, key: Key, *, timeout: float = 0.5) -> Any:
        """One that was told, once more."""
        run, number = key
        name, args = self.told[key]
        mode = self.chance.choice(["auto", "auto", "worker"])
        try:
            said = self.patiently(
                lambda: backend().handle(run).update(name, args, id=number, timeout=timeout, mode=mode)
            )
        except LATER:
            return None
        except (UpdateRejected, UpdateFailed) as exc:
            which = self.refused if isinstance(exc, UpdateRejected) else self.failed
            which[key] = str(exc)
            if sum(key in known for known in (self.answered, self.refused, self.failed)) > 1:
                self.wrong.append(f"{name} {number} of {run} was answered in two ways, now {exc}")
            return None
        if self.answered.setdefault(key, said) != said:
            self.wrong.append(f"{name} {number} of {run} was answered {self.answered[key]!r} and {said!r}")
        return said

    def open(self) -> list[Key]:
        """What nobody knows the outcome of."""
        known = self.answered.keys() | self.refused.keys() | self.failed.keys()
        return [key for key in self.told if key not in known]

    def waits(self, run: str) -> bool:
        """Whether there is such an update of that run: it is asked again before another one is told."""
        return any(key[0] == run for key in self.open())

    def is_told(self, run: str, name: str) -> bool:
        """Whether the run was told an update of that name, whatever came of it."""
        return any(key[0] == run and told[0] == name for key, told in self.told.items())

    def of(self, run: str, name: str) -> list[tuple[Any, Any]]:
        """Arguments and answers of the updates of that name that were answered."""
        return [
            (self.told[key][1], said)
            for key, said in self.answered.items()
            if key[0] == run and self.told[key][0] == name
        ]

    def gently(self, do: Callable[[], T]) -> T | None:
        """What is done again if it does not work now; None then."""
        try:
            return self.patiently(do)
        except TemporalexError:
            return None
