"""The Django task of the row ``tasks``, in a module of its own because it needs Django 6.0."""

from __future__ import annotations

from django.tasks import task


@task
def nothing(number: int) -> int:
    return number
