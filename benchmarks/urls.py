"""The addresses that the benchmarks request."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/", include("temporalex_django.rest.urls")),
]
