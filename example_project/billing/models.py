"""Subscriptions, their bills, and what was paid back."""

from __future__ import annotations

from django.core.validators import MinValueValidator
from django.db import models

from example_project.billing.values import CENT
from temporalex_django.models.states import WorkflowStateQuerySet


class Subscription(models.Model):
    """A customer's subscription. Its run says how it proceeds."""

    class Status(models.TextChoices):
        OPEN = "open", "open"
        CANCELLED = "cancelled", "cancelled"
        UNPAID = "unpaid", "closed, because a bill was not paid"

    customer = models.EmailField()
    price = models.DecimalField(max_digits=10, decimal_places=2, validators=[MinValueValidator(CENT)])
    status = models.CharField(max_length=20, choices=Status.choices, default=Status.OPEN)

    objects = WorkflowStateQuerySet.as_manager()

    class Meta:
        permissions = (("approve_refund", "Can approve refunds"),)

    def __str__(self) -> str:
        return f"subscription {self.pk}"


class Bill(models.Model):
    """The bill of one month, in advance."""

    subscription = models.ForeignKey(Subscription, on_delete=models.CASCADE, related_name="bills")
    month = models.PositiveIntegerField()
    amount = models.DecimalField(max_digits=10, decimal_places=2)
    charge = models.CharField(max_length=100, blank=True)  # the payment, as the provider calls it
    paid_at = models.DateTimeField(null=True)
    refunded = models.DecimalField(max_digits=10, decimal_places=2, default=0)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("subscription", "month"), name="billing_bill_once"),)

    def __str__(self) -> str:
        return f"bill {self.month} of {self.subscription}"
