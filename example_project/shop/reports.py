"""The reports that close the books: every booking of stock and every invoice is in one report.

Models are imported where they are used, as in activities.py.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from temporalex_django import Ok, Workflow, activity, activity_context, api


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDay:
    """The business day of a report, such as "2026-03-29"."""

    day: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """The day to close, and the time of the slot that started the report; None if a person started it."""

    day: str
    slot: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTotals:
    """The totals of a report: bookings of stock, units sold less units returned, invoices and their sum in cents."""

    bookings: int
    units: int
    invoices: int
    cents: int


class NightlyReport(Workflow):
    """Closes the books: what was sold since the last report is in this one."""

    async def run(self, args: ReportDay) -> Ok[dict[str, Any]]:
        """Write one report, and return its totals."""
        totals = await close_books(Closing(day=args.day, slot=api.info().scheduled_for))
        return Ok({"day": args.day, **asdict(totals)})


@activity(atomic=True)
def close_books(closing: Closing) -> ReportTotals:
    """Write the report, exactly once: in one transaction with the next step of the run.

    The run that updates a booking or an invoice first has it. Another report that runs at the same time waits for the
    row, and leaves it out.
    """
    from django.db.models import Count, Q, Sum  # noqa: PLC0415 - see the top

    from example_project.shop.models import Invoice, SalesReport, StockMovement  # noqa: PLC0415

    report = SalesReport.objects.create(run_id=activity_context().run_id, day=closing.day, slot=closing.slot)
    # Always in the same order, so that two reports wait for each other and do not deadlock.
    StockMovement.objects.filter(report=None).update(report=report)
    Invoice.objects.filter(report=None).update(report=report)
    # Counted afterwards: the rows that this report got, and not those that it looked for.
    booked = report.movements.aggregate(
        bookings=Count("pk"),
        sold=Sum("quantity", filter=Q(kind=StockMovement.Kind.SALE), default=0),
        returned=Sum("quantity", filter=Q(kind=StockMovement.Kind.RETURN), default=0),
    )
    invoiced = report.invoice_rows.aggregate(invoices=Count("pk"), sum=Sum("cents", default=0))
    totals = ReportTotals(
        bookings=booked["bookings"],
        units=int(booked["sold"] - booked["returned"]),
        invoices=invoiced["invoices"],
        cents=int(invoiced["sum"]),
    )
    SalesReport.objects.filter(pk=report.pk).update(**asdict(totals))
    return totals
