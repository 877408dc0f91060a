"""A list filter by the search attributes of the chosen workflow class, with a form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.run_filters import RUN_FILTERS, condition_keys, parse_conditions
from temporalex_django.authoring.start_api import Startable
from temporalex_django.models import Instance
from temporalex_django.operations.read import run_filters

_ROW = RUN_FILTERS["attributes"]
_ALL_PARAM, _NAME_PARAM, _VALUE_PARAM = _ROW.name, "attribute", "attribute_value"
#: Parameters of an address that a link of this filter drops: its own, the page, and the error flag of Django.
_DROPPED_PARAMS = frozenset({_ALL_PARAM, _NAME_PARAM, _VALUE_PARAM, "p", "e"})
_OPERATOR_SIGNS = {"": "=", "gt": ">", "gte": "≥", "lt": "<", "lte": "≤", "prefix": _("begins with")}


class SearchAttributeFilter(admin.ListFilter):
    """List filter by search attributes; a form adds a condition to the JSON in the address, as in the REST API."""

    title = _(_ROW.title)
    #: The parameters of an address that belong to this filter.
    parameters = (_ALL_PARAM, _NAME_PARAM, _VALUE_PARAM)
    template = "admin/temporalex_django/instance/attributes_filter.html"

    def __init__(self, request: HttpRequest, params: dict[str, list[str]], model: Any, model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        # Django treats what is left in params as lookups of fields, so a filter removes its own.
        raw_params = {name: (params.pop(name, None) or [""])[-1] for name in self.parameters}
        self.other_params = [(name, str(value)) for name, value in request.GET.items() if name not in _DROPPED_PARAMS]
        self.workflow_class: type[Startable] | None = workflows.registry.get(request.GET.get("workflow", ""))
        self.attribute_lookups = _parse_lookups(raw_params[_ALL_PARAM])
        if raw_params[_NAME_PARAM]:
            self.attribute_lookups = {
                **(self.attribute_lookups or {}),
                raw_params[_NAME_PARAM]: raw_params[_VALUE_PARAM],
            }

    def has_output(self) -> bool:
        """Return True if the chosen class has search attributes, or the address has conditions."""
        # Conditions show even without a class: otherwise the list would be empty and nobody could remove them.
        return self.attribute_lookups != {} or (
            self.workflow_class is not None and bool(condition_keys(self.workflow_class))
        )

    def expected_parameters(self) -> list[str | None]:
        return [*self.parameters]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Instance]) -> QuerySet[Instance]:
        if self.attribute_lookups == {}:
            return queryset
        if self.workflow_class is None:
            messages.error(request, _("Choose the workflow that has these search attributes."))
            return queryset.none()
        if self.attribute_lookups is None:
            messages.error(request, _('Enter a JSON object, such as {"total__gt": 1000}.'))
            return queryset.none()
        try:
            parsed_conditions = parse_conditions(self.workflow_class, self.attribute_lookups, texts=True)
        except (TypeError, ValueError) as exc:
            messages.error(request, str(exc))
            return queryset.none()
        return run_filters.with_attributes(queryset, parsed_conditions)

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Yield each condition with the address of the list without it."""
        for name, value in (self.attribute_lookups or {}).items():
            remaining = {
                other_name: other_value
                for other_name, other_value in (self.attribute_lookups or {}).items()
                if other_name != name
            }
            query_params = [*self.other_params, *([(_ALL_PARAM, _encode_lookups(remaining))] if remaining else [])]
            yield {
                "display": f"{_lookup_label(name)} {value}",
                "query_string": f"?{urlencode(query_params)}",
                "selected": True,
            }

    @property
    def hidden_params(self) -> list[tuple[str, str]]:
        """The hidden fields of the form: all other filters, and the conditions so far."""
        return [
            *self.other_params,
            *([(_ALL_PARAM, _encode_lookups(self.attribute_lookups))] if self.attribute_lookups else []),
        ]

    @property
    def attribute_choices(self) -> list[tuple[str, str]]:
        """The keys of conditions to choose from, each with its label."""
        if self.workflow_class is None:
            return []
        return [(name, _lookup_label(name)) for name in condition_keys(self.workflow_class)]


def _parse_lookups(text: str) -> dict[str, Any] | None:
    # Decimal keeps every digit of a number. It raises InvalidOperation for an exponent with too many digits.
    try:
        lookups = {}
        if text:
            lookups = json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError, InvalidOperation):
        return None
    if isinstance(lookups, dict):
        return lookups
    return None


def _encode_lookups(lookups: Mapping[str, Any]) -> str:
    return json.dumps(lookups, default=str, ensure_ascii=False)


def _lookup_label(name: str) -> str:
    attribute, _, operator = str(name).partition("__")
    return f"{attribute} {_OPERATOR_SIGNS.get(operator, operator)}"
