"""Graphs that the acceptance tests share: an order, and a way to make a graph of named steps in a line."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalex_django import Approval, Done, Event, GraphWorkflow, Pending, Step, Unique, WaitForEvent, transit


class ValidateOrder(Step):
    events = ("valid", "invalid")

    def execute(self, instance, config, context):
        return Event("valid", {"total": context.initial.total}) if context.initial.total else Event("invalid")


class ChargePayment(Step):
    events = ("charged",)

    def execute(self, instance, config, context):
        return Event("charged", {"amount": context.steps.validate_order.total, "currency": config.currency})


class ReserveInventory(Step):
    events = ("reserved",)

    async def execute(self, instance, config, context):
        return Event("reserved")


class Review(Step):
    events = ("scored",)

    def execute(self, instance, config, context):
        return Event("scored", {"score": context.initial.total})


class ShipOrder(Step):
    events = ("shipped",)

    def execute(self, instance, config, context):
        return Event("shipped", {"knows": sorted(context.steps)})


webhook = WaitForEvent("delivered", timeout=timedelta(days=3))
clerk = Approval(role="shop.review", due=timedelta(hours=4))


class OrderGraph(GraphWorkflow):
    """Validate; charge and reserve side by side; a person looks at large ones; ship; wait for the carrier."""

    unique = Unique(key="orderid")
    tags = ["orders"]
    metadata = {"team": "shop"}
    initial = ValidateOrder
    transitions = {
        (ValidateOrder, "valid"): [(ChargePayment, {"currency": "EUR"}), ReserveInventory],
        (ValidateOrder, "invalid"): Done,
        (ChargePayment, "charged"): Review,
        (ReserveInventory, "reserved"): Review,
        (clerk, "approved"): ShipOrder,
        (clerk, "rejected"): Done,
        (clerk, "overdue"): Done,
        (ShipOrder, "shipped"): webhook,
        (webhook, "delivered"): Done,
        (webhook, "timeout"): Done,
    }

    @transit(Review, "scored", targets=[clerk, ShipOrder])
    @staticmethod
    def route(context):
        return clerk if context.steps.review.score > 40 else ShipOrder


def steps(*names: str, waiting: tuple[str, ...] = ()) -> dict[str, type[Step]]:
    """Step classes by name with one event ``done``; those ``waiting`` answer ``Pending()``.

    ``ran`` of each counts its runs.
    """
    made: dict[str, type[Step]] = {}
    for name in names:

        def execute(self, instance, config, context):
            type(self).ran.append(dict(context.steps))
            return Pending() if type(self).__name__ in waiting else Event("ok", {"from": type(self).__name__})

        body: dict[str, Any] = {"events": ("ok",), "execute": execute, "ran": [], "__module__": __name__}
        made[name] = type(name, (Step,), body)
    return made


def graph(initial: Any, transitions: dict[Any, Any], **attributes: Any) -> type[GraphWorkflow]:
    """A graph workflow class called ``Graph``."""
    body = {"unique": Unique(key="g"), "initial": initial, "transitions": transitions, "__module__": __name__}
    return type("Graph", (GraphWorkflow,), {**body, **attributes})
