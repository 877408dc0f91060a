"""The shop's tables in the admin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from example_project.shop.models import Cart, CollectedEvent, Invoice, Notice, Product, Shipment, Stock, StockMovement

if TYPE_CHECKING:
    # Generic in the stubs only.
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


@admin.register(Product)
class ProductAdmin(ModelAdmin):
    """Products."""

    list_display = ("id", "name", "department", "category", "package_size", "price")
    search_fields = ("id", "kind", "category")
    list_filter = ("department",)


@admin.register(Stock)
class StockAdmin(ModelAdmin):
    """Units on hand."""

    list_display = ("product_id", "on_hand", "booked")
    search_fields = ("product_id",)


@admin.register(StockMovement)
class StockMovementAdmin(ModelAdmin):
    """Bookings."""

    list_display = ("at", "cart_id", "kind", "product_id", "quantity")
    search_fields = ("cart_id", "product_id")
    list_filter = ("kind",)


@admin.register(Cart)
class CartAdmin(ModelAdmin):
    """Carts of the web shop, with what their workflows have published: one statement for all of a page."""

    list_display = ("id", "user", "created_at", "closed_at", "phase", "total")
    search_fields = ("id", "user__username")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Cart]:
        """With the state of their workflows."""
        return super().get_queryset(request).with_workflow_state("phase", "total")  # type: ignore[attr-defined,no-any-return] # of its manager

    @admin.display(ordering="workflow_phase")
    def phase(self, cart: Any) -> str:
        """Where its workflow is."""
        return cart.workflow_phase or "–"

    @admin.display(ordering="workflow_total")
    def total(self, cart: Any) -> str:
        """What its lines cost, as its workflow has added them up."""
        return "–" if cart.workflow_total is None else f"{cart.workflow_total:.2f}"


@admin.register(Shipment)
class ShipmentAdmin(ModelAdmin):
    """Parcels with the carrier."""

    list_display = ("parcel", "order", "shipped_at", "delivered_at")
    search_fields = ("parcel", "order")


@admin.register(Invoice)
class InvoiceAdmin(ModelAdmin):
    """Invoices of orders."""

    list_display = ("id", "order", "customer", "cents", "at")
    search_fields = ("order", "customer")


@admin.register(Notice)
class NoticeAdmin(ModelAdmin):
    """Messages to customers."""

    list_display = ("at", "recipient", "subject")
    search_fields = ("recipient", "subject")


@admin.register(CollectedEvent)
class CollectedEventAdmin(ModelAdmin):
    """Stored events."""

    list_display = ("collector", "generation", "position", "payload")
    search_fields = ("collector",)
