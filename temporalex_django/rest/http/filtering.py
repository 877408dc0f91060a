"""Application of filters to a list of runs, with errors that say what is wrong."""

from __future__ import annotations

from collections.abc import Mapping

from django.db.models import QuerySet
from rest_framework import exceptions

from temporalex_django.core.names import quoted
from temporalex_django.models import Instance
from temporalex_django.rest.filters import RunFilter


def filter_runs(
    filterset_class: type[RunFilter], parameters: Mapping[str, str], runs: QuerySet[Instance]
) -> QuerySet[Instance]:
    """Return the ``runs`` that match the filters in the query string of a client.

    ``parameters`` has the value of each filter as text, by the names of ``filterset_class``. Raises ``ValidationError``
    of DRF for an unknown filter, and for a value that a filter does not take.
    """
    if unknown := [name for name in parameters if name not in filterset_class.base_filters]:
        allowed = ", ".join(filterset_class.base_filters)
        raise exceptions.ValidationError(
            {"unknown": [f"There is no filter {quoted(unknown[0])}. The filters are {allowed}."]}
        )
    # Databases refuse some control characters in parameters.
    if unprintable := [name for name, text in parameters.items() if not text.isprintable()]:
        raise exceptions.ValidationError({unprintable[0]: ["Use printable characters only."]})
    filterset = filterset_class(data=parameters, queryset=runs)
    if not filterset.is_valid():
        raise exceptions.ValidationError({name: [*messages] for name, messages in filterset.errors.items()})
    filtered_runs: QuerySet[Instance] = filterset.qs
    return filtered_runs
