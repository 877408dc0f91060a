"""The shop's own tables. The state of carts is in their workflows, not here."""

from __future__ import annotations

from typing import ClassVar

from django.conf import settings
from django.db import models

from temporalex_django.models.states import WorkflowStateQuerySet


class Product(models.Model):
    """A product on the shelf. Its id is text, as the tills print it."""

    id = models.CharField(max_length=32, primary_key=True)
    department = models.CharField(max_length=100, blank=True)
    category = models.CharField(max_length=100, blank=True)
    kind = models.CharField(max_length=100, blank=True)
    package_size = models.CharField(max_length=50, blank=True)
    price = models.DecimalField(max_digits=10, decimal_places=2, null=True, blank=True)

    class Meta:
        ordering = ("department", "category", "kind", "id")

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        """The best name in the source, where the names of some products are blank."""
        return self.kind or self.category or f"Product {self.id}"


class Stock(models.Model):
    """Units on hand. There is no foreign key: tills sell products that the list of products does not have."""

    product_id = models.CharField(max_length=32, primary_key=True)
    on_hand = models.BigIntegerField(default=0)
    booked = models.BigIntegerField(default=0)

    class Meta:
        ordering = ("product_id",)
        verbose_name_plural = "stock"

    def __str__(self) -> str:
        return f"{self.product_id}: {self.on_hand}"


class SalesReport(models.Model):
    """A report that closes the books, once per run. ``slot`` is the time for which a schedule started it."""

    run_id = models.CharField(max_length=64, unique=True)
    day = models.DateField()
    slot = models.DateTimeField(null=True, blank=True)
    bookings = models.BigIntegerField(default=0)
    units = models.BigIntegerField(default=0)
    invoices = models.BigIntegerField(default=0)
    cents = models.BigIntegerField(default=0)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.pk} for {self.day}"


class StockMovement(models.Model):
    """The record of a booking: a run books a product once, even if workers are killed meanwhile."""

    class Kind(models.TextChoices):
        """The direction of a booking."""

        SALE = "sale"
        RETURN = "return"

    run_id = models.CharField(max_length=64)
    cart_id = models.CharField(max_length=255, db_index=True)
    product_id = models.CharField(max_length=32)
    kind = models.CharField(max_length=8, choices=Kind.choices)
    quantity = models.BigIntegerField()
    at = models.DateTimeField(auto_now_add=True)
    report = models.ForeignKey(
        SalesReport, null=True, blank=True, on_delete=models.PROTECT, related_name="movements", editable=False
    )

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("run_id", "kind", "product_id"), name="one_booking_per_run_and_product"),
        )

    def __str__(self) -> str:
        return f"{self.kind} of {self.quantity} of {self.product_id} by {self.cart_id}"


class Cart(models.Model):
    """The owner of the cart that a workflow is. ``closed_at`` is the time of the checkout."""

    id = models.CharField(max_length=64, primary_key=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="carts")
    created_at = models.DateTimeField(auto_now_add=True)
    closed_at = models.DateTimeField(null=True, blank=True)

    objects: ClassVar[models.Manager[Cart]] = WorkflowStateQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at",)
        constraints = (
            models.UniqueConstraint(
                fields=("user",), condition=models.Q(closed_at=None), name="one_open_cart_per_user"
            ),
        )

    def __str__(self) -> str:
        return self.id


class Shipment(models.Model):
    """A parcel with the carrier. ``order`` is the business value of the run that waits for it."""

    order = models.CharField(max_length=200, db_index=True)
    run_id = models.CharField(max_length=64, unique=True)
    parcel = models.CharField(max_length=64, unique=True)
    shipped_at = models.DateTimeField(auto_now_add=True)
    delivered_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return self.parcel


class Invoice(models.Model):
    """The invoice of an order, once per run; its number is the key."""

    order = models.CharField(max_length=200, db_index=True)
    run_id = models.CharField(max_length=64, unique=True)
    customer = models.CharField(max_length=255)
    cents = models.BigIntegerField()
    at = models.DateTimeField(auto_now_add=True)
    report = models.ForeignKey(
        SalesReport, null=True, blank=True, on_delete=models.PROTECT, related_name="invoice_rows", editable=False
    )

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.pk} for order {self.order}"


class Notice(models.Model):
    """A message to a customer, once per ``key``; a program that sends mail would read them here."""

    key = models.CharField(max_length=128, unique=True)
    recipient = models.CharField(max_length=255)
    subject = models.CharField(max_length=255)
    body = models.TextField(blank=True)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-at",)

    def __str__(self) -> str:
        return f"{self.subject} to {self.recipient}"


class CollectedEvent(models.Model):
    """An event that a collector stored, with its position in its generation."""

    collector = models.CharField(max_length=255)
    generation = models.PositiveIntegerField()
    position = models.PositiveIntegerField()
    payload = models.JSONField()

    class Meta:
        ordering = ("collector", "generation", "position")

    def __str__(self) -> str:
        return f"{self.collector} {self.generation}.{self.position}"
