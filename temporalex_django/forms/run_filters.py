"""The filters of a list of runs, used by REST, commands and the console."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

import django_filters
from django import forms
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.utils.translation import gettext_lazy as _
from django_filters.constants import EMPTY_VALUES

from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.run_filters import (
    INTERFACE_FILTERS,
    WAIT_KINDS,
    FilterRow,
    FilterType,
    parse_conditions,
)
from temporalex_django.core.names import quoted
from temporalex_django.core.payloads.search_attributes import to_utc
from temporalex_django.errors import UnknownWorkflow
from temporalex_django.models import Instance, Status
from temporalex_django.operations.read import run_filters

_MAX_INTEGER = 2**31 - 1


class SubjectField(forms.CharField):
    """Form field for the object that a run was started for, written as ``app.model:key``.

    Its value is a pair of a content type and a key.
    """

    def clean(self, value: Any) -> tuple[ContentType, str] | None:
        text = super().clean(value)
        if not text:
            return None
        model, colon, key = text.partition(":")
        app, dot, name = model.partition(".")
        if not (colon and dot and key):
            raise ValidationError(_("Enter app.model:key, such as shop.order:42."))
        try:
            return ContentType.objects.get_by_natural_key(app, name.lower()), key
        except ContentType.DoesNotExist:
            raise ValidationError(_("There is no such model. Enter app.model:key, such as shop.order:42.")) from None


class TrueFalseField(forms.Field):
    """Form field for a boolean that accepts only the texts ``true`` and ``false``."""

    def to_python(self, value: Any) -> bool | None:
        if value in (None, ""):
            return None
        # ``forms.BooleanField`` reads every unknown text as true.
        if value not in ("true", "false"):
            raise ValidationError(_("Enter true or false."))
        return bool(value == "true")


class TableFilter(django_filters.Filter):  # type: ignore[misc] # it ships no types
    """Base class of the filters of runs; ``field_name`` names the row of ``RUN_FILTERS`` whose query it applies."""

    def filter(self, runs: QuerySet[Instance], value: Any) -> QuerySet[Instance]:
        if value in EMPTY_VALUES:
            return runs
        return run_filters.FILTERS[self.field_name](runs, value)


class NameFilter(TableFilter, django_filters.CharFilter):  # type: ignore[misc] # as above
    """Filter for runs by a text, such as a name, an id or a tag."""


class StatusFilter(TableFilter, django_filters.BaseInFilter, django_filters.ChoiceFilter):  # type: ignore[misc] # as above
    """Filter for runs by one status, or by several that are separated by commas."""


class WholeNumberFilter(TableFilter):
    """Filter for runs by a whole number, such as the version of their class."""

    field_class = forms.IntegerField


class SubjectFilter(TableFilter):
    """Filter for the runs that were started for one object (``subject``)."""

    field_class = SubjectField

    def filter(self, runs: QuerySet[Instance], value: tuple[ContentType, str] | None) -> QuerySet[Instance]:
        if value is None:
            return runs
        return runs.filter(subject_type=value[0], subject_id=value[1])


class FlagFilter(TableFilter):
    """Filter for a yes-or-no property of runs, such as ``paused``; the value is ``true`` or ``false``."""

    field_class = TrueFalseField


class UTCDateTimeField(django_filters.IsoDateTimeFilter.field_class):  # type: ignore[misc] # as above
    """Form field for a time; it refuses a time that is not in the years 2 to 9998 in UTC."""

    def clean(self, value: Any) -> Any:
        moment = super().clean(value)
        try:
            if moment is None:
                return None
            return to_utc(moment)
        except ValueError:
            raise ValidationError(_("Enter a time in the years 2 to 9998 in UTC.")) from None


class UTCDateTimeFilter(TableFilter, django_filters.IsoDateTimeFilter):  # type: ignore[misc] # as above
    """Filter for runs by a time in ISO 8601, such as ``created_after``."""

    field_class = UTCDateTimeField


class WaitKindFilter(TableFilter, django_filters.ChoiceFilter):  # type: ignore[misc] # as above
    """Filter for open runs that wait for a kind of thing, such as a timer or a signal."""


class AttributesField(forms.CharField):
    """Form field for a JSON object; it reads fractions as ``Decimal``, so that no digit is lost."""

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text:
            return None
        try:
            # A float would change 0.1, and would not equal the stored decimal.
            return json.loads(text, parse_float=Decimal)
        except (ValueError, RecursionError, InvalidOperation):  # the last: an exponent with too many digits
            raise ValidationError(_('Enter a JSON object, such as {"total__gt": 1000}.')) from None


class AttributesFilter(TableFilter):
    """Filter for runs by their search attributes, with an object of conditions such as ``{"total__gt": 1000}``."""

    field_class = AttributesField


class RunFilterForm(forms.Form):
    """Form that validates the filters of runs.

    It checks search attributes against the class that ``workflow`` names.
    """

    def clean(self) -> dict[str, Any]:
        # Only here are both fields known: the types of the attributes depend on the class.
        cleaned = super().clean() or self.cleaned_data
        if (attributes := cleaned.get("attributes")) is None:
            return cleaned
        try:
            cleaned["attributes"] = parse_conditions(
                workflows.find(cleaned.get("workflow") or ""), attributes, texts=True
            )
        # Attributes belong to a class, so they need the filter ``workflow`` beside them.
        except UnknownWorkflow as exc:
            message = (
                exc.message
                if cleaned.get("workflow")
                else _("Set the Workflow filter to the class that declares these attributes.")
            )
            self.add_error("attributes", message)
        except (TypeError, ValueError) as exc:
            self.add_error("attributes", str(exc))
        return cleaned


#: Class of the filter for each type of the table, with its arguments.
TYPE_CLASSES: Mapping[FilterType, tuple[type[TableFilter], Mapping[str, Any]]] = {
    FilterType.NAME: (NameFilter, {}),
    FilterType.TEXT: (NameFilter, {"strip": False}),
    FilterType.CAUSE: (NameFilter, {"strip": False}),
    FilterType.STATUSES: (StatusFilter, {"choices": Status.choices}),
    FilterType.INTEGER: (WholeNumberFilter, {"min_value": 1, "max_value": _MAX_INTEGER}),
    FilterType.BOOLEAN: (FlagFilter, {}),
    FilterType.WAIT_KIND: (WaitKindFilter, {"choices": [(kind, kind) for kind in WAIT_KINDS]}),
    FilterType.SUBJECT: (SubjectFilter, {}),
    FilterType.DATETIME: (UTCDateTimeFilter, {}),
    FilterType.ATTRIBUTES: (AttributesFilter, {}),
}


def _make_filter(row: FilterRow) -> TableFilter:
    filter_class, options = TYPE_CLASSES[row.type]
    return filter_class(field_name=row.name, help_text=_(row.help), **options)


class RunFilter(django_filters.FilterSet):  # type: ignore[misc] # as above
    """The filters of a list of runs.

    Subclass it to add more, and name your class as ``filterset_class`` of the view set.
    """

    class Meta:
        form = RunFilterForm

    # The metaclass collects the filters of the class body, where ``vars()`` is the namespace of the class.
    vars().update({name: _make_filter(row) for name, row in INTERFACE_FILTERS.items()})


def select_runs(
    filterset_class: type[RunFilter], parameters: Mapping[str, str], runs: QuerySet[Instance]
) -> QuerySet[Instance]:
    """Return the ``runs`` that match the filters in a query string.

    ``parameters`` has the value of each filter as text, by the names of ``filterset_class``. Raises ``ValidationError``
    with the texts by the name of the filter for an unknown filter, and for a value that a filter does not take.
    """
    if unknown := [name for name in parameters if name not in filterset_class.base_filters]:
        allowed = ", ".join(filterset_class.base_filters)
        raise ValidationError({"unknown": [f"There is no filter {quoted(unknown[0])}. The filters are {allowed}."]})
    # Databases refuse some control characters in parameters.
    if unprintable := [name for name, text in parameters.items() if not text.isprintable()]:
        raise ValidationError({unprintable[0]: ["Use printable characters only."]})
    filterset = filterset_class(data=parameters, queryset=runs)
    if not filterset.is_valid():
        raise ValidationError({name: [*messages] for name, messages in filterset.errors.items()})
    filtered_runs: QuerySet[Instance] = filterset.qs
    return filtered_runs
