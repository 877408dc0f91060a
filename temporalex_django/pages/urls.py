"""URLs of the human tasks, for ``path("tasks/", include("temporalex_django.pages.urls"))``."""

from __future__ import annotations

from django.urls import path

from temporalex_django.pages import views

app_name = "temporalex_pages"

urlpatterns = [
    path("", views.inbox_page, name="inbox"),
    path("<uuid:task>/", views.task_page, name="task"),
    path("by-link/<str:token>/", views.link_page, name="link"),
]
