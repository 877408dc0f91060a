"""Values as deep as is allowed are taken everywhere, whatever is at their bottom; deeper ones nowhere."""

from __future__ import annotations

import math

import pytest

from temporalex_django import ContinueAsNew, Ok, Reply, Stop, Workflow, activity, activity_context, api, errors
from temporalex_django.core.payloads import codec

DEEPEST = codec.MAX_DEPTH


def nested(levels, bottom=None, *, lists=True):
    """So many lists or objects in each other."""
    value = bottom
    for _ in range(levels):
        value = [value] if lists else {"a": value}
    return value


@activity
def through(value):
    activity_context().heartbeat(value)
    return value


class Kid(Workflow):
    async def run(self, args):
        return Ok(args)


class Deep(Workflow):
    async def run(self, args):
        if isinstance(args, list):
            return ContinueAsNew({"again": args[0]})
        value = await through(args["again"])
        api.publish_state(value)
        state = await api.phase(
            value,
            update={"same": lambda args, state: Reply(args, args)},
            signal={"end": lambda payload, state: Stop([payload == state])},
        )
        return Ok(state[0] and await api.child(Kid, value) == value)


@pytest.mark.parametrize("lists", [True, False])
@pytest.mark.parametrize("bottom", [None, 1, "x", [], {}])
def test_values_of_the_greatest_depth(env, bottom, lists):
    value = nested(DEEPEST - 1 - (bottom in ([], {})), bottom, lists=lists)
    handle = env.start(Deep, [value])

    assert handle.update("same", value) == value
    handle.signal("end", value)

    assert handle.result() is True


@pytest.mark.parametrize("lists", [True, False])
@pytest.mark.parametrize("depth", [1, 64, 65, 66, 100, DEEPEST])
def test_null_is_no_nan_at_any_depth(depth, lists):
    value = nested(depth, lists=lists)

    assert codec.to_plain(value) == value
    for number in (math.nan, math.inf, -math.inf):
        with pytest.raises(errors.PayloadError, match="NaN and infinity are not JSON"):
            codec.to_plain(nested(depth, [None, number], lists=lists))


@pytest.mark.parametrize("depth", [DEEPEST + 1, 1000, 200_000])
@pytest.mark.parametrize("bottom", [None, 1, object()])
def test_deeper_values_are_refused_before_anything_happens(env, depth, bottom):
    handle = env.start(Deep, {"again": 1})

    for refused in (
        lambda: env.start(Kid, nested(depth, bottom)),
        lambda: handle.signal("end", nested(depth, bottom)),
        lambda: handle.update("same", nested(depth, bottom)),
    ):
        with pytest.raises(errors.PayloadError, match="nested more than 200 levels deep|cannot be encoded"):
            refused()
    handle.signal("end", 1)
    assert handle.result() is True


def test_an_endless_value_is_refused():
    circle: list = [None]
    circle.append(circle)
    circle.append(circle)

    with pytest.raises(errors.PayloadError, match="nested more than 200 levels deep"):
        codec.to_plain(circle)
