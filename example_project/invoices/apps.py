"""Invoices as a Django app."""

from __future__ import annotations

from django.apps import AppConfig


class InvoicesConfig(AppConfig):
    """The app of the invoices; temporalex_django finds its workflows.py and activities.py."""

    name = "example_project.invoices"
    label = "invoices"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Invoices"
