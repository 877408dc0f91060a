"""Objects with the state of the runs that were started for them, joined by the database."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Self, TypeVar

from django.contrib.contenttypes.models import ContentType
from django.db import connections, models
from django.db.models import OuterRef, Subquery
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast

from temporalex_django import conf
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.facade import Startable
from temporalex_django.core.names import shown
from temporalex_django.errors import NotConfigured
from temporalex_django.models.instance import Instance

M = TypeVar("M", bound=models.Model)

_FIELDS: Mapping[type, models.Field[Any, Any]] = {
    str: models.TextField(),
    int: models.BigIntegerField(),
    Decimal: models.DecimalField(max_digits=40, decimal_places=12),
}
_KEY = models.CharField(max_length=200)


class WorkflowStateQuerySet(models.QuerySet[M]):
    """For a model whose objects runs are started for: ``objects = WorkflowStateQuerySet.as_manager()``."""

    def with_workflow_state(self, *names: str, workflow: type[Startable] | None = None) -> Self:
        """Objects with ``workflow_<name>`` for each of the fields, to be shown, filtered by and ordered by.

        They are fields that a workflow class declares as ``stored``: as the newest run with ``subject=`` the object
        published them last; None where there is no such run or field. ``workflow``: of runs of that class alone. Raises
        ``TypeError`` for a name that is not declared, ``NotConfigured`` where the database cannot join the two.
        """
        alias = self.db
        self._require_joinable(alias)
        runs = Instance.objects.using(alias).filter(
            subject_type=ContentType.objects.db_manager(alias).get_for_model(self.model),
            subject_id=Cast(OuterRef("pk"), _KEY),
        )
        if workflow is not None:
            runs = runs.filter(workflow=workflow.name)
        kinds = _declared(workflow)
        found = {}
        for name in names:
            if name not in kinds:
                known = ", ".join(sorted(kinds)) or "none"
                raise TypeError(f"with_workflow_state: no class stores {shown(name)} (stored are: {known})")
            if len(kinds[name]) > 1:
                raise TypeError(
                    f"with_workflow_state: classes store {name!r} with several types; name one by workflow="
                )
            field = _FIELDS[next(iter(kinds[name]))]
            value = Cast(KeyTextTransform(name, "stored"), field)
            newest = runs.filter(stored__has_key=name).order_by("-pk")
            found[f"workflow_{name}"] = Subquery(newest.values(field_of_state=value)[:1], output_field=field)
        return self.annotate(**found)

    def _require_joinable(self, alias: str) -> None:
        there = conf.read()[0].DATABASE
        if alias != there:
            raise NotConfigured(
                f"the runs are in the database {there!r}, these objects in {alias!r}: neither can join the other"
            )
        key = self.model._meta.pk  # noqa: SLF001 - Django documents it
        if isinstance(key, models.UUIDField) and not connections[alias].features.has_native_uuid_field:
            raise NotConfigured(f"this database keeps the UUIDs of {self.model.__name__} in another form than runs do")


def _declared(workflow: type[Startable] | None) -> dict[str, set[type]]:
    """The types of stored fields, by name."""
    found: dict[str, set[type]] = {}
    for cls in workflows.concrete():
        if workflow is None or cls.name == workflow.name:
            for name, kind in cls.stored.items():
                found.setdefault(name, set()).add(kind)
    return found
