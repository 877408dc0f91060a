"""An order as a graph: the purchase of a cart, as a process that an analyst can read as a picture.

Steps read the order from the context: ``initial`` is ``{"customer", "lines"}``, and ``steps.validate_order`` has the
sums. Models are imported where they are used, as in activities.py.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from example_project.shop import activities
from example_project.shop.activities import PAYMENT_RETRY, PAYMENT_TIMEOUT, PaymentRefused
from example_project.shop.money import amount, cents
from example_project.shop.values import Booking, Line, Payment, PaymentMade, units_by_product
from temporalex_django import Approval, Done, Event, GraphWorkflow, Step, Unique, WaitForEvent, activity_context

if TYPE_CHECKING:
    from temporalex_django.graph import Context, Instance

ORDER = Unique(key="order")
#: Members of this Django group may decide about large orders.
CLERKS = "clerks"
#: In cents. A person reviews orders that cost more.
REVIEW_ABOVE = 40_00
DECIDED_WITHIN = timedelta(days=2)
DELIVERED_WITHIN = timedelta(days=7)


class ValidateOrder(Step):
    """Checks the lines and adds them up."""

    label = "Check the order"
    events = ("valid", "free", "invalid")
    atomic = True  # it has no effect, so it needs no round trip of its own to the database

    def execute(self, instance: Instance, config: Any, context: Context) -> Event:
        try:
            lines = _lines(context)
        except (AttributeError, TypeError, ValueError) as exc:
            return Event("invalid", {"problem": str(exc)})
        total = sum(cents(line.amount) for line in lines)
        sums = {"total": amount(total), "cents": total, "lines": len(lines), "units": sum(x.quantity for x in lines)}
        return Event("valid" if total else "free", sums)


class _AtProvider(Step):
    """A step that calls the payment provider with the step's idempotency key."""

    retry = PAYMENT_RETRY
    timeout = PAYMENT_TIMEOUT

    def ask(self, path: str, instance: Instance, context: Context) -> PaymentMade:
        from django.conf import settings  # noqa: PLC0415 - see the top

        payment = Payment(reference=number_of(instance), cents=context.steps.validate_order.cents)
        return activities.ask_provider(path, payment=payment, url=settings.SHOP_ORDERS_PROVIDER_URL)


class ChargePayment(_AtProvider):
    """Takes the money, once for the step's key."""

    label = "Charge the payment"
    events = ("charged", "refused")

    def execute(self, instance: Instance, config: Any, context: Context) -> Event:
        try:
            made = self.ask("/charges", instance, context)
        except PaymentRefused as refusal:
            return Event("refused", {"reason": str(refusal)})
        return Event("charged", {"id": made.id, "cents": made.cents, "attempt": made.attempt})


class RefundPayment(_AtProvider):
    """Gives the money back, once for the step's key."""

    label = "Refund the payment"
    events = ("refunded",)

    def execute(self, instance: Instance, config: Any, context: Context) -> Event:
        return Event("refunded", {"id": self.ask("/refunds", instance, context).id})


class ReserveStock(Step):
    """Takes the goods out of stock, in the transaction of the next step."""

    label = "Reserve the goods"
    events = ("reserved",)
    atomic = True

    def execute(self, instance: Instance, config: Any, context: Context) -> Event:
        return Event("reserved", {"units": activities.move_stock(_booking(instance, context), kind="sale")})


class ReturnStock(Step):
    """Puts the goods of a cancelled order back."""

    label = "Return the goods"
    events = ("returned",)
    atomic = True

    def execute(self, instance: Instance, config: Any, context: Context) -> Event:
        return Event("returned", {"units": activities.move_stock(_booking(instance, context), kind="return")})


class AssessOrder(Step):
    """Decides how the order continues once payment and stock are known."""

    label = "Assess the order"
    events = ("small", "large", "unpaid")
    atomic = True

    def execute(self, instance: Instance, config: Any, context: Context) -> Event:
        if "reason" in context.steps.get("charge_payment", {}):
            return Event("unpaid")
        return Event("large" if context.steps.validate_order.cents > REVIEW_ABOVE else "small")


class ShipOrder(Step):
    """Hands the parcel to the carrier.

    The parcel and the wait for its delivery commit in one transaction, so no report can come before the wait.
    """

    label = "Ship the order"
    events = ("shipped",)
    atomic = True

    def execute(self, instance: Instance, config: Any, context: Context) -> Event:
        from example_project.shop.models import Shipment  # noqa: PLC0415 - see the top

        run_id = activity_context().run_id
        shipment = Shipment.objects.create(order=number_of(instance), run_id=run_id, parcel=f"P{run_id}")
        return Event("shipped", {"parcel": shipment.parcel})


