"""Tests of the invoices: the workflows alone in memory, then the application with a virtual clock."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from django.contrib.auth.models import Permission, User
from django.core import mail
from django.test import SimpleTestCase, TestCase
from django.urls import reverse
from rest_framework.test import APIClient

from example_project.invoices import activities, views
from example_project.invoices.graphs import Book, Remind, giving_up, late_money
from example_project.invoices.models import Invoice, WriteOff
from example_project.invoices.values import Paid, Terms
from example_project.invoices.workflows import Invoicing, InvoicingGraph
from temporalex_django import Event, errors
from temporalex_django.testing import (
    DjangoEnvironment,
    WorkflowEnvironment,
    assert_completed,
    assert_waiting_for,
)

TERMS = Terms(number="4711", customer="ada@example.org", total=Decimal("100.00"))


def payment(reference: str, amount: str) -> Paid:
    return Paid(reference=reference, amount=Decimal(amount))


class InMemoryTests(SimpleTestCase):
    """The workflows without a database: fakes replace the activities."""

    def setUp(self) -> None:
        self.env = WorkflowEnvironment()
        self.booked: list[tuple[str, bool]] = []
        self.reminded: list[tuple[int, Decimal]] = []
        self.env.mock(
            activities.book_payment, lambda number, paid, *, settled: self.booked.append((paid.reference, settled))
        )
        self.env.mock(activities.send_reminder, lambda terms, which, due: self.reminded.append((which, due)))
        self.run_ = self.env.start(Invoicing, TERMS, value="4711")

    def test_it_is_paid_in_two_sums(self) -> None:
        self.assertEqual(self.run_.update("paid", payment("a", "60.00")), "40.00")
        with self.assertRaisesMessage(errors.UpdateRejected, "60.00 cannot be paid: 40.00 is open"):
            self.run_.update("paid", payment("b", "60.00"))
        for wrong, says in (
            (payment("a", "1.00"), "booked already"),
            (payment("b", "0.005"), "whole cents"),
            (payment("b", "NaN"), "cannot be paid"),
            (payment("b", "0"), "cannot be paid"),
            (payment("b" * 101, "1.00"), "1 to 100 characters"),
        ):
            with self.assertRaisesMessage(errors.UpdateRejected, says):
                self.run_.update("paid", wrong)
        self.env.advance(days=31)
        self.assertEqual(self.run_.update("paid", payment("c", "40.00")), "0.00")
        assert_completed(self.run_, {"outcome": "paid"})
        self.assertEqual(self.booked, [("a", False), ("c", True)])
        self.assertEqual(self.reminded, [(1, Decimal("40.00"))])

    def test_a_reminder_is_tried_again(self) -> None:
        def fails(terms: Terms, which: int, due: Decimal) -> None:
            raise OSError("the mail server is away")

        self.env.mock(activities.send_reminder, fails)
        self.env.advance(days=30)
        assert_waiting_for(self.run_, activity=activities.send_reminder)
        self.env.mock(activities.send_reminder, lambda terms, which, due: None)
        self.env.advance(minutes=5)
        assert_waiting_for(self.run_, timer="Waiting for the money", update="paid")

    def test_nobody_decides(self) -> None:
        self.env.advance(days=90)
        assert_waiting_for(self.run_, human_task="Write off 100.00 EUR of invoice 4711")
        self.env.advance(days=14)
        assert_completed(self.run_, {"outcome": "collected by others"})

    def test_the_graph_is_paid_after_a_reminder(self) -> None:
        booked: list[str] = []
        self.env.mock(Remind, lambda instance, config, context: Event("reminded"))

        def book(instance: Any, config: Any, context: Any) -> Event:
            booked.append(context.steps.late_money.reference)
            return Event("booked")

        self.env.mock(Book, book)
        terms = {"number": "4711", "customer": "ada@example.org", "total": "100.00"}
        run = self.env.start(InvoicingGraph, terms, value="4711")
        assert_waiting_for(run, event="paid", timer="money")
        self.env.advance(days=30)
        assert_waiting_for(run, event="paid", step=late_money)
        with self.assertRaisesMessage(errors.UpdateRejected, "100.00 is open and must be paid in one sum"):
            run.resume("paid", data={"reference": "g", "amount": "0.01"})
        with self.assertRaises(errors.PayloadError):
            run.resume("paid", data={"amount": "100.00"})
        run.resume("paid", data={"reference": "g", "amount": "100.00"})
        assert_completed(run)
        self.assertEqual(booked, ["g"])


class ApplicationTests(TestCase):
    """Views, mails and rows, with the virtual clock."""

    def setUp(self) -> None:
        self.env = self.enterContext(DjangoEnvironment())
        self.clerk = self.person("carla", "add_invoice", "book_payment")
        self.boss = self.person("bea", "write_off_invoice")

    def person(self, name: str, *codenames: str) -> User:
        user = User.objects.create_user(name, is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        return user

    def issue(self) -> Any:
        self.client.force_login(self.clerk)
        answer = self.client.post(
            reverse("invoices:desk"), {"number": "4711", "customer": "ada@example.org", "total": "100.00"}
        )
        self.assertRedirects(answer, reverse("invoices:desk"))
        self.env.advance()
        return Invoicing.get("4711")

    def bank(self, reference: str, amount: Any, *, invoice: str = "4711", forged: bool = False) -> tuple[int, Any]:
        body = json.dumps({"invoice": invoice, "reference": reference, "amount": amount}).encode()
        headers = {views.SIGNATURE: "forged" if forged else views.signature(body)}
        answer = self.client.post(reverse("invoices:bank"), body, content_type="application/json", headers=headers)
        return answer.status_code, answer.json()

    def test_the_bank_pays(self) -> None:
        run = self.issue()
        page = self.client.get(reverse("invoices:desk"))
        self.assertContains(page, "100.00")
        self.assertContains(page, "issued")
        self.assertEqual(self.bank("a", "60.00"), (200, {"open": "40.00"}))
        self.assertEqual(self.bank("a", "60.00"), (200, {"open": "40.00"}))  # the bank repeats it
        self.assertEqual(self.bank("b", "40.00")[0], 503)  # the first one is not booked yet: the bank has to repeat it
        self.env.advance()
        self.assertEqual(self.bank("b", "60.00")[0], 409)
        self.assertEqual(self.bank("b", "40.00", forged=True)[0], 403)
        self.assertEqual(self.bank("b", "40.00", invoice="0815")[0], 404)
        self.assertEqual(self.bank("b", "much")[0], 400)
        self.assertEqual(self.bank("b", "40.00"), (200, {"open": "0.00"}))
        self.env.advance()
        assert_completed(run, {"outcome": "paid"})
        invoice = Invoice.objects.get()
        self.assertEqual(invoice.status, Invoice.Status.PAID)
        self.assertEqual([str(one.amount) for one in invoice.payments.order_by("pk")], ["60.00", "40.00"])
        self.assertEqual(self.bank("c", "1.00")[0], 409)

    def test_it_is_paid_to_the_last_cent(self) -> None:
        self.client.force_login(self.clerk)
        for total in ("0", "-5.00"):
            answer = self.client.post(
                reverse("invoices:desk"), {"number": "1", "customer": "ada@example.org", "total": total}
            )
            self.assertContains(answer, "greater than or equal to")
        answer = self.client.post(
            reverse("invoices:desk"), {"number": "A-1", "customer": "ada@example.org", "total": "1.00"}
        )
        self.assertContains(answer, "must be lower-case letters and digits")  # the number is part of the id of the run
        run = self.issue()
        self.assertEqual(self.bank("", "1.00")[0], 400)
        self.assertEqual(self.bank("a", True)[0], 400)
        run.pause("the books are closed")
        self.assertEqual(self.bank("a", 59.9)[0], 503)  # the run is paused: the bank has to repeat it
        run.unpause()
        self.assertEqual(self.bank("a", 59.9), (200, {"open": "40.10"}))  # a JSON number, which is exact as a decimal
        self.env.advance()
        self.assertEqual(self.bank("b", 40.1), (200, {"open": "0.00"}))
        self.env.advance()
        assert_completed(run, {"outcome": "paid"})
        self.assertEqual(Invoice.objects.get().status, Invoice.Status.PAID)

    def test_it_is_written_off_by_who_may(self) -> None:
        run = self.issue()
        self.env.advance(days=90)
        self.assertEqual([message.subject[:10] for message in mail.outbox], ["Reminder 1", "Reminder 2"])
        assert_waiting_for(run, human_task="Write off 100.00 EUR of invoice 4711")
        with self.assertRaises(errors.ActionNotPermitted):
            run.decide("approved", by=self.clerk)
        (task,) = run.human_tasks(by=self.boss)
        self.client.force_login(self.boss)
        page = reverse("admin:temporalex_console:task", args=[task.id])
        self.assertContains(self.client.get(page), "Write off 100.00 EUR of invoice 4711")
        run.decide("approved", by=self.boss)
        self.env.advance()
        assert_completed(run, {"outcome": "written off"})
        self.assertEqual(WriteOff.objects.get().approved_by, "bea")
        self.assertEqual(Invoice.objects.get().status, Invoice.Status.WRITTEN_OFF)

    def test_a_payment_over_rest(self) -> None:
        run = self.issue()
        client = APIClient()
        address = f"/api/instances/{run.describe().id}/updates/paid/"
        paid = {"args": {"reference": "r", "amount": "100.00"}}
        client.force_authenticate(self.boss)  # may decide, and may book nothing
        self.assertEqual(client.post(address, paid, format="json").status_code, 403)
        self.clerk.user_permissions.add(Permission.objects.get(codename="update_instance"))
        client.force_authenticate(User.objects.get(pk=self.clerk.pk))
        answer = client.post(address, paid, format="json")
        self.assertEqual((answer.status_code, answer.json()["result"]), (200, "0.00"))
        self.env.advance()
        assert_completed(run)

    def test_the_admin_shows_the_run_of_an_invoice(self) -> None:
        self.issue()
        self.client.force_login(User.objects.create_superuser("root"))
        page = self.client.get(reverse("admin:invoices_invoice_change", args=[Invoice.objects.get().pk]))
        self.assertContains(page, "Invoicing")
        self.assertNotContains(page, 'name="total"')  # its run keeps the terms that it was started with
        self.assertEqual(self.client.get(reverse("admin:invoices_invoice_add")).status_code, 403)
        self.assertContains(page, "paid")

    def test_the_graph_books_and_writes_off(self) -> None:
        for number in ("1", "2"):
            invoice = Invoice.objects.create(number=number, customer="ada@example.org", total="5.00")
            terms = {"number": number, "customer": invoice.customer, "total": "5.00"}
            InvoicingGraph.start(number, terms, subject=invoice)
        self.env.advance(days=30)
        self.assertEqual(len(mail.outbox), 2)
        first, second = InvoicingGraph.get("1"), InvoicingGraph.get("2")
        paid = {"reference": "g", "amount": "5.00"}
        with self.assertRaisesMessage(errors.ActionNotPermitted, "invoices.book_payment"):
            first.resume("paid", late_money, data=paid, by=self.boss)
        first.resume("paid", late_money, data=paid, by=self.clerk)
        self.env.advance(days=30)
        assert_completed(first)
        self.assertEqual(Invoice.objects.get(number="1").status, Invoice.Status.PAID)
        assert_waiting_for(second, step=giving_up)
        with self.assertRaises(errors.ActionNotPermitted):
            second.resume("approved", by=self.clerk)
        second.resume("approved", by=self.boss)
        self.env.advance()
        assert_completed(second)
        self.assertEqual(WriteOff.objects.get().invoice.number, "2")
