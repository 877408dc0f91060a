"""The Django task of the row ``tasks``; apart from what others import, since it takes Django 6.0."""

from __future__ import annotations

from django.tasks import task


@task
def nothing(number: int) -> int:
    return number
