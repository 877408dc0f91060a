"""What a client says to narrow a list of runs, and how it is told what it got wrong."""

from __future__ import annotations

from collections.abc import Mapping

from django.db.models import QuerySet
from rest_framework import exceptions

from temporalex_django.core.names import quoted
from temporalex_django.models import Instance
from temporalex_django.rest.filters import RunFilter


def narrowed(form: type[RunFilter], given: Mapping[str, str], runs: QuerySet[Instance]) -> QuerySet[Instance]:
    """The runs that a filter leaves. Raises DRF's ``ValidationError`` for what it does not take."""
    if strange := [name for name in given if name not in form.base_filters]:
        known = ", ".join(form.base_filters)
        raise exceptions.ValidationError({"unknown": [f"no filter {quoted(strange[0])}: there are {known}"]})
    if unprintable := [name for name, text in given.items() if not text.isprintable()]:
        raise exceptions.ValidationError({unprintable[0]: ["printable characters"]})
    found = form(data=given, queryset=runs)
    if not found.is_valid():
        raise exceptions.ValidationError({name: [*messages] for name, messages in found.errors.items()})
    left: QuerySet[Instance] = found.qs
    return left
