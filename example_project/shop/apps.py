"""The shop as a Django app."""

from __future__ import annotations

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """Its workflows.py and activities.py are found by temporalex_django."""

    name = "example_project.shop"
    label = "shop"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Shop"
