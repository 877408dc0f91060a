"""Workers log errors in one line each, without payloads."""

from __future__ import annotations

import logging

import pytest
from django.db import IntegrityError

from temporalex_django import Err, Ok, RetryPolicy, Workflow, activity, api, errors, update
from temporalex_django.core.failures import MAX_LENGTH
from tests.support.client_flows import drain

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "4111 1111\n1111 1111"
ONCE = RetryPolicy(max_attempts=1)


@activity(retry=ONCE)
def charge(card: str) -> None:
    raise LookupError(f"no account for {card}")


@activity(retry=ONCE, atomic=True)
def book(card: str) -> None:
    raise IntegrityError(f"duplicate key\nDETAIL: Key (card)=({card}) already exists.\n{'x' * 5000}")


class Charged(Workflow):
    name = "logs.Charged"

    async def run(self, args):
        for act in (charge, book):
            try:
                await act(args)
            except errors.ActivityFailure:
                continue
        return Ok(None)


def test_attempts_that_fail(caplog):
    caplog.set_level(logging.DEBUG, logger="temporalex_django")

    handle = Charged.start(SECRET, id="c-1")
    drain()

    assert handle.result() is None
    lines = [
        logging.Formatter("%(message)s").format(record)
        for record in caplog.records
        if record.name.startswith("temporalex")
    ]
    assert any("charge failed on attempt 1 (the last): LookupError at workers/test_logs.py:" in line for line in lines)
    for line in lines:
        assert "4111" not in line
        assert "\n" not in line
        assert len(line) < 2 * MAX_LENGTH


class FailsAloud(Workflow):
    name = "logs.FailsAloud"

    async def run(self, args):
        if args == "err":
            return Err(SECRET)
        raise ValueError(args)


def lines_of(caplog):
    return [record.getMessage() for record in caplog.records if record.name.startswith("temporalex")]


def test_a_run_that_fails_says_why_and_where_in_one_line(caplog):
    FailsAloud.start(SECRET, id="f-1")
    FailsAloud.start("err", id="f-2")
    drain()

    lines = lines_of(caplog)

    (raised,) = [line for line in lines if line.startswith("logs.FailsAloud f-1 failed: ")]
    assert raised.startswith("logs.FailsAloud f-1 failed: ValueError at workers/test_logs.py:")
    assert "logs.FailsAloud f-2 failed: it returned Err" in lines
    assert "4111" not in str(lines)


class RaisesInHandlers(Workflow):
    name = "logs.RaisesInHandlers"

    async def run(self, args):
        def wrong(args, state):
            raise KeyError(args)

        await api.phase(0, update={"checked": update(wrong, validator=wrong), "handled": wrong})
        return Ok(None)


def test_a_handler_and_a_validator_that_raise_are_logged_with_their_place(caplog):
    caplog.set_level(logging.INFO, logger="temporalex_django")
    handle = RaisesInHandlers.start(id="h-1")
    for name in ("checked", "handled"):
        with pytest.raises((errors.UpdateRejected, errors.UpdateFailed)):
            handle.update(name, SECRET)

    lines = lines_of(caplog)

    for what, level, how in (
        ("the validator of the update checked", logging.ERROR, "failed"),
        ("the handler of update handled", logging.ERROR, "failed"),
    ):
        (line,) = [line for line in lines if what in line]
        assert f" {how}" in line
        assert ": KeyError at workers/test_logs.py:" in line
        assert {record.levelno for record in caplog.records if what in record.getMessage()} == {level}
    assert "4111" not in str(lines)
