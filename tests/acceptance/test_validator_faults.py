"""A validator that fails by a fault of its code has not judged: its sender gets a reference, and nothing changes."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from decimal import Decimal

import pytest

from temporalex_django import Reply, api, errors, update
from tests.support.runs import once, work

SECRET = "no S3CRET"


def started(env, validator):
    add = update(lambda item, state: Reply(len(state), [*state, item]), validator=validator)
    return env.start(once(lambda: api.phase([], update={"add": add}, signal={}, timeout=3600)), id="cart")


def raising(error):
    def validator(item, state):
        raise error

    return validator


@pytest.mark.parametrize(
    "error",
    [
        *(KeyError("vat"), TypeError(SECRET), AttributeError(SECRET), RuntimeError(SECRET), AssertionError(SECRET)),
        *(SystemExit(SECRET), CancelledError(SECRET)),  # they would end the worker
    ],
)
def test_a_fault_of_the_code_is_no_refusal(env, caplog, error):
    h = started(env, raising(error))
    length = len(h.history())

    with caplog.at_level(logging.ERROR), pytest.raises(errors.UpdateFailed) as failed:
        h.update("add", "book", id="u1")

    assert failed.value.accepted is False
    assert failed.value.reference
    assert failed.value.type == type(error).__name__
    assert SECRET not in str(failed.value)
    (line,) = [record for record in caplog.records if "validator" in record.getMessage()]
    assert failed.value.reference in line.getMessage()
    assert SECRET not in line.getMessage()
    assert len(h.history()) == length
    assert h.status == "waiting"


def test_the_id_is_free_when_the_code_is_put_right(env):
    fault = {"is": True}

    def validator(item, state):
        if fault["is"]:
            raise KeyError("vat")

    h = started(env, validator)
    with pytest.raises(errors.UpdateFailed):
        h.update("add", "book", id="u1")
    fault["is"] = False

    assert h.update("add", "book", id="u1") == 0
    assert h.update("add", "book", id="u1") == 0


@pytest.mark.parametrize(
    "error",
    [ValueError("bad"), ZeroDivisionError("bad"), PermissionError("bad"), errors.UpdateRejected("bad")],
)
def test_these_refuse(env, error):
    with pytest.raises(errors.UpdateRejected, match="bad"):
        started(env, raising(error)).update("add", "book")


def test_arithmetic_refuses(env):
    with pytest.raises(errors.UpdateRejected):
        started(env, lambda item, state: Decimal(1) / Decimal(0) and None).update("add", "book")


def test_what_django_refuses_requests_by_refuses(env):
    from django.core.exceptions import PermissionDenied, ValidationError
    from rest_framework.exceptions import APIException, NotFound

    for error in (PermissionDenied("bad"), ValidationError("bad"), NotFound("bad")):
        with pytest.raises(errors.UpdateRejected, match="bad"):
            started(env, raising(error)).update("add", "book")
        env.handle("cart").terminate()
    with pytest.raises(errors.UpdateFailed) as failed:
        started(env, raising(APIException("bad"))).update("add", "book")
    assert failed.value.accepted is False


@pytest.mark.parametrize(
    "validator",
    [
        lambda a, s: work(1),
        lambda a, s: api.random(),
        lambda a, s: api.publish_state(1),
        lambda a, s: api.patched("x"),
        lambda a, s: api.uuid4(),
        lambda a, s: api.sleep(1),
    ],
)
def test_primitives_are_not_for_validators(env, validator):
    h = started(env, validator)

    with pytest.raises(errors.UpdateFailed, match="not allowed in a validator") as failed:
        h.update("add", "book")

    assert failed.value.accepted is False
