"""The formatters: one line for each record, with the ids of its run and without payloads."""

from __future__ import annotations

import json
import logging
import logging.config
from io import StringIO
from typing import Any

import pytest

from temporalex_django.contrib.logs import JsonFormatter, PlainFormatter

SECRET = "4111 1111 1111 1111"


@pytest.fixture(params=[JsonFormatter, PlainFormatter])
def log(request: pytest.FixtureRequest) -> Any:
    """Return a logger of the package, and a function that returns what was written."""
    output = StringIO()
    handler = logging.StreamHandler(output)
    handler.setFormatter(request.param())
    logger = logging.getLogger("temporalex_django.tests_of_logs")
    logger.addHandler(handler)
    logger.propagate = False
    yield logger, output
    logger.removeHandler(handler)
    logger.propagate = True


def test_a_line_has_the_ids_of_its_run(log: Any) -> None:
    logger, output = log
    logger.warning("run %s is blocked", "42", extra={"workflow": "Order", "workflow_id": "42", "run_id": "0198"})
    line = output.getvalue()
    assert line.count("\n") == 1
    for part in ("WARNING", "temporalex_django.tests_of_logs", "run 42 is blocked", "Order", "0198"):
        assert part in line


def test_no_payload_is_in_a_line(log: Any) -> None:
    logger, output = log
    try:
        raise ValueError(SECRET)
    except ValueError:
        logger.exception("an attempt failed", extra={"payload": SECRET})
    line = output.getvalue()
    assert SECRET not in line
    assert line.count("\n") == 1
    assert "ValueError at " in line
    assert "test_logs.py:" in line


def test_a_value_cannot_begin_a_line(log: Any) -> None:
    logger, output = log
    logger.warning("renamed", extra={"workflow_id": "1\n2026-01-01T00:00:00.000Z INFO forged: line\x1b[31m\u2028"})
    line = output.getvalue()
    assert line.splitlines() == [line.rstrip("\n")]
    assert "\x1b" not in line


def test_json_has_types_constants_and_the_time_in_utc() -> None:
    record = logging.LogRecord("temporalex_django.x", logging.INFO, __file__, 1, "done", (), None)
    record.created, record.seq, record.otelTraceID = 0.25, 7, "4bf92f3577b34da6a3ce929d0e0e4736"
    assert json.loads(JsonFormatter({"service": "shop"}).format(record)) == {
        "time": "1970-01-01T00:00:00.250Z",
        "level": "INFO",
        "logger": "temporalex_django.x",
        "message": "done",
        "seq": 7,
        "otelTraceID": "4bf92f3577b34da6a3ce929d0e0e4736",
        "service": "shop",
    }


def test_facts_of_a_signal_are_part_of_its_line() -> None:
    record = logging.LogRecord("temporalex_django.telemetry", logging.INFO, __file__, 1, "step_started", (), None)
    record.event, record.facts = "step_started", {"workflow": "Order", "step": "charge", "failure": None}
    line = json.loads(JsonFormatter().format(record))
    assert (line["event"], line["workflow"], line["step"]) == ("step_started", "Order", "charge")
    assert "failure" not in line


def test_facts_of_other_libraries_are_left_out() -> None:
    record = logging.LogRecord("shop", logging.INFO, __file__, 1, "paid", (), None)
    record.facts = {"card": SECRET}
    assert SECRET not in JsonFormatter().format(record)


def test_a_project_names_them_in_its_settings() -> None:
    outputs = {"json": StringIO(), "plain": StringIO()}
    name = "temporalex_django.tests_of_settings"
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {
                "json": {"()": "temporalex_django.contrib.logs.JsonFormatter", "constants": {"service": "shop"}},
                "plain": {"()": "temporalex_django.contrib.logs.PlainFormatter"},
            },
            "handlers": {
                kind: {"class": "logging.StreamHandler", "formatter": kind, "stream": output}
                for kind, output in outputs.items()
            },
            "loggers": {name: {"handlers": [*outputs], "level": "INFO", "propagate": False}},
        }
    )
    logging.getLogger(name).info("paid", extra={"workflow_id": "42"})
    logging.getLogger(name).handlers.clear()

    line = json.loads(outputs["json"].getvalue())
    assert (line["message"], line["workflow_id"], line["service"]) == ("paid", "42", "shop")
    assert outputs["plain"].getvalue().endswith(f" INFO {name}: paid workflow_id=42\n")
