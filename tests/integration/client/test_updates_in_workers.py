"""``updates_in = "workers"``: no code of the class runs in the process that sends an update."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings

from temporalex_django import Ok, Reply, Workflow, api, errors
from temporalex_django.testing import drain

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.of_the_tables("which process judges an update")]
THREADS: list[int] = []


class Heavy(Workflow):
    """Says which thread judged it."""

    name = "test.UpdatesInWorkers"
    updates_in = "workers"

    async def run(self, args: None) -> Ok[Any]:
        def add(value: Any, state: Any) -> Any:
            THREADS.append(threading.get_ident())
            return Reply(value, [*state, value])

        return Ok(await api.phase([], update={"add": add}))


class Light(Heavy):
    """As the setting says."""

    name = "test.UpdatesInRequests"
    updates_in = None


@pytest.fixture(autouse=True)
def _none() -> None:
    THREADS.clear()


def test_the_sender_runs_nothing_and_the_worker_answers() -> None:
    handle = Heavy.start(id="heavy")
    drain()
    with pytest.raises(errors.UpdateTimeout):
        handle.update("add", 5, id="first", timeout=0.05)
    assert THREADS == []
    drain()
    assert (handle.update("add", 5, id="first"), len(THREADS)) == (5, 1)


def test_the_setting_says_it_for_classes_that_do_not() -> None:
    handle = Light.start(id="light")
    drain()
    assert (handle.update("add", 5), len(THREADS)) == (5, 1)
    with override_settings(TEMPORALEX={"UPDATES_IN": "workers"}), pytest.raises(errors.UpdateTimeout):
        handle.update("add", 6, timeout=0.05)
    assert len(THREADS) == 1


def test_inside_a_transaction_it_is_refused_and_says_why() -> None:
    handle = Heavy.start(id="heavy")
    drain()
    with pytest.raises(errors.UpdateTimeout, match="only workers may process it"), transaction.atomic():
        handle.update("add", 5)


def test_another_word_is_refused() -> None:
    with pytest.raises(errors.WorkflowDefinitionError, match="updates_in must be"):
        type("Wrong", (Workflow,), {"run": Heavy.run, "updates_in": "web"})
