"""The lines of the log about blocked runs."""

from __future__ import annotations

import logging
from uuid import UUID

import pytest

from temporalex_django.engine.blocked import BlockLog
from temporalex_django.errors import KeyMissing, NondeterminismError

RUN = UUID(int=7)


def test_a_cause_is_an_error_once_a_minute_and_every_run_is_information(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    log = BlockLog(clock=lambda: now[0])

    def lines(level: int) -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno == level]

    with caplog.at_level(logging.INFO, "temporalex_django.engine"):
        for number in range(3):
            log.add(RUN, ("shop.Order", f"order-{number}"), ValueError("card 4711"), None)
        log.add(RUN, ("shop.Order", "order-3"), NondeterminismError("the order differs"), None)
        log.add(RUN, ("shop.Order", "order-4"), KeyMissing("k"), "the key 'k'")
        log.add(RUN, None, OSError("secret"), None)
        assert [text.partition(" is blocked")[0] for text in lines(logging.INFO)] == [
            *(f"shop.Order order-{number} (run {RUN})" for number in range(5)),
            f"run {RUN}",
        ]
        assert [text.partition(" is blocked: ")[2].partition(".")[0] for text in lines(logging.ERROR)] == [
            "ValueError",
            "NondeterminismError: the order differs",
            "KeyMissing: the payload codec of this process lacks the key 'k'; it waits for the key 'k'",
            "OSError",
        ]
        assert all(" Next step: " in text and "4711" not in text and "secret" not in text for text in caplog.messages)
        assert "Give the process the key" in lines(logging.ERROR)[2]
        assert "temporalex try-again" in lines(logging.ERROR)[0]
        assert (caplog.records[0].workflow, caplog.records[0].workflow_id) == ("shop.Order", "order-0")  # type: ignore[attr-defined]

        now[0] += 60
        log.add(RUN, ("shop.Cart", "cart-1"), ValueError("card 4711"), None)  # the line of another cause loses no count
        caplog.clear()
        log.add(RUN, ("shop.Order", "order-5"), ValueError("card 4711"), None)
        assert len(lines(logging.INFO)) == 1
        assert lines(logging.ERROR)[0].endswith("(2 other runs were blocked by this since the last such line)")
