"""Whether all of it adds up, when everything is over."""

from __future__ import annotations

import sqlite3
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.contrib.auth import get_user_model
from django.db.models import Count, F, QuerySet

from example_project.shop.models import Stock, StockMovement
from temporalex_django.conf import codec
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.models import (
    ActivityTask,
    BulkJob,
    Chain,
    HistoryEvent,
    HumanTask,
    Instance,
    Message,
    SwitchedOff,
    Worker,
)
from tests.support.processes import MANAGE

if TYPE_CHECKING:
    from tests.soak.desk import Desk
    from tests.soak.tales import Tale

#: The death in which an activity is lost that was alone in the workers that died.
_DEATHS = 3
#: What the last attempt fails with: its worker, or its connection, was taken from it.
_TAKEN = ("WorkerLost", "OperationalError", "InterfaceError")
_DONE = ("completed", "terminated", "continued_as_new")


class Ledgers:
    """What the world knows: the provider's books, and files with effects, which are counted by their keys."""

    def __init__(self, files: Sequence[Path], effects: Path) -> None:
        self._files = files
        self.effects = Counter(line.split()[1] for line in effects.read_text().splitlines())

    @cached_property
    def _booked(self) -> dict[str, dict[str, list[int]]]:
        found: dict[str, dict[str, list[int]]] = {}
        for file in self._files:
            with sqlite3.connect(file) as db:
                for operation, reference, cents in db.execute("select operation, reference, cents from booking"):
                    found.setdefault(reference, {"charge": [], "refund": []})[operation].append(cents)
        return found

    def of(self, reference: str) -> dict[str, list[int]]:
        """Charges and refunds of a purchase, in cents."""
        return self._booked.get(reference, {"charge": [], "refund": []})


class Books:
    """``wrong``: what does not add up, in words. ``lost``: runs that an activity of theirs was lost to, by policy."""

    def __init__(self, desk: Desk, tales: Sequence[Tale], ledgers: Ledgers) -> None:
        self.desk = desk
        self.tales = tales
        self.ledgers = ledgers
        self.lost: set[Any] = set()
        self.early: set[Any] = set()  # those of them that were given up sooner than that
        self.ends: Counter[tuple[Any, int]] = Counter()
        self._read_ends()

    def _read_ends(self) -> None:
        ends = HistoryEvent.objects.filter(kind__in=["ActivityCompleted", "ActivityFailed"])
        for run, kind, stored in ends.values_list("run_id", "kind", "attributes").iterator():
            said = stored if isinstance(stored, dict) else codec().decode(bytes(stored))
            self.ends[run, said["seq"]] += 1
            if kind == "ActivityFailed" and said.get("type") in _TAKEN:
                self.lost.add(run)
                self.early |= {run} if said["attempts"] < _DEATHS else set()

    def lost_by_workflow(self) -> Counter[str]:
        return Counter(Instance.objects.filter(pk__in=self.lost).values_list("workflow", flat=True))

    def wrong(self, env: dict[str, str]) -> Iterator[str]:
        yield from self.desk.wrong
        yield from self._messages()
        yield from self._runs()
        yield from self._effects()
        yield from self._orphans()
        yield from _said("a history does not replay", *_unreplayed(env))

    def _messages(self) -> Iterator[str]:
        yield from _said("updates without an answer", *self.desk.open())
        twice = Message.objects.filter(request_id__isnull=False).values("chain", "request_id").annotate(n=Count("pk"))
        yield from _said("a message is there twice", *twice.filter(n__gt=1))
        unread = Message.objects.filter(settled=False).exclude(chain__closed=True)
        yield from _said("messages that are not accounted for", *unread.values_list("chain_id", "kind", "name"))

    def _runs(self) -> Iterator[str]:
        stuck = Instance.objects.exclude(status__in=CLOSED_STATUSES)
        yield from _said("stuck runs", *stuck.values_list("workflow", "workflow_id", "status", "blocked"))
        odd = Instance.objects.filter(status__in=CLOSED_STATUSES).exclude(status__in=_DONE).exclude(pk__in=self.lost)
        yield from _said("runs that did not complete", *((r.workflow_id, r.status, r.closing_value) for r in odd))
        for tale in self.tales:
            run = Instance.objects.filter(workflow_id=tale.run).order_by("pk").last()
            if run is None:
                yield f"{tale.of} {tale.run} is not there"
            elif run.status in CLOSED_STATUSES and (run.pk not in self.lost or tale.judges_lost):
                yield from (f"{tale.of} {tale.run}: {what}" for what in tale.wrong(run, self.ledgers))

        early = Instance.objects.filter(pk__in=self.early).exclude(workflow="AtMostOnce")
        yield from _said("activities were given up too soon", *early.values_list("workflow", "workflow_id"))

    def _effects(self) -> Iterator[str]:
        yield from _said("effects with two recorded results", *(key for key, n in self.ends.items() if n > 1))
        balances = get_user_model().objects.filter(username__startswith="account").values_list("username", "last_name")
        moved: Counter[str] = Counter()
        for run in Instance.objects.filter(workflow="Transfer"):
            moved[run.input["source"]] -= run.input["amount"]
            moved[run.input["target"]] += run.input["amount"] if run.status == "completed" else 0
        yield from _said("accounts with another balance", *(a for a, b in balances if int(b or 0) != moved[a]))
        booked: Counter[str] = Counter()
        for kind, product, units in StockMovement.objects.values_list("kind", "product_id", "quantity"):
            booked[product] += units if kind == "sale" else -units
        stocks = Stock.objects.all()
        yield from _said("stocks with other bookings", *(s for s in stocks if s.booked != booked[s.pk]))
        yield from _said("stocks that were booked on one side", *stocks.exclude(on_hand=-F("booked")))

    def _orphans(self) -> Iterator[str]:
        runs, chains = Instance.objects.values("pk"), Chain.objects.values("pk")
        left: dict[str, QuerySet[Any]] = {
            "activities are left": ActivityTask.objects.all(),
            "events without a run": HistoryEvent.objects.exclude(run_id__in=runs),
            "chains without a run": Chain.objects.exclude(pk__in=Instance.objects.values("chain_id")),
            "runs without a chain": Instance.objects.exclude(chain_id__in=chains),
            "messages of no chain": Message.objects.exclude(chain_id__in=chains),
            "human tasks without a run": HumanTask.objects.exclude(run_id__in=runs),
            "open human tasks": HumanTask.objects.open(),
            "bulk jobs that are not over": BulkJob.objects.exclude(state="done"),
            "switches": SwitchedOff.objects.all(),
            "workers are left": Worker.objects.all(),
        }
        for what, rows in left.items():
            yield from _said(what, *rows.values_list()[:5])


def _unreplayed(env: dict[str, str]) -> Iterator[str]:
    command = [*MANAGE, "temporalex", "replay"]
    replayed = subprocess.run(command, env=env, check=False, capture_output=True, text=True)
    if replayed.returncode:
        yield f"{replayed.stdout[-1000:]}{replayed.stderr[-1000:]}"


def _said(what: str, *rows: object) -> Iterator[str]:
    if rows:
        yield f"{what}: {len(rows)}, such as {rows[:5]}"
