"""Invoices as a Django app."""

from __future__ import annotations

from django.apps import AppConfig


class InvoicesConfig(AppConfig):
    """Its workflows.py and activities.py are found by temporalex_django."""

    name = "example_project.invoices"
    label = "invoices"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Invoices"
