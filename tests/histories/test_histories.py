"""Histories of earlier days replay against the engine of today."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from temporalex_django.core.history import replay as json_file
from temporalex_django.core.history.events import CLOSED_FROM_OUTSIDE, ENGINE_VERSION, INPUTS, KINDS, HistoryEvent
from temporalex_django.core.history.replay import replay
from temporalex_django.errors import NondeterminismError
from tests.histories import flows
from tests.support.event_attributes import undeclared

FILES = sorted(Path(__file__).parent.glob("*.json"))


def stored(path):
    read = json_file.load(path.read_text(), source=path.name)
    return getattr(flows, read.workflow).definition, read.events


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_replays_whole_and_cut_off_after_each_activation(path):
    """TX-178 TX-187 TX-191."""
    definition, events = stored(path)
    parted = {}
    for last in range(1, events[-1].activation + 1):
        try:
            replay(definition, [event for event in events if event.activation <= last])
        except NondeterminismError as exc:
            parted[last] = str(exc)
    assert parted == {}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_without_any_one_of_its_commands_it_does_not(path):
    """TX-178: a replay compares every command, so each file says something."""
    definition, events = stored(path)
    compared = [
        event
        for event in events
        if event.kind not in INPUTS | CLOSED_FROM_OUTSIDE and not event.attributes.get("deprecated")
    ]
    assert compared or events[-1].kind in CLOSED_FROM_OUTSIDE
    for missing in compared:
        with pytest.raises(NondeterminismError):
            replay(definition, [event for event in events if event is not missing])


def test_every_kind_of_event_occurs():
    """TX-178: the kinds of a history are listed once, and none is without a stored example."""
    seen = Counter(event.kind for path in FILES for event in stored(path)[1])
    assert [f"no history of tests/histories has the event {kind}" for kind in KINDS if kind not in seen] == []
    assert not seen.keys() - KINDS.keys()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_attribute_is_declared(path):
    """What code reads with a type is what the histories of earlier days have."""
    assert undeclared(stored(path)[1]) == {}


def test_all_are_of_the_engine_and_the_format_of_today():
    for path in FILES:
        data = json.loads(path.read_text())
        assert (data["temporalex_history"], data["events"][0]["attributes"]["engine"]) == (1, ENGINE_VERSION), path.name
        events = stored(path)[1]
        assert all(isinstance(event, HistoryEvent) for event in events)
        assert json_file.dump(events) == path.read_text(), f"{path.name} was written by hand"
