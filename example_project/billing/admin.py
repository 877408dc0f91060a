"""Subscriptions in the admin, with their runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin

from example_project.billing.models import Bill, Subscription
from temporalex_django.admin import WorkflowAdminMixin

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]  # generic in the stubs only
else:
    ModelAdmin = admin.ModelAdmin


@admin.register(Subscription, Bill)
class BillingAdmin(WorkflowAdminMixin, ModelAdmin):
    """Subscriptions and bills with their runs, read-only: only runs change them."""

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False
