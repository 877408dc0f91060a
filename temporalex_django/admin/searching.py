"""The list of runs narrowed by search attributes of the class that is chosen, by a form beside it."""

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

from temporalex_django.actions import narrowing
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.searching import condition_keys, parse_conditions
from temporalex_django.authoring.start_api import Startable
from temporalex_django.models import Instance

_ALL, _NAME, _VALUE = "attributes", "attribute", "attribute_value"
#: What of an address is not of the filters: a page, and an error.
_NOT_KEPT = frozenset({_ALL, _NAME, _VALUE, "p", "e"})
_SIGNS = {"": "=", "gt": ">", "gte": "≥", "lt": "<", "lte": "≤", "prefix": _("begins with")}


class SearchAttributeFilter(admin.ListFilter):
    """Conditions are JSON in the address, as over REST; the form adds one to them."""

    title = _("search attributes")
    #: What of an address is its own.
    parameters = (_ALL, _NAME, _VALUE)
    template = "admin/temporalex_django/instance/attributes_filter.html"

    def __init__(self, request: HttpRequest, params: dict[str, list[str]], model: Any, model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        said = {name: (params.pop(name, None) or [""])[-1] for name in self.parameters}
        self.others = [(name, str(value)) for name, value in request.GET.items() if name not in _NOT_KEPT]
        self.flow: type[Startable] | None = workflows.registry.get(request.GET.get("workflow", ""))
        self.asked = _read(said[_ALL])
        if said[_NAME]:
            self.asked = {**(self.asked or {}), said[_NAME]: said[_VALUE]}

    def has_output(self) -> bool:
        """Where a class is chosen that has any, and where somebody asks for some."""
        return self.asked != {} or (self.flow is not None and bool(condition_keys(self.flow)))

    def expected_parameters(self) -> list[str | None]:
        return [*self.parameters]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Instance]) -> QuerySet[Instance]:
        if self.asked == {}:
            return queryset
        if self.flow is None:
            messages.error(request, _("Choose the workflow whose search attributes are meant."))
            return queryset.none()
        if self.asked is None:
            messages.error(request, _('Write an object of JSON, such as {"total__gt": 1000}.'))
            return queryset.none()
        try:
            found = parse_conditions(self.flow, self.asked, texts=True)
        except (TypeError, ValueError) as exc:
            messages.error(request, str(exc))
            return queryset.none()
        return narrowing.with_attributes(queryset, found)

    def choices(self, changelist: Any) -> Iterator[Any]:
        """What is asked for, each with the address of the list without it."""
        for name, value in (self.asked or {}).items():
            left = {other: known for other, known in (self.asked or {}).items() if other != name}
            kept = [*self.others, *([(_ALL, _written(left))] if left else [])]
            yield {"display": f"{_shown(name)} {value}", "query_string": f"?{urlencode(kept)}", "selected": True}

    @property
    def hidden(self) -> list[tuple[str, str]]:
        """What the form sends beside what is written into it."""
        return [*self.others, *([(_ALL, _written(self.asked))] if self.asked else [])]

    @property
    def names(self) -> list[tuple[str, str]]:
        """What may be chosen."""
        return [] if self.flow is None else [(name, _shown(name)) for name in condition_keys(self.flow)]


def _read(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text, parse_float=Decimal) if text else {}
    except (ValueError, RecursionError, InvalidOperation):  # of a number with too many digits in its exponent
        return None
    return found if isinstance(found, dict) else None


def _written(asked: Mapping[str, Any]) -> str:
    return json.dumps(asked, default=str, ensure_ascii=False)


def _shown(name: str) -> str:
    attribute, _, operator = str(name).partition("__")
    return f"{attribute} {_SIGNS.get(operator, operator)}"
