"""The books of a day: compare results, stock, provider and invoices with the file."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from urllib.request import urlopen

from django.db.models import Sum

from example_project.replay.buyer import order_number
from example_project.replay.report import Check
from example_project.replay.report_books import ReportBooks
from example_project.shop.models import Invoice, Shipment, Stock, StockMovement
from example_project.shop.money import amount, cents
from example_project.shop.orders import ORDER, REVIEW_ABOVE
from example_project.shop.workflows import ShoppingCart
from temporalex_django import errors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.db.models import QuerySet

    from example_project.replay.day import Basket, Day
    from example_project.replay.manager import Manager
    from example_project.replay.person import Visit

WEB_CARTS = "web-"


def ask_provider(url: str, *, after: int) -> dict[str, Any]:
    """Return the provider's figures, without purchases of the web pages, which are not part of a play."""
    query = urlencode({"after": after, "without": WEB_CARTS})
    with urlopen(f"{url}/report?{query}", timeout=20) as answer:  # noqa: S310 - our caller gave us the address
        report: dict[str, Any] = json.load(answer)
    return report


class Books(ABC):
    """The books of one play.

    They are opened before the play: the shop may have a past, and only changes count.
    """

    def __init__(self, day: Day, *, provider_url: str) -> None:
        self.day = day
        self.reports = ReportBooks()
        self._provider_url = provider_url
        self._call = int(ask_provider(provider_url, after=0)["last"])
        newest = StockMovement.objects.order_by("-pk").first()
        self._movement = newest.pk if newest else 0
        self._stock = {stock.product_id: (stock.on_hand, stock.booked) for stock in Stock.objects.all()}

    @staticmethod
    def booked_as(basket: Basket) -> str:
        """Return the id under which the stock of a basket is booked."""
        return basket.id

    def provider(self) -> dict[str, Any]:
        """Return the provider's figures since the books were opened."""
        return ask_provider(self._provider_url, after=self._call)

    def checks(self, visits: Iterable[Visit], *, provider: dict[str, Any], manager: Manager) -> list[Check]:
        """Compare everything with the file: first the checks of all flows, then those of this one."""
        day, visits = self.day, list(visits)
        results = [visit.result for visit in visits if visit.result is not None]
        charged = [basket for basket in day.baskets if basket.cents]
        return [
            Check(name="baskets completed", expected=len(day.baskets), seen=len(results)),
            Check(name="baskets charged", expected=len(charged), seen=sum(1 for r in results if r["charge"])),
            Check(
                name="lines added", expected=sum(len(b.lines) for b in day.baskets), seen=sum(v.added for v in visits)
            ),
            Check(
                name="lines sold",
                expected=sum(len(b.lines) for b in day.baskets),
                seen=sum(r["lines"] for r in results),
            ),
            Check(name="units sold", expected=sum(b.units for b in day.baskets), seen=sum(r["units"] for r in results)),
            Check(
                name="sum of sales",
                expected=amount(sum(b.cents for b in day.baskets)),
                seen=amount(sum(cents(r["total"]) for r in results)),
            ),
            Check(name="baskets with a different total", expected=[], seen=self._wrong_totals(visits)),
            *self._stock_checks(),
            Check(name="charges in the provider's ledger", expected=len(charged), seen=provider["charges"]),
            Check(
                name="sum in the provider's ledger",
                expected=amount(sum(b.cents for b in charged)),
                seen=amount(provider["cents"]),
            ),
            Check(name="double charges", expected=0, seen=provider["doubles"]),
            *self._more(visits),
            *self.reports.checks(manager, movements=self._movements(), units=sum(day.units().values())),
            *self._more_reports(),
        ]

    def _movements(self) -> QuerySet[StockMovement]:
        """Return the bookings of the baskets of the file in this play."""
        carts = [self.booked_as(basket) for basket in self.day.baskets]
        return StockMovement.objects.filter(pk__gt=self._movement, cart_id__in=carts)

    def _more_reports(self) -> list[Check]:
        """Return the checks of the reports that only this flow has."""
        return []

    @abstractmethod
    def _more(self, visits: list[Visit]) -> list[Check]:
        """Return the checks of this flow alone."""

    @staticmethod
    def _wrong_totals(visits: list[Visit]) -> list[str]:
        return [
            visit.basket.id
            for visit in visits
            if visit.result is not None and visit.result["total"] != amount(visit.basket.cents)
        ]

    def _stock_checks(self) -> list[Check]:
        since = StockMovement.objects.filter(pk__gt=self._movement)
        carts = [self.booked_as(basket) for basket in self.day.baskets]
        mine = self._movements()
        expected = self.day.units()
        bookings = {(basket.id, line.product_id) for basket in self.day.baskets for line in basket.lines}
        booked = dict(mine.values_list("product_id").annotate(Sum("quantity")))

        # People may be shopping on the pages while the day is played: their bookings are subtracted.
        change = dict.fromkeys(expected, 0)
        for kind, product_id, units in since.exclude(cart_id__in=carts).values_list("kind", "product_id", "quantity"):
            change[product_id] = change.get(product_id, 0) - (units if kind == StockMovement.Kind.SALE else -units)
        for stock in Stock.objects.all():
            on_hand, total = self._stock.get(stock.product_id, (0, 0))
            if stock.booked != total or stock.product_id in change:
                change[stock.product_id] = change.get(stock.product_id, 0) + stock.booked - total
            if stock.on_hand - on_hand != total - stock.booked:
                change[stock.product_id] = -1  # the two columns do not agree
        wrong = sorted(key for key in change.keys() | expected.keys() if change.get(key, 0) != expected.get(key, 0))
        return [
            Check(name="stock bookings", expected=len(bookings), seen=mine.count()),
            Check(name="units booked out of stock", expected=sum(expected.values()), seen=sum(booked.values())),
            Check(name="products whose stock differs from the file", expected=[], seen=wrong),
        ]


