"""Tables as they were before a test that commits.

Django's ``flush`` ends with ``post_migrate``, which makes the content types and permissions that are gone anew: most of
what such a test takes. Here they stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db import connections, transaction

if TYPE_CHECKING:
    from django.test import TransactionTestCase

KEPT = (Permission, ContentType)
_first: dict[str, dict[type, set[int]]] = {}


def remember() -> None:
    """What a database holds before any test."""
    for alias in connections:
        _first[alias] = {model: set(model._base_manager.using(alias).values_list("pk", flat=True)) for model in KEPT}


def empty(case: TransactionTestCase) -> None:
    """In place of ``TransactionTestCase._fixture_teardown``."""
    for alias in case._databases_names(include_mirrors=False):
        connection = connections[alias]
        kept = {model._meta.db_table for model in KEPT}
        tables = set(connection.introspection.django_table_names(only_existing=True, include_views=False)) - kept
        with transaction.atomic(using=alias), connection.cursor() as cursor:
            for name in sorted(tables):  # foreign keys are looked at when all are empty
                cursor.execute(f"delete from {connection.ops.quote_name(name)}")
            for model, there in _first[alias].items():
                model._base_manager.using(alias).exclude(pk__in=there).delete()
