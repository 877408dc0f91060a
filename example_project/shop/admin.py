"""The shop's tables in the admin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from example_project.shop.models import (
    Cart,
    CollectedEvent,
    Invoice,
    Notice,
    Product,
    SalesReport,
    Shipment,
    Stock,
    StockMovement,
)
from example_project.shop.tasks import announce_price

if TYPE_CHECKING:
    # Generic in the stubs only.
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


@admin.register(Product)
class ProductAdmin(ModelAdmin):
    """Admin of the products."""

    list_display = ("id", "name", "department", "category", "package_size", "price")
    search_fields = ("id", "kind", "category")
    list_filter = ("department",)
    actions = ("announce_prices",)

    @admin.action(description="Announce the price to all customers", permissions=["change"])
    def announce_prices(self, request: HttpRequest, queryset: QuerySet[Product]) -> None:
        """Enqueue a mail for each customer and product. A worker sends them."""
        customers = Cart.objects.order_by("user__username").values_list("user__username", flat=True).distinct()
        tasks = [announce_price.enqueue(product.pk, customer) for product in queryset for customer in customers]
        self.message_user(request, f"{len(tasks)} mails will be sent.")


@admin.register(Stock)
class StockAdmin(ModelAdmin):
    """Admin of the stock: units on hand."""

    list_display = ("product_id", "on_hand", "booked")
    search_fields = ("product_id",)


@admin.register(StockMovement)
class StockMovementAdmin(ModelAdmin):
    """Admin of the bookings of stock."""

    list_display = ("at", "cart_id", "kind", "product_id", "quantity")
    search_fields = ("cart_id", "product_id")
    list_filter = ("kind",)


@admin.register(Cart)
class CartAdmin(ModelAdmin):
    """Admin of the carts, with the state that their workflows published: one statement for a whole page."""

    list_display = ("id", "user", "created_at", "closed_at", "phase", "total")
    search_fields = ("id", "user__username")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Cart]:
        """Return the carts with the state of their workflows."""
        return super().get_queryset(request).with_workflow_state("phase", "total")  # type: ignore[attr-defined,no-any-return] # of its manager

    @admin.display(ordering="workflow_phase")
    def phase(self, cart: Any) -> str:
        """Return the phase of the cart's workflow."""
        return cart.workflow_phase or "–"

    @admin.display(ordering="workflow_total")
    def total(self, cart: Any) -> str:
        """Return the sum of the lines, as the workflow has computed it."""
        return "–" if cart.workflow_total is None else f"{cart.workflow_total:.2f}"


@admin.register(Shipment)
class ShipmentAdmin(ModelAdmin):
    """Admin of the parcels with the carrier."""

    list_display = ("parcel", "order", "shipped_at", "delivered_at")
    search_fields = ("parcel", "order")


@admin.register(Invoice)
class InvoiceAdmin(ModelAdmin):
    """Admin of the invoices of orders."""

    list_display = ("id", "order", "customer", "cents", "at")
    search_fields = ("order", "customer")


@admin.register(SalesReport)
class SalesReportAdmin(ModelAdmin):
    """Admin of the reports that close the books."""

    list_display = ("id", "day", "slot", "bookings", "units", "invoices", "cents")
    list_filter = ("day",)


@admin.register(Notice)
class NoticeAdmin(ModelAdmin):
    """Admin of the messages to customers."""

    list_display = ("at", "recipient", "subject")
    search_fields = ("recipient", "subject")


@admin.register(CollectedEvent)
class CollectedEventAdmin(ModelAdmin):
    """Admin of the stored events."""

    list_display = ("collector", "generation", "position", "payload")
    search_fields = ("collector",)
