"""Invoices in the admin, with their runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin

from example_project.invoices.models import Invoice, Payment
from temporalex_django.admin import WorkflowAdminMixin

if TYPE_CHECKING:
    # Generic in the stubs only.
    ModelAdmin = admin.ModelAdmin[Any]
    TabularInline = admin.TabularInline[Any, Any]
else:
    ModelAdmin = admin.ModelAdmin
    TabularInline = admin.TabularInline


class PaymentInline(TabularInline):
    """Payments of an invoice, read-only: only runs book them."""

    model = Payment
    extra = 0
    readonly_fields = ("reference", "amount", "at")
    can_delete = False
    max_num = 0


@admin.register(Invoice)
class InvoiceAdmin(WorkflowAdminMixin, ModelAdmin):
    """Invoices with their runs. People issue them at the desk; a run keeps the terms that it was started with."""

    list_display = ("number", "customer", "total", "status", "issued_at")
    list_filter = ("status",)
    search_fields = ("number", "customer")
    readonly_fields = ("number", "customer", "total", "status", "issued_at")
    inlines = (PaymentInline,)

    def has_add_permission(self, request: Any) -> bool:
        return False
