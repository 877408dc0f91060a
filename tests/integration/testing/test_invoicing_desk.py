"""An invoicing desk in the virtual clock: claims, reminders, escalation, four eyes, and what comes too late."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group

from temporalex_django import errors
from temporalex_django.models import HumanTask
from temporalex_django.operations.base import Actor
from temporalex_django.operations.human_tasks.operations import Claim, Release
from temporalex_django.testing import DjangoEnvironment
from tests.support.invoices import ACCOUNTING, HEADS, InvoiceDesk
from tests.support.people import stored

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


def member(name: str, *groups: str, permissions: tuple[str, ...] = ()) -> Any:
    user = stored(name, *permissions)
    for group in groups:
        user.groups.add(Group.objects.get_or_create(name=group)[0])
    return user


def test_an_invoice_goes_through_the_desk() -> None:
    env = DjangoEnvironment()
    ann = member("ann", ACCOUNTING, permissions=("temporalex_django.start_instance",))
    bob, cleo, hilda = member("bob", ACCOUNTING), member("cleo", ACCOUNTING), member("hilda", HEADS)
    desk = env.start(InvoiceDesk, {"number": 4711, "total": 1200}, value="4711", by=ann)

    def titles(user: Any) -> list[str]:
        return [task.title for task in env.inbox(user)]

    asked = ["Approve invoice 4711 over 1200 EUR"]
    assert (titles(ann), titles(bob), titles(cleo), titles(hilda)) == ([], asked, asked, [])  # ann started it
    with pytest.raises(errors.FourEyes, match="ann"):
        desk.decide("approved", by=ann)

    env.advance(9 * HOUR)
    assert HumanTask.objects.get().reminders == 1
    task = HumanTask.objects.get()
    Claim(task, by=Actor(user=bob, source="rest")).execute()
    assert (titles(bob), titles(cleo)) == (asked, [])
    with pytest.raises(errors.HumanTaskClaimed, match="bob"):
        desk.decide("approved", by=cleo)
    with pytest.raises(errors.HumanTaskClaimed, match="bob"):
        Claim(task, by=Actor(user=cleo, source="rest")).execute()
    Release(task, by=Actor(user=bob, source="rest")).execute()

    with pytest.raises(errors.ActionNotPermitted, match="hilda"):
        desk.decide("approved", by=hilda)
    env.advance(16 * HOUR)  # nobody came to it within a day
    assert titles(hilda) == asked
    assert HumanTask.objects.get().escalated_at is not None
    desk.decide("approved", comment="paid at last", by=hilda)
    assert desk.result()["by"] == "hilda"
    with pytest.raises(errors.HumanTaskClosed, match="hilda decided 'approved'"):
        desk.decide("rejected", by=bob)
    assert (titles(bob), titles(hilda)) == ([], [])


def test_an_invoice_that_nobody_looks_at_is_overdue() -> None:
    env = DjangoEnvironment()
    bob = member("bob", ACCOUNTING)
    desk = env.start(InvoiceDesk, {"number": 1, "total": 5}, value="1")

    env.advance(timedelta(days=3))

    assert desk.result()["outcome"] == "overdue"
    row = HumanTask.objects.get()
    assert (row.ending, row.outcome, row.decided_by_name, row.reminders) == ("overdue", "", "", 8)
    assert env.inbox(bob) == []
    with pytest.raises(errors.HumanTaskClosed, match="nobody had decided"):
        desk.decide("approved", by=bob)
