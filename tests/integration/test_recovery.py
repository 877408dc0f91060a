"""Who is dead, and who may say so."""

from __future__ import annotations

from datetime import timedelta

import pytest

from temporalex_django.conf import get_settings
from temporalex_django.models import Worker
from temporalex_django.runtime.django import DjangoStorage
from temporalex_django.runtime.ids import token, uuid7
from temporalex_django.runtime.places import place_of
from temporalex_django.runtime.recovery import recover

pytestmark = pytest.mark.django_db(transaction=True)


def row(storage: DjangoStorage, *, place: str, late: bool) -> Worker:
    now = storage.now()
    return Worker.objects.create(
        id=uuid7(),
        epoch=token(),
        kind="worker",
        host="h",
        pid=1,
        place=place,
        queues=[],
        workflows={},
        session_lock=True,
        started_at=now,
        beat_at=now,
        expires_at=now + timedelta(seconds=-1 if late else 60),
    )


def test_who_has_not_lived_for_a_lease_buries_nobody_by_his() -> None:
    """After an outage of the database every lease has expired: survivors must not bury each other."""
    storage = DjangoStorage(worker=True)
    frozen = row(storage, place=place_of(), late=True)  # it lives: it is this process
    lease = get_settings().LEASE_SECONDS

    assert not recover(storage, lived=0.0)
    assert not recover(storage, lived=lease - 0.1)
    assert recover(storage, lived=lease).workers == [frozen.pk]
    assert not Worker.objects.exists()


def test_a_process_that_has_ended_is_dead_whatever_its_lease_says() -> None:
    storage = DjangoStorage(worker=True)
    ended = row(storage, place=place_of().rpartition(":")[0] + ":1", late=False)

    found = recover(storage, lived=0.0)
    assert found.workers == [ended.pk]
    assert found.caution == 1  # it left no slot


def test_a_death_that_nobody_can_explain_makes_careful_until_a_worker_has_outlived_it() -> None:
    storage = DjangoStorage(worker=True)
    row(storage, place="elsewhere:1:1", late=True)
    lease = get_settings().LEASE_SECONDS

    assert recover(storage, lived=0.0).caution == 1
    assert recover(storage, lived=lease).caution
    assert recover(storage, lived=lease).caution == 1
    Worker.objects.update(buried_at=storage.now() - timedelta(seconds=6 * lease))
    recover(storage, lived=lease)
    assert Worker.objects.exists()
    recover(storage, lived=6 * lease)
    assert not Worker.objects.exists()