class TraceParcel(Step):
    """Asks the carrier about a parcel that was not reported in time."""

    label = "Trace the parcel"
    events = ("asked",)
    atomic = True

    def execute(self, instance: Instance, config: Any, context: Context) -> Event:
        _notify(
            recipient="carrier",
            subject=f"Where is parcel {context.steps.ship_order.parcel}?",
            body=f"It has not been reported as delivered for {DELIVERED_WITHIN.days} days.",
        )
        return Event("asked")


class SendInvoice(Step):
    """Writes the invoice; the database assigns its number."""

    label = "Send the invoice"
    events = ("invoiced",)
    atomic = True

    def execute(self, instance: Instance, config: Any, context: Context) -> Event:
        from example_project.shop.models import Invoice  # noqa: PLC0415 - see the top

        sums = context.steps.validate_order
        invoice = Invoice.objects.create(
            order=number_of(instance),
            run_id=activity_context().run_id,
            customer=context.initial.customer,
            cents=sums.cents,
        )
        return Event("invoiced", {"number": invoice.pk, "total": sums.total})


class CancelOrder(Step):
    """Tells the customer that there will be no parcel, and why."""

    label = "Cancel the order"
    events = ("cancelled",)
    atomic = True

    def execute(self, instance: Instance, config: Any, context: Context) -> Event:
        reason = _why_cancelled(context)
        customer = str(context.initial.get("customer", ""))
        _notify(recipient=customer, subject=f"Order {number_of(instance)} is cancelled", body=f"{reason}.")
        return Event("cancelled", {"reason": reason})


review = Approval(role=CLERKS, due=DECIDED_WITHIN, key="review", title="Approve a large order")
carrier = WaitForEvent("delivered", timeout=DELIVERED_WITHIN, key="carrier")


class OrderProcess(GraphWorkflow):
    """Processes an order up to its invoice; the business value is the number of the order."""

    unique = ORDER
    tags = ["shop"]
    #: ``ShipOrder`` and the wait for the delivery need one transaction, which a cluster cannot give.
    backend = "tables"
    initial = ValidateOrder
    transitions = {
        (ValidateOrder, "valid"): [ChargePayment, ReserveStock],
        (ValidateOrder, "free"): ReserveStock,
        (ValidateOrder, "invalid"): CancelOrder,
        (ChargePayment, "charged"): AssessOrder,
        (ChargePayment, "refused"): AssessOrder,
        (ReserveStock, "reserved"): AssessOrder,
        (AssessOrder, "small"): ShipOrder,
        (AssessOrder, "large"): review,
        (AssessOrder, "unpaid"): ReturnStock,
        (review, "approved"): ShipOrder,
        (review, "rejected"): [RefundPayment, ReturnStock],
        (review, "overdue"): [RefundPayment, ReturnStock],
        (ShipOrder, "shipped"): carrier,
        (carrier, "delivered"): SendInvoice,
        (carrier, "timeout"): TraceParcel,
        (TraceParcel, "asked"): SendInvoice,
        (SendInvoice, "invoiced"): Done,
        (RefundPayment, "refunded"): CancelOrder,
        (ReturnStock, "returned"): CancelOrder,
        (CancelOrder, "cancelled"): Done,
    }


def number_of(instance: Instance) -> str:
    """Return the number of the order: the business value in the id of its run."""
    return ORDER.value_of(instance.id)


def _lines(context: Context) -> list[Line]:
    """Return the lines of the order. Raises ``AttributeError``, ``TypeError`` or ``ValueError`` if it is malformed."""
    lines = [Line(**line) for line in context.initial.lines]
    problems = [problem for line in lines if (problem := line.problem())]
    if problems or not lines or not context.initial.customer:
        raise ValueError(problems[0] if problems else "an order needs lines and a customer")
    return lines


def _booking(instance: Instance, context: Context) -> Booking:
    return Booking(cart_id=instance.id, run_id=activity_context().run_id, units=units_by_product(context.initial.lines))


def _why_cancelled(context: Context) -> str:
    steps = context.steps
    if problem := steps.validate_order.get("problem"):
        return f"The order cannot be delivered: {problem}"
    if refusal := steps.get("charge_payment", {}).get("reason"):
        return f"The payment was refused: {refusal}"
    if by := steps.review.get("by"):
        return steps.review.get("comment") or f"{by} has rejected the order"
    return "Nobody reviewed the order in time"


def _notify(*, recipient: str, subject: str, body: str) -> None:
    from example_project.shop.models import Notice  # noqa: PLC0415 - see the top

    Notice.objects.create(key=activity_context().idempotency_key, recipient=recipient, subject=subject, body=body)
