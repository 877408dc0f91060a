"""Addresses of the invoices."""

from __future__ import annotations

from django.urls import path

from example_project.invoices import views

app_name = "invoices"
urlpatterns = [
    path("", views.desk, name="desk"),
    path("bank/", views.bank, name="bank"),
]
