"""The REST face describes itself, and the description is kept: who changes the face sees what clients will see."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from drf_spectacular.drainage import GENERATOR_STATS, reset_generator_stats

from temporalex_django.rest.openapi import document
from temporalex_django.rest.urls import urlpatterns

GOLDEN = Path(__file__).with_name("openapi.json")


def described() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(document(urlpatterns), default=str))
    return found


def test_the_description_is_the_one_that_is_kept() -> None:
    now = json.dumps(described(), indent=1, sort_keys=True) + "\n"
    if os.environ.get("UPDATE_OPENAPI"):
        GOLDEN.write_text(now)

    assert now == GOLDEN.read_text(), "it has changed: look at the difference with UPDATE_OPENAPI=1 and git diff"


def test_each_operation_has_an_id_of_its_own_and_nothing_is_warned_of() -> None:
    """A number in an id would come from the order of the addresses, and change with them."""
    reset_generator_stats()
    operations = [one for methods in described()["paths"].values() for one in methods.values() if "operationId" in one]
    ids = [one["operationId"] for one in operations]
    assert len(ids) == len({*ids})
    assert [name for name in ids if any(letter.isdigit() for letter in name) or name.startswith("_")] == []
    assert not GENERATOR_STATS, GENERATOR_STATS._warn_cache
    assert {"runs_discard", "runs_discard_message", "runs_redeliver", "runs_redeliver_message"} <= {*ids}


def without_prose(node: Any) -> Any:
    """Remove what is written for people alone: ``description``, ``summary`` and ``title`` of the document's parts."""
    if isinstance(node, list):
        return [without_prose(part) for part in node]
    if not isinstance(node, dict):
        return node
    prose = {key for key in ("description", "summary", "title") if isinstance(node.get(key), str)}
    return {key: without_prose(part) for key, part in node.items() if key not in prose}


def test_the_contract_changes_only_where_somebody_means_it() -> None:
    """Paths, methods, names, types and codes, apart from the prose, which may be improved at any time."""
    stored = without_prose(json.loads(GOLDEN.read_text()))

    assert without_prose(described()) == stored, "clients will notice: the contract itself has changed"


def test_what_a_project_has_set_for_its_own_description_does_not_count(settings: Any) -> None:
    settings.SPECTACULAR_SETTINGS = {"TITLE": "Theirs", "OAS_VERSION": "3.0.3"}

    assert (described()["openapi"], described()["info"]["title"]) == ("3.1.1", "Runs")
