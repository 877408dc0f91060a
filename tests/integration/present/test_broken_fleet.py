"""A broken fleet: each sentence of ``doctor`` about it is compared with the rows."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from temporalex_django.authoring import workflow as workflows
from temporalex_django.models import ActivityTask, Instance, Message
from tests.support import fleet
from tests.support.commands import shell

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.of_the_tables("rows of the fleet")]


@pytest.fixture
def broken() -> Iterator[int]:
    try:
        count = fleet.start_fleet()
        fleet.break_fleet()
        yield count
    finally:
        fleet.AWAY.clear()


def test_doctor_says_on_twelve_lines_what_the_rows_say(broken: int) -> None:
    # On a slow machine a further finding, such as a late schedule, takes the last line of the short report.
    short, said = shell("doctor").out, shell("doctor", "--all").out
    counts = {
        "activities of fleet.Checkout have been failing": ActivityTask.objects.filter(workflow="fleet.Checkout"),
        "activities of fleet.Mailing have been failing": ActivityTask.objects.filter(workflow="fleet.Mailing"),
        "runs of fleet.Onboard have failed": Instance.objects.filter(workflow="fleet.Onboard", status="failed"),
        "runs of fleet.Claim are blocked": Instance.objects.filter(workflow="fleet.Claim", blocked__isnull=False),
        "runs of fleet.Tariff are blocked": Instance.objects.filter(workflow="fleet.Tariff", blocked__isnull=False),
        "runs of fleet.Dropped are blocked": Instance.objects.filter(workflow="fleet.Dropped", blocked__isnull=False),
    }

    assert broken > 200
    assert len(short.splitlines()) <= 12, short
    assert "143 activities of fleet.Checkout have been failing" in short
    for text, rows in counts.items():
        assert re.search(rf"^\w+: {rows.count()} {text}", said, re.MULTILINE), (text, rows.count(), said)
    failures = [message.failure for message in Message.objects.failed()]
    assert len(failures) == 2, failures
    assert "has failed for 2 signals" in said
    assert "the group ghosts does not exist" in said
    assert "rates has left out its last 8 slots" in said
    assert "Deploy code that has the class fleet.Dropped (version 1)" in said
    assert "fleet.Dropped" not in workflows.registry
    assert len(said.splitlines()) > 40
