"""Invoices, their payments and their write-offs."""

from __future__ import annotations

from django.core.validators import MinValueValidator
from django.db import models

from example_project.invoices.values import CENT, LONGEST_REFERENCE
from temporalex_django.models.states import WorkflowStateQuerySet


class Invoice(models.Model):
    """A sum that a customer owes. The run of the invoice says how it proceeds."""

    class Status(models.TextChoices):
        OPEN = "open", "open"
        PAID = "paid", "paid"
        WRITTEN_OFF = "written off", "written off"

    number = models.CharField(max_length=20, unique=True)
    customer = models.EmailField()
    total = models.DecimalField(max_digits=10, decimal_places=2, validators=[MinValueValidator(CENT)])
    status = models.CharField(max_length=20, choices=Status.choices, default=Status.OPEN)
    issued_at = models.DateTimeField(auto_now_add=True)

    objects = WorkflowStateQuerySet.as_manager()

    class Meta:
        ordering = ("number",)
        permissions = (
            ("book_payment", "Can book payments of invoices"),
            ("write_off_invoice", "Can write invoices off"),
        )

    def __str__(self) -> str:
        return f"invoice {self.number}"


class Payment(models.Model):
    """A payment of an invoice."""

    invoice = models.ForeignKey(Invoice, on_delete=models.CASCADE, related_name="payments")
    reference = models.CharField(max_length=LONGEST_REFERENCE)
    amount = models.DecimalField(max_digits=10, decimal_places=2)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("invoice", "reference"), name="invoices_payment_once"),)

    def __str__(self) -> str:
        return f"{self.amount} for {self.invoice}"


class WriteOff(models.Model):
    """The rest of an invoice that will never be paid."""

    invoice = models.OneToOneField(Invoice, on_delete=models.CASCADE, related_name="write_off")
    amount = models.DecimalField(max_digits=10, decimal_places=2)
    approved_by = models.CharField(max_length=150)

    def __str__(self) -> str:
        return f"{self.amount} of {self.invoice}"
