"""What is told to one run, from its start to its end, and what must have come of it: the example project's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from typing import Any, ClassVar

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import OperationalError, transaction

from example_project.invoices.graphs import InvoicingGraph, money
from example_project.invoices.models import Invoice as IssuedInvoice
from example_project.invoices.values import Paid, Terms
from example_project.invoices.workflows import Invoicing
from example_project.shop.carrier import delivered
from example_project.shop.models import (
    CollectedEvent,
    Invoice,
    Notice,
    Product,
    SalesReport,
    Shipment,
    StockMovement,
)
from example_project.shop.money import amount
from example_project.shop.orders import CLERKS, ORDER, OrderProcess
from example_project.shop.reports import NightlyReport, ReportDay
from example_project.shop.values import Batch, CartArgs, Delivery, Line, NewCustomer
from example_project.shop.workflows import BatchProcess, EventCollector, Inventory, Onboarding, ShoppingCart
from example_project.shop.workflows import Counter as CounterWorkflow
from temporalex_django.errors import AlreadyRunning
from temporalex_django.models import Instance
from tests.soak.books import Ledgers
from tests.soak.desk import Desk

PRODUCTS = [f"p{n}" for n in range(8)]


def stock_the_shelves() -> None:
    Product.objects.bulk_create(Product(id=name, kind=f" a  {name}", price=Decimal("1.50")) for name in PRODUCTS)
    clerk().groups.add(Group.objects.create(name=CLERKS))


@cache
def clerk() -> Any:
    return get_user_model().objects.get_or_create(username="clerk")[0]


class Tale(ABC):
    """``act`` does something at random, ``end`` what is next on the way to its end; both are called again and again."""

    #: The workflow.
    of: ClassVar[str]
    #: Whether something is to be said of a run, too, that lost an activity with its workers.
    judges_lost: ClassVar[bool] = False

    def __init__(self, desk: Desk, number: int) -> None:
        self.desk = desk
        self.number = number
        self.run = f"{type(self).__name__.lower()}{number}"

    @abstractmethod
    def start(self) -> None:
        """May be called again, when it is not known whether it was."""

    def begin(self) -> None:
        def once() -> None:
            # one whose answer was lost may even be over by now
            if not Instance.objects.filter(workflow_id=self.run).exists():
                try:
                    self.start()
                except AlreadyRunning as exc:
                    if exc.pending:  # of a connection that was lost, perhaps
                        raise OperationalError from exc

        self.desk.patiently(once)

    def act(self) -> None:  # noqa: B027 - not abstract
        """Most go their way by themselves."""

    def end(self) -> None:
        self.act()

    @abstractmethod
    def wrong(self, run: Instance, ledgers: Ledgers) -> Iterator[object]:
        """What does not add up, by the run that completed."""


class Welcomed(Tale):
    of = "Onboarding"

    def start(self) -> None:
        Onboarding.start(NewCustomer(user_id=self.run), id=self.run)

    def wrong(self, run: Instance, ledgers: Ledgers) -> Iterator[object]:
        user = get_user_model().objects.filter(username=self.run).first()
        if user is None or run.closing_value["result"] != {"account_id": user.pk}:
            yield f"account {user}"
        if Notice.objects.filter(recipient=self.run).count() != 1:
            yield "it was not welcomed once"


class Counted(Tale):
    of = "Counter"

    def start(self) -> None:
        CounterWorkflow.start(id=self.run)

    def begin(self) -> None:
        super().begin()
        self.value, self.done = 0, False

    def act(self) -> None:
        if self.done:
            return
        step = self.desk.chance.choice([1, 1, -1])
        self.desk.signal(self.run, "increment" if step > 0 else "decrement")
        self.value += step

    def end(self) -> None:
        if not self.done:
            self.desk.signal(self.run, "done")
            self.done = True

    def wrong(self, run: Instance, ledgers: Ledgers) -> Iterator[object]:
        if run.closing_value["result"] != self.value:
            yield f"counted {run.closing_value}, was told {self.value}"


class Bought(Tale):
    of = "ShoppingCart"

    def begin(self) -> None:
        self.within = self.desk.chance.choice([1.0, 3600.0])
        self.ordered, self.answer = False, self.desk.chance.choice(["confirm", "confirm", "cancel"])
        super().begin()

    def start(self) -> None:
        ShoppingCart.start(CartArgs(customer=self.run, confirm_within=self.within), id=self.run)

    def act(self) -> None:
        chance = self.desk.chance
        if self.ordered or chance.random() < 0.2:
            self.end()
        elif chance.random() < 0.1:
            self.desk.update(self.run, "remove_item", "nothing")
        else:
            line = Line(
                product_id=chance.choice(PRODUCTS), quantity=chance.randrange(3), amount=amount(chance.randrange(900))
            )
            self.desk.update(self.run, "add_item", line)

    def end(self) -> None:
        if not self.ordered:
            self.desk.signal(self.run, "checkout")
            self.ordered = True
        elif not self.desk.is_told(self.run, self.answer):
            self.desk.update(self.run, self.answer)

    def wrong(self, run: Instance, ledgers: Ledgers) -> Iterator[object]:
        lines = [line for line, _ in self.desk.of(self.run, "add_item")]
        cents = round(sum(Decimal(line.amount) for line in lines) * 100)
        result = run.closing_value["result"]
        if (result["total"], result["lines"]) != (amount(cents), len(lines)):
            yield f"{result}, was told {len(lines)} lines of {cents} cents"
        if any(args == "nothing" for args, _ in self.desk.of(self.run, "remove_item")):
            yield "what is not in it was taken out"
        cancelled = result["outcome"] == "cancelled"
        answers = [len(self.desk.of(self.run, word)) for word in ("confirm", "cancel")]
        if answers != [result["confirmed_by"] == "customer", cancelled]:
            yield f"{result}, was answered {answers}"
        expected = {"charge": [cents] if cents else [], "refund": [cents] if cents and cancelled else []}
        if ledgers.of(self.run) != expected:
            yield f"the provider booked {ledgers.of(self.run)}, not {expected}"
        units = Counter[str]()
        for line in lines:
            units[line.product_id] += line.quantity
        for kind in ("sale", "return"):
            moved = StockMovement.objects.filter(cart_id=self.run, kind=kind)
            if [*moved.values_list("product_id", "quantity").order_by("product_id")] != (
                sorted(units.items()) if kind == "sale" or cancelled else []
            ):
                yield f"another {kind} than of {units}"
        if Notice.objects.filter(recipient=self.run).count() != (not cancelled):
            yield "not one receipt"


class Tidied(Tale):
    of = "BatchProcess"

    def start(self) -> None:
        BatchProcess.start(Batch(items=PRODUCTS[: 1 + self.number % 4]), id=self.run)

    def wrong(self, run: Instance, ledgers: Ledgers) -> Iterator[object]:
        if run.closing_value["result"] != {"processed": 1 + self.number % 4}:
            yield run.closing_value


class Reported(Tale):
    of = "NightlyReport"

    def start(self) -> None:
        NightlyReport.start(ReportDay(day="2026-03-29"), id=self.run)

    def wrong(self, run: Instance, ledgers: Ledgers) -> Iterator[object]:
        reports = [*SalesReport.objects.filter(run_id=run.pk)]
        if len(reports) != 1:
            yield f"{len(reports)} reports"
            return
        movements = Counter[str]()
        for kind, units in reports[0].movements.values_list("kind", "quantity"):
            movements[kind] += units
        totals = {
            "bookings": reports[0].movements.count(),
            "units": movements["sale"] - movements["return"],
            "invoices": reports[0].invoice_rows.count(),
            "cents": sum(reports[0].invoice_rows.values_list("cents", flat=True)),
        }
        stored = {name: getattr(reports[0], name) for name in totals}
        if not (run.closing_value["result"] == {"day": "2026-03-29", **totals} and stored == totals):
            yield f"reported {stored}, its rows have {totals}"


class Stocked(Tale):
    of, judges_lost = "Inventory", True

    def start(self) -> None:
        Inventory.start(id=self.run)

    def begin(self) -> None:
        super().begin()
        self.closed = False

    def act(self) -> None:
        if not self.closed:
            chance = self.desk.chance
            self.desk.update(
                self.run, "restock", Delivery(sku=chance.choice(PRODUCTS), quantity=chance.randrange(1, 9))
            )

    def end(self) -> None:
        if not self.closed:
            self.desk.signal(self.run, "close")
            self.closed = True

    def wrong(self, run: Instance, ledgers: Ledgers) -> Iterator[object]:
        units = Counter[str]()
        for delivery, _ in self.desk.of(self.run, "restock"):
            units[delivery.sku] += delivery.quantity
        if (found := {sku: entry["quantity"] for sku, entry in run.closing_value["result"].items()}) != units:
            yield f"{found}, was told {dict(units)}"


class Gathered(Tale):
    """Goes on for ever: after its last flush it is terminated."""

    of = "EventCollector"

    def start(self) -> None:
        EventCollector.start(id=self.run)

    def begin(self) -> None:
        super().begin()
        self.events = 0

    def act(self) -> None:
        if self.desk.chance.random() < 0.15:
            self.desk.signal(self.run, "flush")
        else:
            self.events += 1
            self.desk.signal(self.run, "event", self.events)

    def end(self) -> None:
        stored = self.desk.patiently(lambda: self._stored())
        if len(stored) < self.events:
            self.desk.signal(self.run, "flush")
        else:
            self.desk.gently(lambda: EventCollector.handle(id=self.run).terminate(reason="enough"))

    def _stored(self) -> list[Any]:
        return [*CollectedEvent.objects.filter(collector=self.run).order_by("pk").values_list("payload", flat=True)]

    def wrong(self, run: Instance, ledgers: Ledgers) -> Iterator[object]:
        if self._stored() != [*range(1, self.events + 1)]:
            yield f"stored {self._stored()} of {self.events} events"


class Ordered(Tale):
    of = "OrderProcess"

    def begin(self) -> None:
        chance = self.desk.chance
        self.run = ORDER.id_for(str(self.number))
        self.cents = chance.choice([0, 1250, 3999, 4500, 9900])
        self.line = {
            "product_id": chance.choice(PRODUCTS),
            "quantity": chance.randrange(4),
            "amount": amount(self.cents),
        }
        super().begin()

    def start(self) -> None:
        OrderProcess.start(str(self.number), {"customer": f"buyer{self.number}", "lines": [self.line]})

    def act(self) -> None:
        def once() -> None:
            if parcel := Shipment.objects.filter(order=str(self.number), delivered_at=None).first():
                delivered(parcel.parcel, at="today")
            elif self.cents > 40_00:
                handle = OrderProcess.handle(id=self.run)
                handle.decide(self.desk.chance.choice(["approved", "rejected"]), task="review", by=clerk())

        self.desk.gently(once)

    def wrong(self, run: Instance, ledgers: Ledgers) -> Iterator[object]:
        number, cancelled = str(self.number), "cancel_order" in run.closing_value["result"]
        if cancelled and self.cents <= 40_00:
            yield run.closing_value
        booked = [self.cents] if self.cents else []
        expected = {"charge": booked, "refund": booked if cancelled else []}
        if ledgers.of(number) != expected:
            yield f"the provider booked {ledgers.of(number)}, not {expected}"
        invoices = [*Invoice.objects.filter(order=number).values_list("cents", flat=True)]
        if (invoices, Shipment.objects.filter(order=number).count()) != (([], 0) if cancelled else ([self.cents], 1)):
            yield f"invoices {invoices}"
        moved = Counter(StockMovement.objects.filter(cart_id=self.run).values_list("kind", flat=True))
        if moved != ({"sale": 1, "return": 1} if cancelled else {"sale": 1}):
            yield f"stock movements {moved}"
        if Notice.objects.filter(recipient=f"buyer{self.number}").count() != cancelled:
            yield "not one notice"


class Invoiced(Tale):
    of = "Invoicing"

    def begin(self) -> None:
        self.total = Decimal(self.desk.chance.randrange(1_00, 90_00)) / 100
        self.run = Invoicing.unique.id_for(f"i{self.number}")
        super().begin()

    def start(self) -> None:
        with transaction.atomic():
            invoice = issued(f"i{self.number}", self.total)
            terms = Terms(number=invoice.number, customer=invoice.customer, total=self.total)
            Invoicing.start(terms, value=invoice.number, subject=invoice)

    def act(self) -> None:
        chance, left = self.desk.chance, self._left()
        if not left or self.desk.waits(self.run):
            return
        most = int(left * 100)
        self._pay(left if chance.random() < 0.3 else Decimal(chance.randrange(1, most + 1)) / 100)

    def end(self) -> None:
        if (left := self._left()) and not self.desk.waits(self.run):
            self._pay(left)

    def _left(self) -> Decimal:
        return self.total - sum((paid.amount for paid, _ in self.desk.of(self.run, "paid")), Decimal(0))

    def _pay(self, amount: Decimal) -> None:
        self.desk.update(self.run, "paid", Paid(reference=f"r{self.desk.number()}", amount=amount))

    def wrong(self, run: Instance, ledgers: Ledgers) -> Iterator[object]:
        yield from unpaid(f"i{self.number}", [(p.reference, p.amount) for p, _ in self.desk.of(self.run, "paid")], run)
        if self._left():
            yield f"{self._left()} are left"


class InvoicedByGraph(Tale):
    of = "InvoicingGraph"

    def begin(self) -> None:
        self.total = Decimal("5.00")
        self.run = InvoicingGraph.unique.id_for(f"g{self.number}")
        super().begin()

    def start(self) -> None:
        with transaction.atomic():
            invoice = issued(f"g{self.number}", self.total)
            terms = {"number": invoice.number, "customer": invoice.customer, "total": str(self.total)}
            InvoicingGraph.start(invoice.number, terms, subject=invoice)

    def act(self) -> None:
        paid = {"reference": "all", "amount": str(self.total)}
        self.desk.gently(lambda: InvoicingGraph.get(f"g{self.number}").resume("paid", money, data=paid, timeout=0.5))

    def wrong(self, run: Instance, ledgers: Ledgers) -> Iterator[object]:
        yield from unpaid(f"g{self.number}", [("all", self.total)], run)


def issued(number: str, total: Decimal) -> IssuedInvoice:
    return IssuedInvoice.objects.create(number=number, customer=f"{number}@example.org", total=total)


def unpaid(number: str, told: list[tuple[str, Decimal]], run: Instance) -> Iterator[object]:
    invoice = IssuedInvoice.objects.get(number=number)
    booked = sorted(invoice.payments.values_list("reference", "amount"))
    if booked != sorted(told) or invoice.status != "paid":
        yield f"{invoice.status}, booked {booked}, was told {sorted(told)}"


TALES: tuple[type[Tale], ...] = (
    *(
        Welcomed,
        Counted,
        Bought,
        Bought,
        Tidied,
        Reported,
        Stocked,
        Gathered,
        Ordered,
        Ordered,
        Invoiced,
        InvoicedByGraph,
    ),
)