#: A cart books its stock and sends a receipt. A cart that costs something is charged as well.
ACTIVITIES_OF_CART = 2
HISTORY_TRIES = 3


class CartBooks(Books):
    """Books of carts: also check who confirmed, and the activities in the histories."""

    def _more(self, visits: list[Visit]) -> list[Check]:
        silent = sum(1 for visit in visits if not visit.confirms)

        def confirmed(by: str) -> int:
            return sum(1 for visit in visits if visit.result is not None and visit.result["confirmed_by"] == by)

        return [
            Check(name="confirmed by the customer", expected=len(visits) - silent, seen=confirmed("customer")),
            Check(name="confirmed by the timeout", expected=silent, seen=confirmed("timeout")),
            Check(
                name="carts with other activities in their history",
                expected=[],
                seen=[visit.basket.id for visit in visits if self._has_other_activities(visit)],
            ),
        ]

    @staticmethod
    def _has_other_activities(visit: Visit) -> bool:
        """Return True unless the history of a cart has exactly the activities that the file asks for."""
        expected = ACTIVITIES_OF_CART + bool(visit.basket.cents)
        cart = ShoppingCart.handle(id=visit.basket.id)
        for _ in range(HISTORY_TRIES):
            try:
                return expected != sum(event.kind == "ActivityCompleted" for event in cart.history())
            except errors.QueryTimeout:  # the workers of a cluster tell histories, and may be busy
                continue
            except errors.WorkflowNotFound:
                break
        return True


class OrderBooks(Books):
    """Books of orders: also check reviews, deliveries and invoices."""

    def __init__(self, day: Day, *, provider_url: str) -> None:
        super().__init__(day, provider_url=provider_url)
        newest = Invoice.objects.order_by("-pk").first()
        self._invoice = newest.pk if newest else 0

    @staticmethod
    def booked_as(basket: Basket) -> str:
        return ORDER.id_for(order_number(basket))

    def _more(self, visits: list[Visit]) -> list[Check]:
        results = [(visit.basket, visit.result) for visit in visits if visit.result is not None]
        large = {basket.id for basket in self.day.baskets if basket.cents > REVIEW_ABOVE}
        reviewed = {basket.id for basket, result in results if result["reviewed"]}
        approved = [basket for basket, result in results if result["approved_by"]]
        orders = {order_number(basket): basket for basket in self.day.baskets}
        invoices = dict(self._invoices().values_list("order", "cents"))
        parcels = Shipment.objects.filter(run_id__in=[visit.run_id for visit in visits])
        return [
            Check(name="orders reviewed", expected=len(large), seen=len(reviewed)),
            Check(
                name="orders reviewed needlessly, or wrongly not reviewed", expected=[], seen=sorted(large ^ reviewed)
            ),
            Check(name="orders approved by a clerk", expected=len(large), seen=len(approved)),
            Check(name="reviews overdue", expected=0, seen=len(reviewed) - len(approved)),
            Check(name="parcels shipped", expected=len(orders), seen=parcels.count()),
            Check(
                name="parcels reported as delivered",
                expected=len(orders),
                seen=sum(1 for _, result in results if result["delivered"]),
            ),
            Check(name="invoices", expected=len(orders), seen=len(invoices)),
            Check(
                name="orders invoiced with a different sum",
                expected=[],
                seen=sorted(orders[number].id for number, cents in invoices.items() if cents != orders[number].cents),
            ),
        ]

    def _more_reports(self) -> list[Check]:
        baskets = self.day.baskets
        return self.reports.invoice_checks(
            self._invoices(), number=len(baskets), cents=sum(basket.cents for basket in baskets)
        )

    def _invoices(self) -> QuerySet[Invoice]:
        orders = [order_number(basket) for basket in self.day.baskets]
        return Invoice.objects.filter(pk__gt=self._invoice, order__in=orders)
