"""Querysets of your own models with the state of the runs that were started for their objects."""

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
from temporalex_django.models.runs import Instance

M = TypeVar("M", bound=models.Model)

_FIELDS: Mapping[type, models.Field[Any, Any]] = {
    str: models.TextField(),
    int: models.BigIntegerField(),
    Decimal: models.DecimalField(max_digits=40, decimal_places=12),
}
_KEY = models.CharField(max_length=200)
_TEXT = "text_of_state"
#: Texts that the numeric type can hold, so that the cast cannot overflow. Numbers of 19 digits may exceed 64 bits. They
#: are compared as text, which gives the same order because the lengths are equal.
_VALID_TEXT: Mapping[type, Q] = {
    int: Q(text_of_state__regex=r"^-?[0-9]{1,18}\Z")
    | Q(text_of_state__regex=r"^[0-9]{19}\Z", text_of_state__lte=str(2**63 - 1))
    | Q(text_of_state__regex=r"^-[0-9]{19}\Z", text_of_state__lte=str(-(2**63))),
    Decimal: Q(text_of_state__regex=r"^-?[0-9]{1,20}([.][0-9]+)?\Z"),
}


class WorkflowStateQuerySet(models.QuerySet[M]):
    """A queryset for a model whose objects are subjects of runs.

    Use it as ``objects = WorkflowStateQuerySet.as_manager()``.
    """

    def with_workflow_state(self, *names: str, workflow: type[Startable] | None = None) -> Self:
        """Annotate objects with ``workflow_<name>`` for each named field.

        You can show, filter by and order by these annotations. The names are fields that a workflow class declares as
        ``stored``. The value is the one published last by the newest run whose ``subject=`` is the object. It is None
        if there is no such run or field. It is also None if the stored value does not fit the declared type, since the
        class may have declared another type when it was stored. With ``workflow`` only runs of that class count.

        Raises ``TypeError`` for a name that is not declared, and for a name that is stored with several types. Raises
        ``NotConfigured`` if the database cannot join the two tables.
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
                raise TypeError(f"with_workflow_state: no class stores {quoted(name)} (stored fields: {stored_names})")
            if len(kinds[name]) > 1:
                subject = "classes store" if workflow is None else f"the versions of {workflow.name} store"
                raise TypeError(f"with_workflow_state: {subject} {name!r} with several types; pass one as workflow=")
            (kind,) = kinds[name]
            newest = runs.filter(stored__has_key=name).order_by("-pk")
            # The value is cast from JSON to text first. The type is checked on that text before the second cast, since
            # a failed cast would abort the query.
            newest = newest.alias(**{_TEXT: Cast(KeyTextTransform(name, "stored"), models.TextField())})
            value = Subquery(newest.values(field_of_state=_typed_expression(kind))[:1], output_field=_FIELDS[kind])
            annotations[f"workflow_{name}"] = value
        return self.annotate(**annotations)

    def _require_joinable(self, alias: str) -> None:
        runs_alias = conf.read()[0].DATABASE
        if alias != runs_alias:
            raise NotConfigured(
                f"the runs are in the database {runs_alias!r}, these objects are in {alias!r}: no query joins them"
            )
        key = self.model._meta.pk  # noqa: SLF001 - Django documents it
        # Subjects are stored as text. Without a native type the key column holds the UUID without hyphens, so the texts
        # would never match.
        if isinstance(key, models.UUIDField) and not connections[alias].features.has_native_uuid_field:
            raise NotConfigured(
                f"this database stores the UUIDs of {self.model.__name__} in a different format from that of runs"
            )


def _typed_expression(kind: type) -> Combinable:
    """Convert to NULL what does not fit: an older class may have used another type, and a plain cast would fail."""
    cast = Cast(_TEXT, _FIELDS[kind])
    return Case(When(_VALID_TEXT[kind], then=cast)) if kind in _VALID_TEXT else cast


def _stored_types(workflow: type[Startable] | None) -> dict[str, set[type]]:
    """Return the types of each stored field by name, of one class or of all; a version has only its own fields."""
    if workflow is not None and issubclass(workflow, workflows.Workflow):
        return {name: {kind} for name, kind in workflow.stored.items()}
    types: dict[str, set[type]] = {}
    for cls in workflows.concrete_classes():
        if workflow is None or cls.name == workflow.name:
            for name, kind in cls.stored.items():
                types.setdefault(name, set()).add(kind)
    return types
