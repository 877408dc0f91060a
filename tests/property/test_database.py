"""The database is the same host as memory, and rebuilding from it as well."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction
from hypothesis import given

from tests.property import grammar, legal
from tests.property.examples import examples
from tests.property.playing import Played, play, replay_everything


def played_on_the_database(program: Any, schedule: Any, *, evict: bool) -> tuple[Any, Any, Any, Played]:
    from temporalex_django.testing import DjangoEnvironment

    played = play(program, schedule, DjangoEnvironment(evict=evict))
    return played.commands(), played.facts(), played.outcomes(), played


@pytest.mark.django_db
@examples(0.15)
@given(grammar.program, grammar.schedule)
def test_the_database_gives_what_memory_gives(program: Any, schedule: Any) -> None:
    """TX-187 TX-191 ST-096: the same commands, histories, outcomes and waits, kept or rebuilt.

    Which of several runs in one turn comes first is the host's affair, so the lists of commands are compared without
    their order.
    """
    memory = play(program, schedule)
    for evict in (False, True):
        with transaction.atomic():
            commands, facts, outcomes, played = played_on_the_database(program, schedule, evict=evict)
            assert sorted(map(str, commands)) == sorted(map(str, memory.commands()))
            assert facts == memory.facts()
            assert outcomes == memory.outcomes()
            if evict:
                replay_everything(played)
                for _, history in played.histories():
                    legal.check(history)
            transaction.set_rollback(True)
