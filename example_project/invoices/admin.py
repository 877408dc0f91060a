"""Invoices in the admin, with the runs that are about them."""

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
    """Money that came; runs book it, nobody else."""

    model = Payment
    extra = 0
    readonly_fields = ("reference", "amount", "at")
    can_delete = False
    max_num = 0


@admin.register(Invoice)
class InvoiceAdmin(WorkflowAdminMixin, ModelAdmin):
    """Invoices: issued at the desk, with their runs, which go by what they were issued with."""

    list_display = ("number", "customer", "total", "status", "issued_at")
    list_filter = ("status",)
    search_fields = ("number", "customer")
    readonly_fields = ("number", "customer", "total", "status", "issued_at")
    inlines = (PaymentInline,)

    def has_add_permission(self, request: Any) -> bool:
        return False
