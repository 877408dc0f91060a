"""The REST interface: ``path("api/", include("temporalex_django.rest.urls"))``."""

from __future__ import annotations

from temporalex_django.rest.mixin import WorkflowViewMixin

__all__ = ["WorkflowViewMixin"]
