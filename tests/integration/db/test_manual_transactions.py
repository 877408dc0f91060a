"""Callers who begin and commit by themselves (``set_autocommit(False)``): what they do is theirs to commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import transaction

from temporalex_django import Ok, Reply, Workflow, api
from temporalex_django.errors import ResultTimeout, WorkflowNotFound
from temporalex_django.models import Instance
from temporalex_django.workers.loop import run_until_idle

pytestmark = pytest.mark.django_db(transaction=True)


class Kept(Workflow):
    async def run(self, args: object) -> Ok[object]:
        return Ok(await api.wait_for_signal("go"))


class Counted(Workflow):
    async def run(self, args: object) -> Ok[object]:
        del args
        return Ok(await api.phase(0, update={"add": lambda number, state: Reply(state + number, state + number)}))


@pytest.fixture
def by_hand() -> Iterator[None]:
    transaction.set_autocommit(False)
    yield
    transaction.rollback()
    transaction.set_autocommit(True)


@pytest.mark.usefixtures("by_hand")
def test_what_is_started_and_sent_counts_with_the_commit() -> None:
    drawn, named = Kept.start(1), Kept.start(2, id="named", tags=["a"])
    for handle in (drawn, named):
        handle.signal("go", handle.id)
    assert drawn.describe().status == "pending"
    with pytest.raises(ResultTimeout):
        drawn.result(timeout=0)
    transaction.commit()
    transaction.set_autocommit(True)
    run_until_idle()
    assert [drawn.result(timeout=5), named.result(timeout=5)] == [drawn.id, "named"]


@pytest.mark.usefixtures("by_hand")
def test_what_is_rolled_back_never_was() -> None:
    handle = Kept.start(1)
    handle.signal("go", 1)
    transaction.rollback()
    assert not Instance.objects.exists()
    with pytest.raises(WorkflowNotFound):
        handle.describe()


@pytest.mark.parametrize("call", [lambda h: h.cancel(), lambda h: h.terminate("no more"), lambda h: h.pause()])
def test_who_steers_commits(call: Callable[[Any], object]) -> None:
    handle = Kept.start(1)
    run_until_idle()
    before = handle.describe().status
    transaction.set_autocommit(False)
    try:
        call(handle)
        transaction.rollback()
        assert handle.describe().status == before
        assert not handle.describe().paused
        call(handle)
        transaction.commit()
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    run_until_idle()
    assert handle.describe().status != before or handle.describe().paused


def test_an_update_in_the_request_is_answered_before_the_commit_and_gone_with_a_rollback() -> None:
    handle = Counted.start(None)
    run_until_idle()
    transaction.set_autocommit(False)
    try:
        assert handle.update("add", 3) == 3
        transaction.rollback()
        assert handle.update("add", 4) == 4
        transaction.commit()
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert handle.update("add", 5) == 9
