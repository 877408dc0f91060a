"""The REST interface: ``path("api/", include("temporalex_django.rest.urls"))``.

Raises ``ModuleNotFoundError`` with what to install if Django REST framework or django-filter is missing.
"""

from __future__ import annotations

try:
    from temporalex_django.rest.mixin import WorkflowViewMixin
except ModuleNotFoundError as exc:
    if exc.name is None or exc.name.partition(".")[0] not in {"rest_framework", "django_filters"}:
        raise
    raise ModuleNotFoundError(
        f"temporalex_django.rest needs {exc.name}, which is not installed: pip install djangorestframework django-filter",
        name=exc.name,
    ) from exc

__all__ = ["WorkflowViewMixin"]
