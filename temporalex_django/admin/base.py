"""What our admin pages share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from django.contrib import admin
from django.core.paginator import Paginator
from django.db import connections, models
from django.http import HttpRequest
from django.utils.functional import cached_property

from temporalex_django.actions.base import storage

M = TypeVar("M", bound=models.Model)

if TYPE_CHECKING:

    class Admin(admin.ModelAdmin[M]):
        """Generic in the stubs only."""

else:

    class Admin(admin.ModelAdmin):
        """Generic in the stubs only."""

        def __class_getitem__(cls, _: object) -> type[Admin]:
            return cls


class ReadOnlyAdmin(Admin[M]):
    """Rows are written by turns and by ``actions`` alone, so nobody may add, change or delete them here."""

    actions = None
    show_full_result_count = False
    list_per_page = 50
    list_max_show_all = 200

    class Media:
        css = {"all": ("temporalex_django/admin.css",)}

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[M]:
        return super().get_queryset(request).using(storage().alias)

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        return False


class EstimatedPaginator(Paginator):  # type: ignore[type-arg] # generic in the stubs only
    """Takes the planner's estimate for a big table without a filter, where counting costs seconds."""

    BIG = 50_000

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        connection = connections[rows.db]
        if connection.vendor == "postgresql" and not rows.query.where:
            with connection.cursor() as cursor:
                table = rows.model._meta.db_table  # noqa: SLF001 - Django documents it
                cursor.execute("select reltuples::bigint from pg_class where oid = %s::regclass", [table])
                estimate = int((cursor.fetchone() or (0,))[0])
            if estimate > self.BIG:
                return estimate
        return int(rows.count())
