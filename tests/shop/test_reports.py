"""The reports that close the books: each row is in one of them, and the books of a play notice when one is not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from example_project.replay.browser import Page
from example_project.replay.report_books import ReportBooks
from example_project.shop.models import Invoice, SalesReport, StockMovement
from example_project.shop.reports import NightlyReport, ReportDay
from example_project.shop.schedules import NIGHTLY
from temporalex_django.models import ScheduleSlot
from temporalex_django.testing import DjangoEnvironment


def sell(number: int, *, units: int, cents: int) -> None:
    StockMovement.objects.create(
        run_id=f"run-{number}", cart_id=f"c{number}", product_id="1", kind="sale", quantity=units
    )
    Invoice.objects.create(order=f"{number}", run_id=f"run-{number}", customer="ann", cents=cents)


@pytest.mark.django_db
def test_a_sale_is_in_the_report_that_comes_first_and_in_no_other() -> None:
    env = DjangoEnvironment()
    env.schedule(NIGHTLY)
    sell(1, units=3, cents=500)
    StockMovement.objects.create(run_id="r", cart_id="c", product_id="1", kind="return", quantity=1)

    env.advance(hours=2)
    sell(2, units=4, cents=700)
    by_hand = env.start(NightlyReport, ReportDay(day="2026-01-01")).result()
    env.advance(days=1)

    slots = env.schedules.slots(NIGHTLY.name)
    reports = SalesReport.objects.order_by("pk")
    assert [(r.day.isoformat(), r.slot, r.bookings, r.units, r.invoices, r.cents) for r in reports] == [
        ("2025-12-31", slots[0].at, 2, 2, 1, 500),
        ("2026-01-01", None, 1, 4, 1, 700),
        ("2026-01-01", slots[1].at, 0, 0, 0, 0),
    ]
    assert by_hand["units"] == 4
    assert {row.report_id for row in StockMovement.objects.all()} == {reports[0].pk, reports[1].pk}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("damage", "figure"),
    [
        (lambda: None, None),
        (lambda: ScheduleSlot.objects.all().delete(), "runs of the slots"),
        (lambda: SalesReport.objects.create(run_id="twice", day="2026-01-01"), "reports of the slots"),
        (lambda: SalesReport.objects.update(slot=datetime(2027, 1, 1, tzinfo=UTC)), "slots and reports that differ"),
        (lambda: StockMovement.objects.update(report=None), "bookings in the reports"),
        (lambda: SalesReport.objects.update(units=99), "reports whose totals differ from their rows"),
        (lambda: Invoice.objects.update(report=None), "invoices in the reports"),
    ],
)
def test_the_books_of_a_play_notice_what_is_missing_or_double(damage: Any, figure: str | None) -> None:
    env = DjangoEnvironment()
    env.schedule(NIGHTLY)
    books = ReportBooks()
    manager: Any = SimpleNamespace(opened_at=env.clock, closed_at=env.clock + timedelta(seconds=1))
    sell(1, units=3, cents=500)
    env.schedules.trigger(NIGHTLY.name)

    damage()
    books.wait(manager, patience=0)
    checks = [
        *books.checks(manager, movements=StockMovement.objects.all(), units=3),
        *books.invoice_checks(Invoice.objects.all(), number=1, cents=500),
    ]

    wrong = [check.name for check in checks if not check.ok]
    assert wrong == [] if figure is None else figure in wrong


PAGE = """
<form action="/logout/"><input type="hidden" name="csrf" value="1"></form>
<form method="post"><input type="hidden" name="csrf" value="2"><input name="name" value="a &amp; b">
<input type="checkbox" name="off" value="1"><input type="checkbox" name="on" value="1" checked>
<textarea name="cron">30 2 * * *</textarea>
<select name="overlap"><option value="skip">Skip</option><option value="all" selected>All</option></select>
<select name="tz"><option value="UTC">UTC</option><option value="Europe/Berlin">Berlin</option></select>
<ul class="errorlist" id="e"><li>It needs <b>five</b> fields.</li></ul>
<input type="submit" name="_save" value="Save"></form>
"""


def test_a_form_is_filled_in_as_a_browser_would() -> None:
    page = Page(url="http://shop/admin/add/?workflow=x", status=200, html=PAGE)

    form = page.form("cron")

    assert form.action == page.url
    assert form.fields == {
        "csrf": "2",
        "name": "a & b",
        "on": "1",
        "cron": "30 2 * * *",
        "overlap": "all",
        "tz": "UTC",
    }
    assert page.form("/logout/").fields == {"csrf": "1"}
    assert page.problem == "It needs five fields."
    with pytest.raises(LookupError, match="has no form 'every': It needs five fields"):
        page.form("every")
