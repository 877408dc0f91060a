"""The history over HTTP as people read it: a row a thing, in pages, without what may not be seen."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.utils import timezone
from rest_framework.test import APIClient

from temporalex_django.conf import codec
from temporalex_django.models import HistoryEvent
from temporalex_django.operations.read import timeline
from tests.integration.rest.test_instances import URL, assert_problem, person
from tests.support.client_flows import Basket, drain
from tests.support.matrix import Errand

pytestmark = [pytest.mark.django_db, pytest.mark.of_the_tables("rows of histories")]


def client(user: Any) -> APIClient:
    made = APIClient(raise_request_exception=False)
    made.force_authenticate(user)
    return made


def walked(api: APIClient, run: str, **query: Any) -> list[dict[str, Any]]:
    found, address = [], f"{URL}{run}/timeline/"
    while address:
        page = api.get(address, query if not found else None).json()
        assert len(page["results"]) <= query.get("limit", 1000)
        found += page["results"]
        address = page["next"]
    return found


def test_things_stand_once_with_their_ends_in_pages_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    api = client(person("view"))
    run = Errand.start(value="7")  # an activity and a timer, at once
    drain()
    run.complete_activity(1, 5, reason="by hand")
    drain()

    whole = walked(api, run.id)

    assert [(row["kind"], row["state"], row["seq"]) for row in whole] == [
        ("run", "open", None), ("activity", "done", 1), ("timer", "open", 2),
    ]  # fmt: skip
    activity, timer = whole[1], whole[2]
    assert activity["last"] > timer["first"] > activity["first"]
    assert (activity["name"], activity["text"].split(":")[0]) == ("matrix.refused", "Refused")
    assert timer["due"] is not None
    for limit in (1, 2, 3):
        for events in (1, 500):
            monkeypatch.setattr(timeline, "_FIRST_BATCH_SIZE", events)
            paged = walked(api, run.id, limit=limit)
            assert [row["first"] for row in paged] == [row["first"] for row in whole]
            assert [(row["state"], row["last"]) for row in paged] == [(row["state"], row["last"]) for row in whole]
    run.skip_timer(2)
    drain()
    assert [row["state"] for row in walked(api, run.id, limit=1)] == ["done", "done", "fired", "completed"]


def test_a_page_of_ten_thousand_events_takes_few_statements(django_assert_max_num_queries: Any) -> None:
    """What is on it ended at the very end of the history, behind thousands of ends of other things."""
    api, run = client(person("view")), Basket.start(id="long")
    drain()
    last, at = HistoryEvent.objects.filter(run_id=run.run_id).count(), timezone.now()
    told: list[tuple[str, int]] = [("ActivityScheduled", 1)]
    for seq in range(2, 5_000):
        told += [("ActivityScheduled", seq), ("ActivityCompleted", seq)]
    told += [("ActivityCompleted", 1)]
    HistoryEvent.objects.bulk_create(
        HistoryEvent(
            run_id=run.run_id, seq=last + number, activation=2, kind=kind, at=at,
            attributes=codec().encode({"seq": seq, "activity": "far", "args": [], "result": None}),
        )
        for number, (kind, seq) in enumerate(told, 1)
    )  # fmt: skip
    api.get(f"{URL}long/timeline/")  # the permissions are in the user now

    with django_assert_max_num_queries(14):
        page = api.get(f"{URL}long/timeline/", {"after": last}).json()

    assert [(row["seq"], row["state"]) for row in page["results"]] == [(seq, "done") for seq in range(1, 201)]
    assert page["results"][0]["last"] == last + len(told) > 9_900
    assert page["next"]


def test_what_may_not_be_seen_is_not_said() -> None:
    ann = person("view", "update")
    blind = person("view", name="bob")
    blind.user_permissions.remove(Permission.objects.get(codename="view_payload"))
    Basket.start(id="b-1")
    drain()
    failed = client(ann).post(f"{URL}b-1/updates/broken/", {"args": "SECRET"}, format="json")
    assert failed.status_code == 422

    seen = walked(client(ann), "b-1")
    blank = walked(client(blind), "b-1")

    assert [(row["kind"], row["name"], row["state"], row["who"]) for row in seen][1:] == [
        ("update", "broken", "failed", "ann"),
    ]  # fmt: skip
    assert "KeyError" in seen[1]["error"]
    assert "lost" in seen[1]["text"]
    assert [row["first"] for row in blank] == [row["first"] for row in seen]
    assert "lost" not in str(blank)
    assert "SECRET" not in str(seen + blank)
    assert_problem(client(person(name="eve")).get(f"{URL}b-1/timeline/"), 403, "not_permitted")
    assert_problem(client(ann).get(f"{URL}b-1/timeline/?after=x"), 400, "invalid")
