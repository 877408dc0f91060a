"""Any Python value: stored as JSON data and read back the same, or refused with ``PayloadError`` at once."""

from __future__ import annotations

import math
from dataclasses import fields
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temporalex_django import activity, activity_context
from temporalex_django.conf import codec
from temporalex_django.core.failures import describe
from temporalex_django.core.payloads import codec as payloads
from temporalex_django.core.payloads.round_trip import encode_lossless
from temporalex_django.engine.contracts.records import TaskResult, TaskState
from temporalex_django.errors import PayloadError
from temporalex_django.workers.attempts import Attempt
from tests.support.nasty import KEPT, REFUSED, Evil, EvilError, Holding

texts = st.text(st.characters(exclude_categories=()), max_size=8)
atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([19, 20, 4299, 4300, 5000]).map(lambda digits: 10**digits),
    st.floats(),
    texts,
    st.binary(max_size=8),
    st.decimals(),
    st.dates(),
    st.uuids(),
    st.builds(Evil),
    st.builds(object),
)
values = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(texts, st.integers(), st.none()), inner, max_size=3),
        st.builds(Holding, inner),
        st.tuples(inner),
    ),
    max_leaves=6,
)
_current: dict[str, Any] = {}


class Box:
    """Hypothesis looks at what it draws, and some of these mind."""

    def __init__(self, value: Any) -> None:
        self.value = value


boxes = values.map(Box)


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types: True is not 1, and 1.0 is not 1."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


@activity
def returning() -> Any:
    return _current["value"]


@activity
def raising() -> Any:
    raise _current["error"]


@activity
def beating() -> int:
    activity_context().heartbeat(_current["value"])
    return 1


def attempt(act: Any) -> Attempt:
    now = datetime.now(UTC)
    task = TaskState(
        id=1,
        chain_id=uuid4(),
        run_id=UUID(int=1),
        workflow_id="w",
        workflow="W",
        seq=1,
        activity=act.name,
        args=[],
        kwargs={},
        options={"retry": {"max_attempts": 1}},
        queue="default",
        atomic=False,
        attempt=1,
        scheduled_at=now,
        due_at=now,
        owner=1,
    )
    return Attempt(task, lambda: now)


def stored(result: TaskResult) -> tuple[str, dict[str, Any]]:
    """What a batch would write, and that it can be."""
    assert result.outcome is not None
    kind, attributes = result.outcome
    data = codec().encode(attributes) if result.encoded is None else result.encoded
    assert same(codec().decode(data), attributes)
    return kind, attributes


@given(boxes)
def test_any_value_is_plain_data_or_refused(box: Box) -> None:
    value = box.value
    try:
        found = payloads.to_plain(value)
    except PayloadError:
        return
    assert same(codec().decode(codec().encode(found)), found)
    assert same(payloads.to_plain(found), found)


def in_json(value: Any) -> Any:
    """What has the same types in JSON: tuples are lists there, and dataclasses objects."""
    if isinstance(value, dict):
        return {key: in_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [in_json(part) for part in value]
    if isinstance(value, Holding):
        return {field.name: in_json(getattr(value, field.name)) for field in fields(value)}
    return value


@given(boxes)
def test_what_is_handed_over_comes_back_as_it_was_or_is_refused(box: Box) -> None:
    try:
        found = encode_lossless(box.value, label="it")
    except PayloadError:
        return
    assert same(in_json(box.value), found)


@given(boxes)
def test_any_value_as_a_result_ends_its_attempt(box: Box) -> None:
    value = _current["value"] = box.value
    kind, attributes = stored(attempt(returning).run())
    if kind == "ActivityFailed":
        assert attributes["type"] == "PayloadError"
        assert attributes["message"].startswith(f"the result of {returning.name}")
    else:
        assert same(attributes["result"], payloads.to_plain(value))


@given(boxes)
def test_any_value_as_heartbeat_details(box: Box) -> None:
    value = _current["value"] = box.value
    one = attempt(beating)
    kind, _ = stored(one.run())
    if kind == "ActivityCompleted":
        (details,) = one.pending_details
        assert details is None or same(codec().decode(details), payloads.to_plain(value))
    else:
        assert not one.pending_details


@given(st.one_of(texts.map(ValueError), texts.map(BaseException), st.builds(EvilError), texts.map(KeyError)).map(Box))
def test_any_error_ends_its_attempt(box: Box) -> None:
    error = _current["error"] = box.value
    kind, attributes = stored(attempt(raising).run())
    assert (kind, attributes["type"]) == ("ActivityFailed", type(error).__name__)
    described = describe(error)
    assert "\x00" not in described["message"]
    described["message"].encode()


@given(st.one_of(texts.map(Box), boxes))
def test_any_value_as_a_reason(box: Box) -> None:
    value = box.value
    try:
        found = payloads.check_text(value, label="the reason")
    except PayloadError:
        return
    assert found == value
    assert "\x00" not in found
    found.encode()


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_stored_is_refused_at_once(name: str) -> None:
    with pytest.raises(PayloadError, match="^the thing "):
        payloads.to_plain(REFUSED[name], label="the thing")


@pytest.mark.parametrize("name", KEPT)
def test_what_can_be_stored_is(name: str) -> None:
    assert same(payloads.to_plain(KEPT[name]), KEPT[name])
    assert same(codec().decode(codec().encode(KEPT[name])), KEPT[name])


def test_dates_and_numbers_become_texts() -> None:
    assert payloads.to_plain([date(2026, 1, 2), Decimal("1.50")]) == ["2026-01-02", "1.50"]
