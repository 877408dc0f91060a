"""Let a drained worker take work again."""

from __future__ import annotations

from typing import ClassVar

from temporalex_django.operations.fleet.drain import DrainWorker


class UndrainWorker(DrainWorker):
    """Operation that lets a drained worker take work again, and returns it.

    Locks and raises as ``DrainWorker`` does.
    """

    name: ClassVar[str] = "undrain_worker"
    drains: ClassVar[bool] = False
