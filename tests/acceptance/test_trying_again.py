"""A blocked run is tried again when somebody asks for it."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync

from temporalex_django import Ok, Workflow, api, errors
from tests.support.people import person

ILL = [True]


def deep(n: int) -> int:
    return deep(n + 1)


class Ailing(Workflow):
    """Recurses without end, which blocks it, as long as nobody has put it right."""

    name = "test.Ailing"

    async def run(self, args: Any) -> Any:
        await api.wait_for_signal("go")
        if ILL[0]:
            deep(0)
        return Ok(await api.wait_for_signal("end"))


def ailing(env: Any) -> Any:
    """A blocked run."""
    h = env.start(Ailing)
    h.signal("go")
    assert isinstance(h.blocked, RecursionError)
    return h


@pytest.fixture(autouse=True)
def _ill() -> None:
    ILL[:] = [True]


def test_a_blocked_run_is_tried_now_and_goes_on_with_what_waited(env: Any) -> None:
    h = ailing(env)
    h.signal("end", 5)
    ILL[:] = [False]
    assert h.describe().blocked is not None

    h.try_again("put right", by=person(env, "ann", "temporalex_django.pause_instance"))

    assert (h.blocked, h.result()) == (None, 5)


def test_it_is_blocked_again_when_the_try_fails(env: Any) -> None:
    h = ailing(env)
    before = h.describe().blocked
    h.try_again()
    after = h.describe().blocked

    assert (before["code"], before["attempt"], after["attempt"]) == (after["code"], 1, 2)
    assert after["since"] == before["since"]
    h.terminate()
    with pytest.raises(errors.WorkflowClosed, match="already closed"):
        h.try_again()


def test_what_is_not_blocked_or_paused_is_refused(env: Any) -> None:
    h = env.start(Ailing)
    with pytest.raises(errors.ActionNotPossible, match="try_again of test.Ailing .* refused: the run is not blocked"):
        h.try_again()
    h.signal("go")
    h.pause()
    with pytest.raises(errors.ActionNotPossible, match="the run is paused: unpause it first"):
        h.try_again()
    assert h.describe().blocked["attempt"] == 1
    h.unpause()  # which tries it as well: no process ended of it
    assert h.describe().blocked["attempt"] == 2


def test_it_takes_a_reason_that_is_text_and_a_permission(env: Any) -> None:
    h = ailing(env)
    with pytest.raises(errors.PayloadError, match="the reason"):
        h.try_again(reason=5)
    for able in ((), ("temporalex_django.retry_activity",)):
        with pytest.raises(errors.ActionNotPermitted, match="temporalex_django.pause_instance"):
            h.try_again(by=person(env, f"not-{len(able)}", *able))
    assert h.describe().blocked["attempt"] == 1


def test_async_code_tries_it_too(env: Any) -> None:
    h = ailing(env)
    h.signal("end", 6)
    ILL[:] = [False]
    async_to_sync(h.atry_again)("put right")
    assert h.result() == 6
