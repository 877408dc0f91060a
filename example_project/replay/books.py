"""What the day left behind, from three sides: results, stock, provider; and whether all of it equals the file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from urllib.request import urlopen

from django.db.models import Sum

from example_project.replay.report import Check
from example_project.shop.models import Stock, StockMovement
from example_project.shop.money import amount, cents

if TYPE_CHECKING:
    from collections.abc import Iterable

    from example_project.replay.customer import Visit
    from example_project.replay.day import Day

WEB_CARTS = "web-"


def ask_provider(url: str, *, after: int) -> dict[str, Any]:
    """Get the provider's figures; purchases of the web pages are not part of a play."""
    query = urlencode({"after": after, "without": WEB_CARTS})
    with urlopen(f"{url}/report?{query}", timeout=20) as answer:  # noqa: S310 - an address that we were given
        report: dict[str, Any] = json.load(answer)
    return report


class Books:
    """Opened before the play: the shop may have a past, and only what changes counts."""

    def __init__(self, day: Day, *, provider_url: str) -> None:
        self.day = day
        self._provider_url = provider_url
        self._call = int(ask_provider(provider_url, after=0)["last"])
        newest = StockMovement.objects.order_by("-pk").first()
        self._movement = newest.pk if newest else 0
        self._stock = {stock.product_id: (stock.on_hand, stock.booked) for stock in Stock.objects.all()}

    def provider(self) -> dict[str, Any]:
        """What the provider saw since."""
        return ask_provider(self._provider_url, after=self._call)

    def checks(self, visits: Iterable[Visit], *, provider: dict[str, Any]) -> list[Check]:
        """Compare everything with the file."""
        day, visits = self.day, list(visits)
        results = [visit.result for visit in visits if visit.result is not None]
        charged = [basket for basket in day.baskets if basket.cents]
        silent = sum(1 for visit in visits if not visit.confirms)

        def confirmed(by: str) -> int:
            return sum(1 for result in results if result["confirmed_by"] == by)

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
            Check(name="baskets with another total", expected=[], seen=self._wrong_totals(visits)),
            *self._stock_checks(),
            Check(name="charges in the provider's ledger", expected=len(charged), seen=provider["charges"]),
            Check(
                name="sum in the provider's ledger",
                expected=amount(sum(b.cents for b in charged)),
                seen=amount(provider["cents"]),
            ),
            Check(name="double charges", expected=0, seen=provider["doubles"]),
            Check(name="confirmed by the customer", expected=len(day.baskets) - silent, seen=confirmed("customer")),
            Check(name="confirmed by the timeout", expected=silent, seen=confirmed("timeout")),
        ]

    @staticmethod
    def _wrong_totals(visits: list[Visit]) -> list[str]:
        return [
            visit.basket.id
            for visit in visits
            if visit.result is not None and visit.result["total"] != amount(visit.basket.cents)
        ]

    def _stock_checks(self) -> list[Check]:
        since = StockMovement.objects.filter(pk__gt=self._movement)
        carts = [basket.id for basket in self.day.baskets]
        mine = since.filter(cart_id__in=carts)
        expected = self.day.units()
        bookings = {(basket.id, line.product_id) for basket in self.day.baskets for line in basket.lines}
        booked = dict(mine.values_list("product_id").annotate(Sum("quantity")))

        # Somebody may be shopping on the pages while the day is played.
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
            Check(name="products with another stock than the file's", expected=[], seen=wrong),
        ]
