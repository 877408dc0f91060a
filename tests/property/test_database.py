"""The database is the same host as memory, and rebuilding from it as well."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import pytest
from django.db import transaction
from hypothesis import given

from temporalex_django.core.payloads.search_attributes import search_rows
from tests.property import grammar, legal
from tests.property.examples import examples
from tests.property.playing import Played, play, replay_everything


def played_on_the_database(program: Any, schedule: Any, *, evict: bool) -> tuple[Any, Any, Any, Played]:
    from temporalex_django.testing import DjangoEnvironment

    played = play(program, schedule, DjangoEnvironment(evict=evict))
    return played.commands(), played.facts(), played.outcomes(), played


def searched_rows() -> list[Any]:
    """What the rows beside the runs say, of those that have any."""
    from temporalex_django.models import SearchAttribute

    found: dict[Any, list[Any]] = {}
    for row in SearchAttribute.objects.order_by("run__chain_id", "run_id", "name", "place"):
        found.setdefault(row.run_id, []).append([row.name, row.place, row.text, row.number])
    return [*found.values()]


def found_rows(kept: Any) -> list[Any]:
    rows = sorted(search_rows(kept[0]), key=lambda row: (row.name, row.place))
    return [[row.name, row.place, row.text, row.number and Decimal(row.number)] for row in rows]


def without_references(outcomes: list[Any]) -> list[Any]:
    """Outcomes without the references to log entries, which each database draws anew."""
    return json.loads(re.sub(r"reference [0-9a-f]+(-[0-9]+)?", "reference", json.dumps(outcomes)))


@pytest.mark.each_database
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
            assert without_references(outcomes) == without_references(memory.outcomes())
            assert played.found_by() == memory.found_by()
            assert searched_rows() == [rows for rows in map(found_rows, memory.found_by()) if rows]
            if evict:
                replay_everything(played)
                for _, history in played.histories():
                    legal.check(history)
            transaction.set_rollback(True)
