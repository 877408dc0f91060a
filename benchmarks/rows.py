"""The benchmarks by name: the function that measures ours, and the peers that do the same work."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

Where = Literal["memory", "database", "http"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A benchmark.

    ``where``: in this process alone, on a database, or with the admin and servers on one.
    ``named``: it runs only if you name it, since it takes minutes or needs a database that you build first.
    """

    measure: Callable[[Namespace], Any]
    where: Where = "database"
    peers: tuple[str, ...] = ()
    sqlite: bool = False
    postgres: bool = True
    named: bool = False
    seconds: float = 115.0


def _from(module: str, function: str, *arguments: str) -> Callable[[Namespace], Any]:
    """Return a measure that calls the function with these options.

    It imports the module when it runs, because modules that need Django are importable only after its setup.
    """

    def measure(options: Namespace) -> Any:
        found = getattr(__import__(f"benchmarks.{module}", fromlist=[function]), function)
        return found(*(getattr(options, name) for name in arguments))

    return measure


ROWS: Final = {
    "one": Row(
        measure=_from("throughput", "one", "count", "queued"),
        peers=("dbos", "absurd", "django-q2", "temporal"),
        sqlite=True,
    ),
    "ten": Row(measure=_from("throughput", "ten", "count"), peers=("dbos", "absurd", "temporal"), sqlite=True),
    "atomic": Row(measure=_from("throughput", "atomic", "count"), peers=("dbos",), sqlite=True),
    "two": Row(measure=_from("throughput", "two", "count")),
    "starts": Row(
        measure=_from("throughput", "starts", "starts"), peers=("dbos", "absurd", "django-q2", "temporal"), sqlite=True
    ),
    "start_many": Row(measure=_from("throughput", "start_many", "starts"), sqlite=True),
    "schedules": Row(measure=_from("schedules", "run", "schedules"), sqlite=True),
    "tasks": Row(measure=_from("tasks", "run", "count"), peers=("django-tasks-db",), sqlite=True),
    "latency": Row(measure=_from("latency", "latency", "calls"), peers=("dbos", "absurd", "temporal"), sqlite=True),
    "update": Row(measure=_from("latency", "update", "updates"), peers=("temporal",), sqlite=True),
    "beside": Row(measure=_from("throughput", "beside", "count", "seconds"), sqlite=True),
    "fan": Row(measure=_from("single", "fan", "branches"), peers=("dbos",)),
    "long": Row(measure=_from("single", "long", "signals")),
    "graph": Row(measure=_from("graph", "run", "count", "rounds")),
    "parked": Row(measure=_from("crowd", "parked", "parked", "seconds")),
    "wake": Row(measure=_from("crowd", "wake", "timers")),
    "crowded": Row(measure=_from("neighbours", "crowded", "crowd")),
    "naps": Row(measure=_from("neighbours", "naps", "naps")),
    "chain": Row(measure=_from("neighbours", "chain", "chain")),
    "switched": Row(measure=_from("neighbours", "switched", "switches")),
    "kit": Row(measure=_from("kit", "run", "rounds"), sqlite=True),
    "recover": Row(measure=_from("recover", "run", "effects")),
    "observed": Row(measure=_from("observed", "run", "count", "pairs"), sqlite=True, named=True, seconds=0),
    "mirrored": Row(measure=_from("mirrored", "run", "count", "seconds"), sqlite=True, named=True, seconds=0),
    "clustered": Row(measure=_from("clustered", "run", "rounds"), named=True, seconds=0),
    "day": Row(measure=_from("day", "run", "database", "carts"), sqlite=True, named=True),
    "grown": Row(measure=_from("grown", "run", "count", "starts", "updates"), named=True),
    "pages": Row(measure=_from("pages", "run", "runs"), where="http", named=True, seconds=0),
    "console": Row(measure=_from("console", "run", "runs"), where="http", named=True, seconds=0),
    "listing": Row(measure=_from("listing", "run", "runs"), where="http", named=True, seconds=0),
    "served": Row(measure=_from("serving", "run", "seconds"), where="http", named=True),
    "replay": Row(measure=_from("core", "replay", "count", "rounds"), where="memory"),
    "steps": Row(measure=_from("core", "steps", "count", "rounds"), where="memory"),
    "fan_core": Row(measure=_from("core", "fan", "sizes", "rounds"), where="memory"),
    "long_core": Row(measure=_from("core", "long", "sizes", "rounds"), where="memory"),
    "memory": Row(measure=_from("core", "memory", "count"), where="memory"),
    "guard": Row(measure=_from("guard", "run", "count", "rounds"), where="memory"),
}


def usual(database: str) -> list[str]:
    """Return the benchmarks that run if you name none."""
    sqlite = database == "sqlite"
    return [name for name, row in ROWS.items() if not row.named and (row.sqlite or not sqlite)]
