"""Have a drained worker take work again."""

from __future__ import annotations

from typing import ClassVar

from temporalex_django.actions.drain_worker import DrainWorker


class UndrainWorker(DrainWorker):
    """The other way round."""

    name: ClassVar[str] = "undrain_worker"
    drains: ClassVar[bool] = False
