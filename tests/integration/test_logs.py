"""Workers log errors in one line each, without payloads."""

from __future__ import annotations

import logging

import pytest
from django.db import IntegrityError

from temporalex_django import Ok, RetryPolicy, Workflow, activity, errors
from temporalex_django.core.telling import LONGEST
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
    assert any(
        "charge failed in attempt 1 (the last): LookupError at integration/test_logs.py:" in line for line in lines
    )
    for line in lines:
        assert "4111" not in line
        assert "\n" not in line
        assert len(line) < 2 * LONGEST
