"""Addresses of the example project."""

from __future__ import annotations

from importlib.util import find_spec

from django.contrib import admin
from django.contrib.auth import views as auth_views
from django.templatetags.static import static
from django.urls import include, path
from django.utils.module_loading import import_string
from django.views.generic import RedirectView

from example_project.shop import api

urlpatterns = [
    path("", include("example_project.shop.urls")),
    path("invoices/", include("example_project.invoices.urls")),
    path("billing/", include("example_project.billing.urls")),
    path("login/", auth_views.LoginView.as_view(redirect_authenticated_user=True), name="login"),
    path("logout/", auth_views.LogoutView.as_view(), name="logout"),
    path("favicon.ico", RedirectView.as_view(url=static("shop/icon.svg"))),  # browsers ask for it on every page
    path("admin/", admin.site.urls),
    path("api/", include(api.router.urls)),
    path("api/", include("temporalex_django.rest.urls")),
]
if find_spec("prometheus_client"):  # the extra prometheus
    urlpatterns.append(path("metrics", import_string("temporalex_django.contrib.prometheus.metrics")))
