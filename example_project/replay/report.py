"""The report of a day: figures, differences and problems, as text and as JSON."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar

from example_project.shop.money import amount, cents

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from example_project.replay.chaos import Kill
    from example_project.replay.day import Day
    from example_project.replay.person import Visit

RECONCILED, DIFFERENT, MALFORMED = 0, 1, 2
#: The end of the title, by the backend on which the baskets live.
BACKENDS = {"tables": "", "temporal": " on a Temporal cluster"}
SHOWN = 20
SHOWN_IN_LINE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One figure: the value of the file and the value that was found."""

    name: str
    expected: Any
    seen: Any

    @property
    def ok(self) -> bool:
        """True if both are equal."""
        return bool(self.expected == self.seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCompared:
    """A figure that this play cannot compare, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fires:
    """The slots of a play by outcome, and the reports that their runs wrote."""

    slots: int = 0
    started: int = 0
    skipped: int = 0
    reports: int = 0

    @property
    def text(self) -> str:
        """All numbers, for people."""
        return f"{self.slots:,} slots: {self.started:,} started, {self.skipped:,} skipped; {self.reports:,} reports"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(ABC):
    """One day, played in one way (``flow``)."""

    flow: ClassVar[str]
    title: ClassVar[str]
    answers: ClassVar[str]  # names the answers whose waiting time is measured

    day: Day
    backend: str = "tables"
    visits: Sequence[Visit] = ()
    checks: Sequence[Check] = ()
    not_compared: Sequence[NotCompared] = ()
    provider: dict[str, Any] | None = None
    seconds: float = 0.0
    speed: float = 1.0
    kills: Sequence[Kill] = ()
    kills_wanted: int = 0
    chaos_problem: str = ""
    staff_problems: Sequence[str] = ()
    fires: Fires = Fires()
    dropped: int = 0  # results of activities for which the runs no longer waited

    @property
    def code(self) -> int:
        """The exit code of the command: a difference outranks malformed lines."""
        troubled = any(visit.problem for visit in self.visits) or bool(self.staff_problems)
        if troubled or not all(check.ok for check in self.checks) or len(self.kills) < self.kills_wanted:
            return DIFFERENT
        return MALFORMED if self.day.problems else RECONCILED

    def as_dict(self) -> dict[str, Any]:
        """Return the report for machines."""
        results = [visit.result for visit in self.visits if visit.result is not None]
        waits = sorted(wait for visit in self.visits for wait in visit.waits)
        return {
            "flow": self.flow,
            "backend": self.backend,
            "file": str(self.day.file),
            "code": self.code,
            "baskets": len(self.day.baskets),
            "completed": len(results),
            "charged": sum(1 for result in results if result["charge"]),
            "lines": sum(result["lines"] for result in results),
            "units": sum(result["units"] for result in results),
            "sales": amount(sum(cents(result["total"]) for result in results)),
            "provider": self.provider,
            f"{self.answers}_seconds": {"p50": _quantile(waits, 0.50), "p99": _quantile(waits, 0.99)},
            "sent_again": sum(visit.resent for visit in self.visits),
            "seconds": round(self.seconds, 3),
            "speed": round(self.speed, 3),
            "runs_per_second": round(len(results) / self.seconds, 3) if self.seconds else 0.0,
            "checks": [{**asdict(check), "ok": check.ok} for check in self.checks],
            "not_compared": [asdict(figure) for figure in self.not_compared],
            "malformed": [asdict(problem) for problem in self.day.problems],
            "skipped": self.day.skipped,
            "troubled": [
                {"basket": visit.basket.id, "problem": visit.problem} for visit in self.visits if visit.problem
            ],
            "kills": [asdict(kill) for kill in self.kills],
            "kills_wanted": self.kills_wanted,
            "retried_charges": sum(1 for result in results if result["charge"] and result["charge"]["attempt"] > 1),
            "staff_problems": list(self.staff_problems),
            "schedules": asdict(self.fires),
            "dropped": self.dropped,
            **self._own_facts(results),
        }

    @abstractmethod
    def _own_facts(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the facts of this flow alone, for machines."""

    @abstractmethod
    def _own_rows(self, facts: dict[str, Any]) -> list[tuple[str, str]]:
        """Return the rows of this flow alone, for people."""

    def text(self) -> str:
        """Return the report for people. If the day does not reconcile, what differs comes first."""
        figures, differences = [*self._figures(), *self._chaos()], [*self._differences()]
        parts = [*differences, *figures] if self.code == DIFFERENT else [*figures, *differences]
        return "\n".join([*parts, *self._problems(), self._verdict()])

    def _figures(self) -> Iterator[str]:
        facts = self.as_dict()
        provider = facts["provider"] or {}
        outcomes = ", ".join(f"{number} {name}" for name, number in provider.get("outcomes", {}).items())
        waited = facts[f"{self.answers}_seconds"]
        rows = [
            ("baskets completed", f"{facts['completed']:,} of {facts['baskets']:,}"),
            ("baskets charged", f"{facts['charged']:,}"),
            ("lines", f"{facts['lines']:,}"),
            ("units", f"{facts['units']:,}"),
            ("sum of sales", f"{Decimal(facts['sales']):,}"),
            ("provider calls", f"{provider.get('calls', 0):,} ({outcomes})"),
            (
                "provider repeats",
                f"{provider.get('repeats', 0):,}, charges that took several attempts: {facts['retried_charges']}",
            ),
            ("provider charges", f"{provider.get('charges', 0):,}, {provider.get('doubles', 0)} double"),
            *self._own_rows(facts),
            ("schedules", self.fires.text),
            ("dropped results", f"{self.dropped:,} of activities, for which the runs no longer waited"),
            ("sent again", f"{facts['sent_again']:,} requests, with the same ids"),
            (self.answers, f"p50 {waited['p50'] * 1000:.1f} ms, p99 {waited['p99'] * 1000:.1f} ms"),
            (
                "time",
                f"{facts['seconds']:.1f} s, {facts['runs_per_second']:.1f} runs/s, the day {facts['speed']:,.0f} times as fast",
            ),
        ]
        yield f"The day in {self.day.file}, {self.title}{BACKENDS[self.backend]}"
        yield from (f"  {name:<18} {text}" for name, text in rows)

    def _chaos(self) -> Iterator[str]:
        for kill in self.kills:
            yield f"Killed worker process {kill.pid} (epoch {kill.epoch}) at {kill.at:.1f} s. It was running:"
            for held in kill.held:
                again = f"run again as attempt {held.again}" if held.again else "not seen again"
                yield f"  {held.activity} of {held.run}, attempt {held.attempt}: {again}"

    def _differences(self) -> Iterator[str]:
        if len(self.kills) < self.kills_wanted:
            yield f"DIFFERENCE: {len(self.kills)} kills instead of {self.kills_wanted}. {self.chaos_problem}".rstrip()
        for check in self.checks:
            if not check.ok:
                yield f"DIFFERENCE: {check.name}: {_short(check.seen)}; the file has {_short(check.expected)}"
        troubled = [visit for visit in self.visits if visit.problem]
        yield from (f"NOT COMPARED: {figure.name}: {figure.reason}" for figure in self.not_compared)
        yield from (f"TROUBLE: {problem}" for problem in self.staff_problems)
        for visit in troubled[:SHOWN]:
            yield f"TROUBLE: basket {visit.basket.id}: {visit.problem}"
        if len(troubled) > SHOWN:
            yield f"TROUBLE: and {len(troubled) - SHOWN} more baskets"

    def _problems(self) -> Iterator[str]:
        for problem in self.day.problems:
            basket = f"; basket {problem.basket} was not started" if problem.basket else ""
            yield f"MALFORMED: {self.day.file}:{problem.line}: {problem.reason}{basket}"

    def _verdict(self) -> str:
        match self.code:
            case 0:
                left = f" {len(self.not_compared)} were not compared." if self.not_compared else ""
                return f"All {len(self.checks)} figures match the file.{left}"
            case 2:
                return (
                    f"{len(self.day.problems)} malformed lines; all {len(self.checks)} figures match the other baskets."
                )
            case _:
                return "The day does not reconcile."


@dataclass(frozen=True, slots=True, kw_only=True)
class CartReport(Report):
    """The report of carts, filled line by line."""

    flow = "cart"
    title = "as carts"
    answers = "update"

    def _own_facts(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        by = [result["confirmed_by"] for result in results]
        return {"confirmed": {name: by.count(name) for name in ("customer", "timeout")}}

    def _own_rows(self, facts: dict[str, Any]) -> list[tuple[str, str]]:
        confirmed = facts["confirmed"]
        return [("confirmed by", f"customer {confirmed['customer']:,}, timeout {confirmed['timeout']:,}")]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderReport(Report):
    """The report of orders, each a graph."""

    flow = "graph"
    title = "as orders"
    answers = "start"

    reported: int = 0
    repeated: int = 0

    def _own_facts(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        reviewed = sum(1 for result in results if result["reviewed"])
        approved = sum(1 for result in results if result["approved_by"])
        return {
            "review": {
                "reviewed": reviewed,
                "approved": approved,
                "overdue": reviewed - approved,
            },
            "webhooks": {"delivered": self.reported, "repeated": self.repeated},
            "invoices": len({result["invoice"] for result in results}),
        }

    def _own_rows(self, facts: dict[str, Any]) -> list[tuple[str, str]]:
        review, hooks = facts["review"], facts["webhooks"]
        return [
            (
                "reviewed",
                f"{review['reviewed']:,} above the limit: {review['approved']:,} approved, {review['overdue']:,} overdue",
            ),
            ("webhooks", f"{hooks['delivered']:,} parcels delivered, {hooks['repeated']:,} reported twice"),
            ("invoices", f"{facts['invoices']:,}"),
        ]


def worst(codes: Iterable[int]) -> int:
    """Return the exit code of several reports: a difference outranks malformed lines."""
    found = set(codes)
    return next((code for code in (DIFFERENT, MALFORMED) if code in found), RECONCILED)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that is at least as large as ``share`` of all."""
    return round(ordered[max(math.ceil(share * len(ordered)) - 1, 0)], 6) if ordered else 0.0


def _short(value: Any) -> str:
    if isinstance(value, list):
        return (
            f"{len(value)} ({', '.join(map(str, value[:SHOWN_IN_LINE]))}{' …' if len(value) > SHOWN_IN_LINE else ''})"
            if value
            else "none"
        )
    return f"{value:,}" if isinstance(value, int) else str(value)
