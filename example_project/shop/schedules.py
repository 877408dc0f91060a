"""The schedules of the shop. People make others in the admin."""

from __future__ import annotations

from datetime import datetime, timedelta

from example_project.shop.reports import NightlyReport, ReportDay
from temporalex_django import Overlap, Schedule

#: A report that comes earlier in the day belongs to the day before.
DAY_BEGINS = timedelta(hours=4)


@Schedule.arguments_function
def business_day(slot: datetime) -> ReportDay:
    """Return the business day that a report at this wall-clock time closes."""
    return ReportDay(day=(slot.replace(tzinfo=None) - DAY_BEGINS).date().isoformat())


#: The books of a day are closed in the night after it, and in the morning if the shop's computers were off.
NIGHTLY = Schedule(
    "nightly-report",
    NightlyReport,
    cron="30 2 * * *",
    tz="Europe/Berlin",
    args=business_day,
    overlap=Overlap.SKIP,
    catch_up=timedelta(hours=12),
)
