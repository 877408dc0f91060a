"""Pages of the admin: one format of times, looks apart from deeds, and histories that open on what is newest."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone

from temporalex_django import Ok, Workflow, api
from temporalex_django.authoring.redaction import UNREDACTED
from temporalex_django.console.run import events as pages
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.models import Instance, OperatorAction, Worker
from temporalex_django.present.formatting import format_exact_time, format_time, localize_times
from temporalex_django.testing import drain
from tests.support.run_pages import text_of

pytestmark = pytest.mark.django_db(transaction=True)

ADMIN = "/admin/temporalex_django/"


class Naps(Workflow):
    """Sleeps for a while."""

    name = "test.Naps"

    async def run(self, args: Any) -> Any:
        await api.sleep(timedelta(days=40))
        return Ok(None)


@pytest.fixture
def root(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


def test_every_time_of_a_page_has_the_format_of_sentences(root: Client) -> None:
    run_id = Naps.start(None, id="naps").run_id
    drain()
    old = timezone.now() - timedelta(days=400)
    Instance.objects.update(created_at=old)
    action = OperatorAction.objects.create(at=old, action="pause", run_id=run_id, workflow="x", workflow_id="naps", actor_name="ann", source="admin")  # fmt: skip
    Worker.objects.create(
        id=uuid.uuid4(), epoch=7_654_321, kind="worker", host="box", pid=1, queues=["default"], workflows={}, started_at=old,
        beat_at=timezone.now(), expires_at=timezone.now() + timedelta(hours=1),
    )  # fmt: skip

    with timezone.override("Asia/Kolkata"):
        text, exact = format_time(old, timezone.now()), format_exact_time(old)
        shown = (
            f'<time class="tx-moment" datetime="{timezone.localtime(old).isoformat()}" title="{exact}">{text}</time>'
        )
    for address in (
        f"instance/console/runs/{run_id}/data/", "instance/", "operatoraction/?who=all",
        f"operatoraction/{action.pk}/change/", "instance/console/workers/",
    ):  # fmt: skip
        with timezone.override("Asia/Kolkata"):
            page = root.get(ADMIN + address).content.decode()
        assert shown in page, address
        assert set(re.findall(r"<time([^>]*?) datetime", page)) <= {' class="tx-moment"'}, address
    assert "7654321" not in page


def test_a_run_waits_for_a_timer_by_its_local_time(root: Client) -> None:
    run_id = Naps.start(None, id="naps").run_id
    drain()
    page = text_of(root, run_id)
    (chip,) = re.findall(r"<li>(timer [^<]*)</li>", page)
    assert "T" not in chip
    assert re.search(r"\d\d:\d\d$", chip)


def test_times_in_texts_are_localized() -> None:
    now = datetime(2026, 11, 3, 12, tzinfo=UTC)
    with timezone.override("Asia/Kolkata"):
        said = localize_times("timer 2026-11-03T14:02:00+00:00, 2026-11-04T01:00:00 and 2026-13-45T14:02:00", now)
    assert said == "timer 19:32, tomorrow 06:30 and 2026-13-45T14:02:00"


def test_the_audit_of_a_run_folds_looks(root: Client) -> None:
    """What somebody looked at, or was refused to look at, is folded behind what people did."""
    run_id = Naps.start(None, id="naps").run_id
    drain()
    row = {"run_id": run_id, "workflow": "test.Naps", "workflow_id": "naps", "source": "admin", "at": timezone.now()}
    OperatorAction.objects.create(**row, action="pause", actor_name="doer")
    for action in ("view_payload", "view"):
        OperatorAction.objects.create(**row, action=action, actor_name=f"looks-{action}", denied=action == "view")
    page = text_of(root, run_id)
    deeds, looks = page[page.index('id="tx-acted"') :].split("<summary>What people looked at", 1)
    assert "doer" in deeds
    assert "looks-view" not in deeds
    assert "looks-view<" in looks
    assert "looks-view_payload<" in looks


def test_events_that_a_cluster_told_open_on_the_newest_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last page would have a single row; without a number, the page has as many events as others."""
    monkeypatch.setattr(pages, "EVENTS_PER_PAGE", 10)
    at = timezone.now()
    events = [HistoryEvent(number=number, activation=1, kind="PatchMarked", at=at, attributes={"id": str(number)}) for number in range(1, 12)]  # fmt: skip

    def numbers(page: str) -> list[int]:
        told = pages.page_of_events(events, page=page, redactor=UNREDACTED)
        return [row.seq for activation in told.activations for row in activation.rows]

    assert numbers("") == [*range(2, 12)]
    assert numbers("2") == [11]
    assert numbers("1") == [*range(1, 11)]
