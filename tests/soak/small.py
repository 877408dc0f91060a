"""The same of the small workflows that the tests have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from django.contrib.auth import get_user_model

from temporalex_django.models import Instance
from tests.soak.books import Ledgers
from tests.soak.desk import Desk
from tests.soak.tales import Tale
from tests.support.crash_walk import start

ACCOUNTS = [f"account{n}" for n in range(6)]


class Small(Tale):
    """``expected``: its result, where that is known before."""

    expected: ClassVar[Any] = None

    def args(self) -> Any:
        return None

    def begin(self) -> None:
        self.given = self.args()
        super().begin()

    def start(self) -> None:
        start(self.of, self.given, workflow_id=self.run)

    def wrong(self, run: Instance, ledgers: Ledgers) -> Iterator[object]:
        if (found := (run.closing_value or {}).get("result")) != self.result():
            yield f"{found!r}, not {self.result()!r}"

    def result(self) -> Any:
        return self.expected


class _Effect(Small):
    """What its activity does to the world is a line with its key, which is also what the run gives."""

    def wrong(self, run: Instance, ledgers: Ledgers) -> Iterator[object]:
        key = run.closing_value["result"]
        if not key.startswith(f"{run.pk}:") or ledgers.effects[key] < 1:
            yield f"the effect {key} is not there"


class Recorded(_Effect):
    of = "Recording"

    def args(self) -> Any:
        return {"path": str(self.desk.effects)}


class Transferred(_Effect):
    of = "Transfer"

    def args(self) -> Any:
        source, target = self.desk.chance.sample(ACCOUNTS, 2)
        amount = self.desk.chance.randrange(1, 100)
        return {"source": source, "target": target, "amount": amount, "path": str(self.desk.effects)}


class AtMostOnce(Small):
    of, judges_lost = "AtMostOnce", True

    def args(self) -> Any:
        return {"path": str(self.desk.folder / f"once{self.number}"), "hold": "/nowhere"}

    def wrong(self, run: Instance, ledgers: Ledgers) -> Iterator[object]:
        path = Path(self.given["path"])
        lines = len(path.read_text().splitlines()) if path.exists() else 0
        completed = run.status == "completed"
        if lines > 1 or (completed and lines != 1):
            yield f"{lines} effects, {run.status}"


class Booked(Small):
    of = "Booking"

    def args(self) -> Any:
        return {"name": self.run, "seconds": 1.2 if self.number % 4 == 0 else 0.0}  # others take the turns meanwhile

    def wrong(self, run: Instance, ledgers: Ledgers) -> Iterator[object]:
        users = [*get_user_model().objects.filter(username=self.run).values_list("pk", flat=True)]
        if [2, *users] != run.closing_value["result"]:
            yield f"{run.closing_value}, users {users}"


class Flaked(Small):
    of = "Flaky"

    def args(self) -> Any:
        return {"path": str(self.desk.folder / "flaky"), "failures": 1}

    def wrong(self, run: Instance, ledgers: Ledgers) -> Iterator[object]:
        if run.closing_value["result"] not in (2, 3):
            yield run.closing_value


class DoubledAsync(Small):
    of, expected = "AsyncDoubling", [0, 2, 4]

    def args(self) -> Any:
        return {"n": 3}


class DoubledHere(Small):
    of = "LocalDoubling"

    def args(self) -> Any:
        return {"n": self.number}

    def result(self) -> Any:
        return 16 * self.number


class Slept(Small):
    of, expected = "Sleeping", "awake"

    def args(self) -> Any:
        return {"seconds": self.desk.chance.random() * 3}


class UnderLimits(Small):
    of, expected = "Mixture", [0, 1, 2, 3]

    def args(self) -> Any:
        return {"calls": [["seldom", None], ["often", None], ["seldom", "a"], ["seldom", "a"]]}


class Beaten(Small):
    """Runs as long as its file is there, and beats."""

    of = "Beating"

    def args(self) -> Any:
        self.hold = self.desk.folder / f"hold{self.number}"
        self.hold.touch()
        return {"hold": str(self.hold)}

    def act(self) -> None:
        if self.desk.chance.random() < 0.5:
            self.end()

    def end(self) -> None:
        self.hold.unlink(missing_ok=True)


class Tallied(Small):
    of = "Tally"

    def __init__(self, desk: Desk, number: int) -> None:
        super().__init__(desk, number)
        self.stopped = False

    def act(self) -> None:
        if not self.stopped:
            self.desk.update(self.run, "add", self.desk.chance.randrange(1, 10))

    def end(self) -> None:
        # not before all is known: what is refused because it is over is not a loss
        if not self.stopped and not self.desk.waits(self.run):
            self.desk.signal(self.run, "stop")
            self.stopped = True

    def result(self) -> Any:
        return sum(n for n, _ in self.desk.of(self.run, "add"))

    def wrong(self, run: Instance, ledgers: Ledgers) -> Iterator[object]:
        yield from super().wrong(run, ledgers)
        if refused := [key for key in self.desk.refused if key[0] == self.run]:
            yield f"refused {refused}"


class Waited(Small):
    of = "Stuck"

    def __init__(self, desk: Desk, number: int) -> None:
        super().__init__(desk, number)
        self.told = False

    def args(self) -> Any:
        return {}

    def end(self) -> None:
        if not self.told:
            self.desk.signal(self.run, "go")
            self.told = True


class WentOn(Small):
    """Continues as new at each signal, until the last one."""

    of = "Entity"

    def __init__(self, desk: Desk, number: int) -> None:
        super().__init__(desk, number)
        self.times, self.stopped = 0, False

    def act(self) -> None:
        if not self.stopped:
            self.desk.signal(self.run, "next")
            self.times += 1

    def end(self) -> None:
        if not self.stopped:
            self.desk.signal(self.run, "next", "stop")
            self.stopped = True

    def result(self) -> Any:
        return self.times


SMALL: tuple[type[Tale], ...] = (
    *(Recorded, Transferred, Transferred, AtMostOnce, Booked, Flaked, DoubledAsync, DoubledHere, Slept, UnderLimits),
    *(Beaten, Tallied, Waited, WentOn),
)
