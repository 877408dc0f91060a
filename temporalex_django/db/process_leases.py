"""Leases on work that one process at a time does for all processes of a project."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import Lease


def is_lease_free(name: str, *, storage: DjangoStorage, since: float = 0.0) -> bool:
    """Return True if the lease ``name`` has been free for at least ``since`` seconds. One statement, two at the start.

    A lease that nobody has ever taken is free.
    """
    until = Lease.objects.using(storage.alias).filter(name=name).values_list("until", flat=True).first()
    return until is None or until + timedelta(seconds=since) <= storage.now()


def take_lease(name: str, *, seconds: float, storage: DjangoStorage) -> bool:
    """Take the lease ``name`` for ``seconds``, and return True; return False if another process has it.

    It commits at once, unless a transaction is open. Call ``set_lease`` when the work is done.
    """
    now = storage.now()
    leases = Lease.objects.using(storage.alias)
    free = leases.filter(name=name, until__lte=now)
    until = now + timedelta(seconds=seconds)
    if free.update(until=until):
        return True
    # The row of a lease that nobody has ever taken is inserted by the first who wants it; the update decides who gets
    # it.
    leases.bulk_create([Lease(name=name, until=now)], ignore_conflicts=True)
    return bool(free.update(until=until))


def set_lease(name: str, *, seconds: float, notes: Mapping[str, Any] | None = None, storage: DjangoStorage) -> None:
    """Let the lease ``name`` of this process end in ``seconds``.

    ``notes`` are left for the next holder; with None, those of the holder before stay.
    """
    changes: dict[str, Any] = {} if notes is None else {"notes": dict(notes)}
    changes["until"] = storage.now() + timedelta(seconds=seconds)
    Lease.objects.using(storage.alias).filter(name=name).update(**changes)


def lease_notes(name: str, *, storage: DjangoStorage) -> dict[str, Any]:
    """Return what the last holder of the lease ``name`` has left. One read."""
    notes = Lease.objects.using(storage.alias).filter(name=name).values_list("notes", flat=True).first()
    return notes or {}
