"""Objects with the state of the runs that were started for them, joined by the database."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Self, TypeVar

from django.contrib.contenttypes.models import ContentType
from django.db import connections, models
from django.db.models import Case, OuterRef, Q, Subquery, When
from django.db.models.expressions import Combinable
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast

from temporalex_django import conf
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.start_api import Startable
from temporalex_django.core.names import quoted
from temporalex_django.errors import NotConfigured
from temporalex_django.models.instance import Instance

M = TypeVar("M", bound=models.Model)

_FIELDS: Mapping[type, models.Field[Any, Any]] = {
    str: models.TextField(),
    int: models.BigIntegerField(),
    Decimal: models.DecimalField(max_digits=40, decimal_places=12),
}
_KEY = models.CharField(max_length=200)
_TEXT = "text_of_state"
#: What a number may look like that its type can hold. Those of 19 digits are compared as text, which is as long.
_VALID_TEXT: Mapping[type, Q] = {
    int: Q(text_of_state__regex=r"^-?[0-9]{1,18}\Z")
    | Q(text_of_state__regex=r"^[0-9]{19}\Z", text_of_state__lte=str(2**63 - 1))
    | Q(text_of_state__regex=r"^-[0-9]{19}\Z", text_of_state__lte=str(-(2**63))),
    Decimal: Q(text_of_state__regex=r"^-?[0-9]{1,20}([.][0-9]+)?\Z"),
}


class WorkflowStateQuerySet(models.QuerySet[M]):
    """For a model whose objects runs are started for: ``objects = WorkflowStateQuerySet.as_manager()``."""

    def with_workflow_state(self, *names: str, workflow: type[Startable] | None = None) -> Self:
        """Objects with ``workflow_<name>`` for each of the fields, to be shown, filtered by and ordered by.

        They are fields that a workflow class declares as ``stored``: as the newest run with ``subject=`` the object
        published them last; None where there is no such run or field, and for what was stored when the class declared
        another type, as far as it is none of this one. ``workflow``: of runs of that class alone. Raises ``TypeError``
        for a name that is not declared, ``NotConfigured`` where the database cannot join the two.
        """
        alias = self.db
        self._require_joinable(alias)
        runs = Instance.objects.using(alias).filter(
            subject_type=ContentType.objects.db_manager(alias).get_for_model(self.model),
            subject_id=Cast(OuterRef("pk"), _KEY),
        )
        if workflow is not None:
            runs = runs.filter(workflow=workflow.name)
        kinds = _stored_types(workflow)
        annotations = {}
        for name in names:
            if name not in kinds:
                stored_names = ", ".join(sorted(kinds)) or "none"
                raise TypeError(f"with_workflow_state: no class stores {quoted(name)} (stored are: {stored_names})")
            if len(kinds[name]) > 1:
                subject = "classes store" if workflow is None else f"the versions of {workflow.name} store"
                raise TypeError(f"with_workflow_state: {subject} {name!r} with several types; name one by workflow=")
            (kind,) = kinds[name]
            newest = runs.filter(stored__has_key=name).order_by("-pk")
            newest = newest.alias(**{_TEXT: Cast(KeyTextTransform(name, "stored"), models.TextField())})
            value = Subquery(newest.values(field_of_state=_typed_expression(kind))[:1], output_field=_FIELDS[kind])
            annotations[f"workflow_{name}"] = value
        return self.annotate(**annotations)

    def _require_joinable(self, alias: str) -> None:
        runs_alias = conf.read()[0].DATABASE
        if alias != runs_alias:
            raise NotConfigured(
                f"the runs are in the database {runs_alias!r}, these objects in {alias!r}: neither can join the other"
            )
        key = self.model._meta.pk  # noqa: SLF001 - Django documents it
        if isinstance(key, models.UUIDField) and not connections[alias].features.has_native_uuid_field:
            raise NotConfigured(f"this database keeps the UUIDs of {self.model.__name__} in another form than runs do")


def _typed_expression(kind: type) -> Combinable:
    """Of the text, what fits: one row that an older class has written would make the whole query fail."""
    cast = Cast(_TEXT, _FIELDS[kind])
    return Case(When(_VALID_TEXT[kind], then=cast)) if kind in _VALID_TEXT else cast


def _stored_types(workflow: type[Startable] | None) -> dict[str, set[type]]:
    """The types of stored fields, by name; those of a class that is a version itself are its own."""
    if workflow is not None and issubclass(workflow, workflows.Workflow):
        return {name: {kind} for name, kind in workflow.stored.items()}
    types: dict[str, set[type]] = {}
    for cls in workflows.concrete_classes():
        if workflow is None or cls.name == workflow.name:
            for name, kind in cls.stored.items():
                types.setdefault(name, set()).add(kind)
    return types
