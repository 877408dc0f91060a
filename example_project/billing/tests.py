"""Tests of billing: the workflows in memory, and the app on the database."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from django.contrib.auth.models import Permission, User
from django.core import mail
from django.test import SimpleTestCase, TestCase
from django.urls import reverse

from example_project.billing import activities, views
from example_project.billing.gateway import CardDeclined
from example_project.billing.models import Bill, Subscription
from example_project.billing.schedules import MONTHLY_REVENUE
from example_project.billing.values import Account, Farewell, PlanChange, later
from example_project.billing.workflows import Refunding, Subscribing, change_plan
from temporalex_django import errors
from temporalex_django.testing import (
    DjangoEnvironment,
    WorkflowEnvironment,
    assert_completed,
    assert_fires,
    assert_waiting_for,
)

TRIAL_ENDS = datetime(2026, 1, 15, tzinfo=UTC)


# Memory begins here.
class InMemoryTests(SimpleTestCase):
    """The workflow of a subscription without a database: fakes replace the activities."""

    def setUp(self) -> None:
        self.env = WorkflowEnvironment()  # its clock begins on 1 January 2026
        self.bills: list[Decimal] = []
        self.done: list[str] = []
        self.declines = 0
        self.env.mock(activities.charge_card, self.charge)
        self.env.mock(activities.issue_bill, self.issue)
        self.env.mock(activities.pay_back, lambda charge, amount: self.done.append(f"back {amount}"))
        self.env.mock(activities.open_access, lambda service, number, until: self.done.append(f"open {service}"))
        self.env.mock(activities.close_access, lambda number: self.done.append("close"))
        self.env.mock(activities.book_payment, lambda bill, charge: self.done.append(f"booked {charge}"))
        self.env.mock(activities.mail, lambda to, subject, body: self.done.append(subject))
        self.env.mock(activities.close_subscription, lambda number, status: self.done.append(status))
        account = Account(subscription=7, customer="ada@example.org", price=Decimal("30.00"), trial_ends=TRIAL_ENDS)
        self.run_ = self.env.start(Subscribing, account, value=7)

    def issue(self, number: int, month: int, amount: Decimal) -> int:
        self.bills.append(amount)
        return month

    def charge(self, due: Any) -> str:
        if self.declines:
            self.declines -= 1
            raise CardDeclined("no cover")
        return f"ch-{due.bill}"

    def test_the_plan_changes_in_the_middle_of_a_month(self) -> None:
        self.assertEqual(self.run_.query("standing")["stage"], "trial")
        self.env.advance(days=14)
        self.assertEqual(self.bills, [Decimal("30.00")])
        self.env.advance(timedelta(days=15, hours=12))  # half of the 31 days until 15 February
        answer = self.run_.update(change_plan, Decimal("50.00"))
        self.assertEqual(answer, PlanChange(extra=Decimal("10.00"), price=Decimal("50.00"), since=self.env.now()))
        with self.assertRaisesMessage(errors.UpdateRejected, "whole cents"):
            self.run_.update(change_plan, Decimal("0.005"))
        self.assertEqual(self.run_.query("standing")["extra"], "10.00")
        self.env.advance(days=60)
        self.assertEqual(self.bills, [Decimal("30.00"), Decimal("60.00"), Decimal("50.00")])
        self.assertEqual(len(self.run_.run_ids), 4)  # the trial and three months, each with its own history

    def test_it_is_cancelled(self) -> None:
        self.env.advance(days=20)
        self.assertEqual(self.run_.update("cancel"), Farewell(until=datetime(2026, 2, 15, tzinfo=UTC)))
        self.env.advance(days=30)
        assert_completed(self.run_, "cancelled")
        self.assertEqual((self.bills, self.done[-2:]), ([Decimal("30.00")], ["close", "cancelled"]))

    def test_a_deleted_account_leaves_nothing_open(self) -> None:
        self.run_.cancel("the account was deleted")
        self.assertEqual((self.run_.status, self.done), ("cancelled", ["close", "cancelled"]))

    def test_the_customer_is_reminded_and_pays(self) -> None:
        self.declines = 2
        self.env.advance(days=17)
        self.assertEqual(self.done, ["Reminder 1", "Reminder 2"])
        assert_waiting_for(self.run_, timer="The customer pays", signal="paid")
        self.assertEqual(self.run_.query("standing")["reminders"], 2)
        self.run_.signal("paid", {"bill": 5, "charge": "another bill"})
        self.run_.signal("paid", {"bill": 1, "charge": "by hand"})
        self.assertEqual(self.done[-1], "booked by hand")
        self.assertEqual(self.run_.query("standing")["stage"], "active")

    def test_nobody_pays_while_the_workers_are_down(self) -> None:
        self.declines = 99
        self.env.advance(days=14)
        self.env.outage(days=20)  # longer than the 15 days after which the subscription ends
        assert_completed(self.run_, "unpaid")
        self.assertEqual(self.done, ["Reminder 1", "Reminder 2", "Reminder 3", "close", "unpaid"])

    def test_a_payment_during_an_outage_counts(self) -> None:
        self.declines = 99
        self.env.advance(days=14)
        with self.env.batch():
            self.run_.signal("paid", {"bill": 1, "charge": "in time"})
            self.env.outage(days=20)
        self.assertIn("booked in time", self.done)
        self.assertEqual(self.run_.status, "waiting")

    def test_money_is_given_back_if_a_service_does_not_open(self) -> None:
        def fails(service: str, number: int, until: datetime) -> None:
            raise OSError("the storage is full")

        self.env.mock(activities.open_access, fails)
        self.env.advance(timedelta(days=14, hours=6))
        self.assertEqual(self.done, ["close", "back 30.00", "Reminder 1"])


# Memory ends here.


class ApplicationTests(TestCase):
    """Views, mails and rows, with the virtual clock."""

    def setUp(self) -> None:
        self.env = self.enterContext(DjangoEnvironment())
        self.clerk = self.person("carla", "change_bill", "approve_refund", "start_instance")

    def person(self, name: str, *codenames: str) -> User:
        user = User.objects.create_user(name, is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        return user

    def post(self, name: str, *args: Any, **data: str) -> tuple[int, Any]:
        self.client.force_login(self.clerk)  # each time, since a session ends after two weeks of the virtual clock
        answer = self.client.post(reverse(f"billing:{name}", args=args), data)
        self.env.advance()
        return answer.status_code, answer.json()

    def subscribe(self, customer: str = "ada@example.org") -> Subscription:
        self.assertEqual(self.post("subscribe", customer=customer, price="30.00")[0], 201)
        return Subscription.objects.get(customer=customer)

    def provider(self, event: dict[str, Any], *, forged: bool = False) -> int:
        body = json.dumps(event).encode()
        headers = {views.SIGNATURE: "forged" if forged else views.signature(body)}
        answer = self.client.post(reverse("billing:provider"), body, content_type="application/json", headers=headers)
        self.env.advance()
        return answer.status_code

    def test_a_subscription_from_its_trial_to_its_end(self) -> None:
        subscription = self.subscribe()
        self.env.advance(days=14)
        self.env.advance(timedelta(days=15, hours=12))
        self.assertEqual(self.post("plan", subscription.pk, price="0")[0], 409)
        status, changed = self.post("plan", subscription.pk, price="50.00")
        self.assertEqual((status, changed["extra"], changed["since"]), (200, "10.00", "2026-01-30T12:00:00+00:00"))
        self.env.advance(days=16)
        self.assertEqual([str(bill.amount) for bill in subscription.bills.order_by("month")], ["30.00", "60.00"])
        self.assertEqual(self.post("cancel", subscription.pk), (200, {"until": "2026-03-15T00:00:00+00:00"}))
        self.env.advance(days=60)
        subscription.refresh_from_db()
        self.assertEqual((subscription.status, subscription.bills.count()), ("cancelled", 2))
        self.assertEqual(self.post("cancel", subscription.pk)[0], 409)
        assert_completed(Subscribing.get(subscription.pk), "cancelled")

    def test_the_provider_reports_a_payment(self) -> None:
        subscription = self.subscribe("broke@example.org")
        self.env.advance(days=15)
        self.assertEqual([message.subject for message in mail.outbox], ["Reminder 1"])
        bill = subscription.bills.get()
        event = {"id": "evt1", "subscription": subscription.pk, "bill": bill.pk, "charge": "ch-1"}
        self.assertEqual(self.provider(event, forged=True), 403)
        self.assertEqual(self.provider({**event, "bill": "much"}), 400)
        self.assertEqual(self.provider({**event, "subscription": 4711}), 404)
        self.assertEqual([self.provider(event), self.provider(event)], [204, 204])
        bill.refresh_from_db()
        self.assertEqual((bill.charge, bill.paid_at is not None), ("ch-1", True))

    def test_a_refund_needs_a_second_person(self) -> None:
        self.subscribe()
        self.env.advance(days=14)
        bill = Bill.objects.get()
        self.assertEqual(self.post("refund", bill.pk, amount="31.00", reason="too slow")[0], 409)
        self.assertEqual(self.post("refund", bill.pk, amount="20.00", reason="too slow")[0], 202)
        self.assertEqual(self.post("refund", bill.pk, amount="10.00", reason="again")[0], 409)
        run = Refunding.get(bill.pk)
        with self.assertRaises(errors.ActionNotPermitted):
            run.decide("approved", by=self.clerk)  # who asked for it may not approve it
        run.decide("approved", by=self.person("bea", "approve_refund"))
        self.env.advance()
        assert_completed(run, "refunded")
        bill.refresh_from_db()
        self.assertEqual((str(bill.refunded), mail.outbox[-1].subject), ("20.00", "Your refund"))

    def test_the_revenue_of_a_month_is_mailed(self) -> None:
        assert_fires(MONTHLY_REVENUE, [datetime(2026, 2, 1, 6, tzinfo=UTC)], after=later(TRIAL_ENDS, 0))
        self.env.schedule(MONTHLY_REVENUE)
        self.subscribe()
        self.env.advance(days=32)
        self.assertEqual(
            [message.body for message in mail.outbox if "Revenue" in message.subject], ["0.00 EUR", "30.00 EUR"]
        )
