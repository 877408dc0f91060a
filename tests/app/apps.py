"""The app whose workflows, activities and models the tests run."""

from __future__ import annotations

from django.apps import AppConfig


class TestAppConfig(AppConfig):
    """Registers as ``tests_app``, so that it cannot collide with an app of a host project."""

    name = "tests.app"
    label = "tests_app"
    default_auto_field = "django.db.models.BigAutoField"
