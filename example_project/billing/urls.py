"""Addresses of billing."""

from __future__ import annotations

from django.urls import path

from example_project.billing import views

app_name = "billing"
urlpatterns = [
    path("subscribe/", views.subscribe, name="subscribe"),
    path("<int:pk>/plan/", views.plan, name="plan"),
    path("<int:pk>/cancel/", views.cancel, name="cancel"),
    path("bills/<int:pk>/refund/", views.refund, name="refund"),
    path("provider/", views.provider, name="provider"),
]
