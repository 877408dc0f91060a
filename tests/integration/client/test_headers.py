"""Headers on the rows of the database: they are there when somebody gave them, and cost nothing otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from temporalex_django import Ok, Workflow, activity, activity_context, api
from temporalex_django.models import ActivityTask, Instance, Message
from tests.support.client_flows import drain

pytestmark = pytest.mark.django_db

GIVEN = {"tenant": "a"}


@activity(name="client.headers_noted")
def headers_noted() -> dict[str, str]:
    return dict(activity_context().headers)


class ClientHeaders(Workflow):
    name = "client.Headers"

    async def run(self, args: Any) -> Ok:
        await api.wait_for_signal("go")
        return Ok(await headers_noted())


def test_a_class_starts_with_them_and_signals_with_start() -> None:
    assert ClientHeaders.start(id="c1", headers=GIVEN).describe().headers == GIVEN
    ClientHeaders.signal_with_start("go", id="c2", headers=GIVEN)
    assert Instance.objects.get(workflow_id="c2").headers == GIVEN
    assert Message.objects.get().headers == GIVEN


def test_many_starts_take_them() -> None:
    ClientHeaders.start_many([(None, {"id": "m1", "headers": GIVEN}), (None, {"id": "m2"})])
    assert [*Instance.objects.order_by("workflow_id").values_list("headers", flat=True)] == [GIVEN, None]


def test_a_debounced_start_replaces_them() -> None:
    ClientHeaders.start(id="d1", debounce=60, headers={"tenant": "old"})
    ClientHeaders.start(id="d1", debounce=60, headers=GIVEN)
    assert Instance.objects.get().headers == GIVEN


def test_rows_without_headers_have_nothing() -> None:
    handle = ClientHeaders.start(id="n1", headers={})
    handle.signal("go")
    assert [*Message.objects.values_list("headers", flat=True)] == [None]
    assert Instance.objects.get().headers is None


def test_an_activity_has_those_of_its_run_on_a_worker() -> None:
    handle = ClientHeaders.start(id="a1", headers=GIVEN)
    handle.signal("go", headers={"of": "go"})
    drain()
    assert handle.result() == GIVEN
    assert not ActivityTask.objects.exists()
