"""Addresses of the test project."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/", include("temporalex_django.rest.urls")),
    path("tasks/", include("temporalex_django.pages.urls")),
    path("workflows/", include("temporalex_django.console.urls")),
]
