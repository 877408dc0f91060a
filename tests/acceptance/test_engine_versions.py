"""A run that another version of the engine has started."""

from __future__ import annotations

import pytest

from temporalex_django import Ok, api, errors
from temporalex_django.core import executor
from temporalex_django.core.history import activation, events
from tests.support.runs import flow, forget


async def run(self, args):
    return Ok([await api.wait_for_signal("go"), await api.wait_for_signal("go")])


@pytest.mark.parametrize("engine", [events.ENGINE_VERSION - 1, events.ENGINE_VERSION + 1])
def test_it_is_blocked_and_says_why_and_goes_on_under_that_version(env, monkeypatch, engine):
    """TX-178 ST-080: nothing of it is run or lost."""
    monkeypatch.setattr(activation, "ENGINE_VERSION", engine)
    h = env.start(flow(run), id="old")
    h.signal("go", 1)
    forget(env)
    before = h.history()
    monkeypatch.undo()
    h.signal("go", 2)
    assert (h.status, h.history()) == ("waiting", before)
    blocked = h.describe()["blocked"]
    assert (blocked["code"], isinstance(h.blocked, errors.EngineChanged)) == ("engine_changed", True)
    words = [
        f"Flow old (run {h.run_id})",
        f"by engine {engine}",
        f"this is engine {events.ENGINE_VERSION}",
        "terminate",
    ]
    assert all(word in str(h.blocked) for word in words)
    with pytest.raises(errors.EngineChanged):
        env.replay(h)
    monkeypatch.setattr(activation, "ENGINE_VERSION", engine)
    monkeypatch.setattr(executor, "ENGINE_VERSION", engine)
    env.advance(1)
    assert (h.blocked, h.result()) == (None, [1, 2])
