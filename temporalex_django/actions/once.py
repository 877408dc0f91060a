"""Requests that come again with the key of an earlier one: they are done once, and the answer is the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from django.utils import timezone

from temporalex_django.actions import audit
from temporalex_django.actions.base import Actor, storage
from temporalex_django.authoring import authorization
from temporalex_django.engine.ids import uuid7
from temporalex_django.errors import IdempotencyKeyReused
from temporalex_django.models import KeptAnswer


class AskedBefore(Exception):
    """That request was done before: ``made`` is the run or job that its answer showed, ``new`` if it made it."""

    def __init__(self, made: UUID, *, new: bool) -> None:
        super().__init__(str(made))
        self.made = made
        self.new = new


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request of somebody with a key of his: ``request`` is all that it says, as bytes."""

    by: Actor
    key: str
    request: bytes

    def look(self) -> None:
        """Raises ``AskedBefore``, and ``IdempotencyKeyReused`` for a key of another request. One read."""
        found = KeptAnswer.objects.using(storage().alias).filter(key=self._key).first()
        if found is not None:
            self._refuse(found)

    @contextmanager
    def doing(self) -> Iterator[KeptAnswer]:
        """What is done inside commits with the answer, of which the block sets ``made`` and ``new``.

        Raises as ``look`` does. Who comes with the same key at the same time waits, and finds it; what raises leaves
        no key.
        """
        store = storage()
        answers = KeptAnswer.objects.using(store.alias)
        answer = KeptAnswer(id=uuid7(), key=self._key, request=self._request, at=timezone.now())
        with audit.surviving(), store.transaction():
            answers.bulk_create([answer], ignore_conflicts=True)
            found = answers.get(key=self._key)
            if found.pk != answer.pk:
                self._refuse(found)
            yield answer
            answer.save(using=store.alias, update_fields=["made", "new"], force_update=True)

    def _refuse(self, found: KeptAnswer) -> None:
        if found.request != self._request or found.made is None:
            raise IdempotencyKeyReused(f"the key {self.key} came with another request before")
        raise AskedBefore(found.made, new=found.new)

    @property
    def _key(self) -> str:
        return hashlib.sha256(f"{authorization.sender_key(self.by.user)}\0{self.key}".encode()).hexdigest()

    @property
    def _request(self) -> str:
        return hashlib.sha256(self.request).hexdigest()
