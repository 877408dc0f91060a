"""The business rows that activities write. There are no migrations: ``migrate --run-syncdb`` creates the table."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Entry(models.Model):
    """The record of a thing that a run has done."""

    objects: ClassVar[models.Manager[Entry]] = models.Manager()

    run = models.CharField(max_length=200)
    number = models.IntegerField()

    def __str__(self) -> str:
        return f"{self.run} {self.number}"
