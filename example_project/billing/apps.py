"""Subscriptions as a Django app."""

from __future__ import annotations

from django.apps import AppConfig


class BillingConfig(AppConfig):
    """The app of the subscriptions; temporalex_django finds its workflows, activities and schedules."""

    name = "example_project.billing"
    label = "billing"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Billing"
