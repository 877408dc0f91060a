"""The books of the reports that schedules start: slots, runs and reports of a play, compared with each other."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from django.db.models import Count, F, Q, Sum

from example_project.replay.manager import EVERY, SALES_SO_FAR
from example_project.replay.report import Check, Fires
from example_project.shop.models import Invoice, SalesReport, StockMovement
from example_project.shop.money import amount
from example_project.shop.reports import NightlyReport
from example_project.shop.schedules import NIGHTLY
from temporalex_django.models import Instance, ScheduleSlot

if TYPE_CHECKING:
    from datetime import datetime

    from django.db.models import QuerySet

    from example_project.replay.manager import Manager

LOOK_EVERY = 0.2


class ReportBooks:
    """The books of the reports of one play, opened before it."""

    def __init__(self) -> None:
        self._report = _newest(SalesReport.objects.all())
        self._slot = _newest(ScheduleSlot.objects.all())

    @property
    def _reports(self) -> QuerySet[SalesReport]:
        return SalesReport.objects.filter(pk__gt=self._report)

    @property
    def _slots(self) -> QuerySet[ScheduleSlot]:
        return ScheduleSlot.objects.filter(pk__gt=self._slot, schedule__name__in=[NIGHTLY.name, SALES_SO_FAR])

    @staticmethod
    def _runs(manager: Manager) -> Any:
        """Return the runs that schedules started in the play, whether or not a slot names them."""
        runs = Instance.objects.filter(workflow=NightlyReport.name, scheduled_for__isnull=False)
        return runs.filter(created_at__gte=manager.opened_at)

    def wait(self, manager: Manager, *, patience: float) -> None:
        """Wait until the runs of the play have ended, at most for ``patience`` seconds."""
        until = time.monotonic() + patience
        while self._runs(manager).open().exists() and time.monotonic() < until:
            time.sleep(LOOK_EVERY)

    def fires(self) -> Fires:
        """Return the slots and reports of the play."""
        by_outcome = dict(self._slots.values_list("outcome").annotate(Count("pk")))
        return Fires(
            slots=sum(by_outcome.values()),
            started=by_outcome.get("started", 0),
            skipped=by_outcome.get("skipped", 0),
            reports=self._reports.count(),
        )

    def checks(self, manager: Manager, *, movements: QuerySet[StockMovement], units: int) -> list[Check]:
        """Compare slots, runs and reports with each other, and the reports with the ``movements`` of the file."""
        fires = self.fires()
        slots = {(slot.run_id, slot.at) for slot in self._slots.filter(outcome="started")}
        runs = {(run.pk, run.scheduled_for) for run in self._runs(manager).filter(status="completed")}
        reports = {(report.run_id, report.slot) for report in self._reports}
        in_reports = movements.filter(report__in=self._reports)
        return [
            Check(
                name="slots of the manager's schedule",
                expected=self._expected_slots(manager),
                seen=self._manager_slots(manager).count(),
            ),
            Check(name="slots of the nightly report", expected=1, seen=self._slots.filter(cause="trigger").count()),
            Check(
                name="slots that neither started nor were skipped",
                expected=0,
                seen=fires.slots - fires.started - fires.skipped,
            ),
            Check(name="runs of the slots", expected=fires.started, seen=len(runs)),
            Check(name="slots and runs that differ", expected=[], seen=_texts(slots ^ runs)),
            Check(name="reports of the slots", expected=fires.started, seen=fires.reports),
            Check(
                name="slots and reports that differ",
                expected=[],
                seen=_texts({(str(run), at) for run, at in slots} ^ reports),
            ),
            Check(name="bookings in the reports", expected=movements.count(), seen=in_reports.count()),
            Check(
                name="units in the reports",
                expected=units,
                seen=in_reports.aggregate(sum=Sum("quantity", default=0))["sum"],
            ),
            Check(name="reports whose totals differ from their rows", expected=[], seen=self._wrong_reports()),
        ]

    def invoice_checks(self, invoices: QuerySet[Invoice], *, number: int, cents: int) -> list[Check]:
        """Compare the invoices that the reports have with the file."""
        in_reports = invoices.filter(report__in=self._reports)
        sums = in_reports.aggregate(number=Count("pk"), cents=Sum("cents", default=0))
        return [
            Check(name="invoices in the reports", expected=number, seen=sums["number"]),
            Check(name="sum of the invoices in the reports", expected=amount(cents), seen=amount(int(sums["cents"]))),
        ]

    def _manager_slots(self, manager: Manager) -> QuerySet[ScheduleSlot]:
        slots = self._slots.filter(schedule__name=SALES_SO_FAR, cause="time")
        return slots.filter(at__gt=manager.opened_at, at__lte=manager.closed_at)

    def _expected_slots(self, manager: Manager) -> int:
        """Return the number of multiples of the interval from the save of the schedule to its last slot."""
        last = self._manager_slots(manager).order_by("-at").values_list("at", flat=True).first()
        return _multiples(last or manager.closed_at) - _multiples(manager.opened_at)

    def _wrong_reports(self) -> list[int]:
        sold = Sum("movements__quantity", filter=Q(movements__kind=StockMovement.Kind.SALE), default=0)
        returned = Sum("movements__quantity", filter=Q(movements__kind=StockMovement.Kind.RETURN), default=0)
        movements = self._reports.annotate(rows=Count("movements"), sum=sold - returned)
        invoices = self._reports.annotate(rows=Count("invoice_rows"), sum=Sum("invoice_rows__cents", default=0))
        wrong = {
            *movements.exclude(bookings=F("rows"), units=F("sum")).values_list("pk", flat=True),
            *invoices.exclude(invoices=F("rows"), cents=F("sum")).values_list("pk", flat=True),
        }
        return sorted(wrong)


def _multiples(moment: datetime) -> int:
    return math.floor(moment.timestamp() / EVERY)


def _newest(rows: QuerySet[Any]) -> int:
    newest = rows.order_by("-pk").first()
    return newest.pk if newest else 0


def _texts(pairs: set[Any]) -> list[str]:
    return sorted(f"{run} {at}" for run, at in pairs)
