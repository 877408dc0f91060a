"""A broker for django-q2 that lets its cluster run workers beside the project's own tasks.

Set ``"broker_class": "temporalex_django.workers.q2.Broker"`` in ``Q_CLUSTER``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from temporalex_django.workers.q2.broker import Broker, WorkerHost

__all__ = ["Broker", "WorkerHost"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'temporalex_django.workers.q2' has no attribute {name!r}")
    # A worker process of a cluster passes through here before Django is set up, and the broker needs its settings.
    from temporalex_django.workers.q2 import broker  # noqa: PLC0415 - it needs the settings

    return getattr(broker, name)
