"""The manager of the shop: makes a schedule in the admin, and closes the books at the end of the day."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from example_project.replay.browser import Browser
from example_project.replay.rest import LostAnswer
from example_project.shop.reports import NightlyReport
from example_project.shop.schedules import NIGHTLY, business_day
from temporalex_django.models import Schedule, ScheduleSlot

if TYPE_CHECKING:
    from collections.abc import Callable

    from example_project.replay.browser import Page

#: The schedule that the manager makes, and its seconds between two reports.
SALES_SO_FAR = "sales-so-far"
EVERY = 2
#: After the day it is changed, so that it does not fill the database while the shop keeps running.
AFTERWARDS = "1 h"
ADMIN = "/admin/temporalex_django/schedule/"
CONSOLE = "/admin/temporalex_django/instance/console/schedules/"
TRIES = 5
LOOK_EVERY = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The name and the password of a user."""

    user: str
    password: str


class Manager:
    """The manager, in their browser. ``problem`` says why they gave up, if they did.

    ``opened_at`` and ``closed_at`` are the times between which the schedule fired.
    """

    def __init__(self, base_url: str, *, credentials: Credentials, patience: float) -> None:
        self.problem = ""
        self.opened_at = self.closed_at = datetime.now(UTC)
        self._browser = Browser(base_url)
        self._credentials = credentials
        self._patience = patience

    def open_day(self) -> None:
        """Log in, and have the sales so far reported every few seconds."""
        self._attempt(self._open_day)

    def close_day(self) -> None:
        """Wait for the report after the last sale, slow the schedule down, and trigger the nightly report."""
        if not self.problem:
            self._attempt(self._close_day)

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (LostAnswer, LookupError, RuntimeError) as error:
            self.problem = f"manager: {type(error).__name__}: {error}"

    def _open_day(self) -> None:
        page = self._browser.submit(
            self._browser.open("/admin/login/").form("username"),
            username=self._credentials.user,
            password=self._credentials.password,
        )
        if page.url.endswith("/login/"):
            message = f"login as {self._credentials.user}: {page.problem}"
            raise RuntimeError(message)
        self.opened_at = self._save(f"{EVERY} s")

    def _close_day(self) -> None:
        self._await_slot_after(datetime.now(UTC))
        self.closed_at = self._save(AFTERWARDS)
        self._trigger(NIGHTLY.name, reason="the day is over")

    def _save(self, every: str) -> datetime:
        """Create the schedule or change it, and return the time of this change, after which its new slots come."""
        existing = Schedule.objects.filter(name=SALES_SO_FAR).first()
        values = {"every": every, "arguments_function": business_day.__name__, "tz": NIGHTLY.table.zone}
        path = f"{ADMIN}add/?workflow={NightlyReport.name}"
        if existing is None:
            values["name"] = SALES_SO_FAR
        else:
            path = f"{ADMIN}{existing.pk}/edit/"
        self._submit(path, form="every", values=values)
        changed_at: datetime = Schedule.objects.get(name=SALES_SO_FAR).changed_at
        return changed_at

    def _trigger(self, name: str, *, reason: str) -> None:
        key = Schedule.objects.get(name=name).pk
        self._submit(f"{CONSOLE}{key}/", form="/trigger/", values={"reason": reason})

    def _submit(self, path: str, *, form: str, values: dict[str, str]) -> Page:
        """Fill in the form of a page and submit it. A form has a token, so it can be submitted again."""
        filled = self._browser.open(path).form(form)
        for number in range(1, TRIES + 1):
            try:
                page = self._browser.submit(filled, **values)
            except LostAnswer:
                if number == TRIES:
                    raise
            else:
                if page.url != filled.action:  # saved: the admin shows another page
                    return page
                message = f"{path}: {page.problem}"
                raise RuntimeError(message)
        raise AssertionError

    def _await_slot_after(self, moment: datetime) -> None:
        """Wait until the schedule has fired for a time after ``moment``. Raises ``RuntimeError``."""
        until = time.monotonic() + self._patience
        slots = ScheduleSlot.objects.filter(schedule__name=SALES_SO_FAR, cause="time", at__gte=moment)
        while not slots.exists():
            if time.monotonic() > until:
                message = f"{SALES_SO_FAR} has not fired for {self._patience:g} s"
                raise RuntimeError(message)
            time.sleep(LOOK_EVERY)
