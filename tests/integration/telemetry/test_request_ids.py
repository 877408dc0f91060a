"""The id of a web request reaches the log lines of the runs that it causes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import RequestFactory, override_settings

from temporalex_django import Ok, Workflow, activity, api
from temporalex_django.contrib import request_id
from temporalex_django.contrib.logs import JsonFormatter
from temporalex_django.contrib.request_id import RequestId, RequestIdMiddleware, use_request_id
from temporalex_django.interceptors.chain import chain
from temporalex_django.testing import WorkflowEnvironment
from tests.support.client_flows import drain

pytestmark = pytest.mark.django_db


@activity(name="request_ids.log")
def log_line() -> None:
    logging.getLogger("shop").warning("charged")


class Requested(Workflow):
    name = "request_ids.Requested"

    async def run(self, args: Any) -> Ok:
        api.logger.warning("began")
        await log_line()
        return Ok(api.headers().get("request-id"))


@pytest.fixture
def lines() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    written: list[str] = []

    class Writing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(self.format(record))

    handler, before = Writing(), chain.interceptors
    handler.setFormatter(JsonFormatter())
    logging.getLogger().addHandler(handler)
    chain.install([RequestId()])
    request_id._of_runs.clear()
    yield lambda: [json.loads(line) for line in written]
    chain.install(before)
    logging.getLogger().removeHandler(handler)


def serve(view: Any, **headers: str) -> HttpResponse:
    return RequestIdMiddleware(view)(RequestFactory().post("/orders", headers=headers))


def test_the_lines_of_a_run_have_the_id_of_its_request(lines: Any) -> None:
    handles = []

    def view(request: Any) -> HttpResponse:
        logging.getLogger("shop").warning("ordered")
        handles.append(Requested.start(id="r1"))
        return HttpResponse()

    serve(view, **{"X-Request-ID": "req 7!"})
    drain()
    assert handles[0].result() == "req7"
    found = {line["message"]: line.get("request_id") for line in lines()}
    assert {name: found[name] for name in ("ordered", "began", "charged")} == dict.fromkeys(
        ("ordered", "began", "charged"), "req7"
    )


def test_the_line_about_a_blocked_run_has_it(lines: Any) -> None:
    class Blocking(Workflow):
        name = "request_ids.Blocking"
        unexpected_error = "block"

        async def run(self, args: Any) -> Ok:
            raise KeyError("x")

    with use_request_id("req8"):
        Blocking.start(id="r2")
    drain()
    blocked = next(line for line in lines() if "is blocked" in line["message"])
    assert blocked["request_id"] == "req8"


def test_without_a_request_there_is_none(lines: Any) -> None:
    assert WorkflowEnvironment().start(Requested, id="r3").result() is None
    assert [line for line in lines() if "request_id" in line] == []


def test_a_header_of_the_caller_is_kept(lines: Any) -> None:
    with use_request_id("of the request"):
        handle = WorkflowEnvironment().start(Requested, id="r4", headers={"request-id": "own"})
    assert handle.result() == "own"


def test_async_requests_keep_theirs_apart(lines: Any) -> None:
    async def view(request: Any) -> HttpResponse:
        await asyncio.sleep(0)
        return HttpResponse(request_id.current_request_id())

    async def two() -> list[bytes]:
        serve_async = RequestIdMiddleware(view)
        requests = [RequestFactory().get("/", headers={"X-Request-ID": name}) for name in ("a", "b")]
        return [answer.content for answer in await asyncio.gather(*map(serve_async, requests))]

    assert asyncio.run(two()) == [b"a", b"b"]
    assert request_id.current_request_id() == ""


@override_settings(TEMPORALEX={"REQUEST_ID_HEADER": None})
def test_the_header_can_be_off(lines: Any) -> None:
    assert serve(lambda _: HttpResponse(request_id.current_request_id()), **{"X-Request-ID": "r"}).content == b""


def test_a_process_remembers_the_ids_of_its_last_runs(lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_id, "_MOST_RUNS", 2)
    for number in range(3):
        request_id._remember(f"run{number}", {"request-id": f"r{number}"})
    assert [request_id.current_request_id(f"run{number}") for number in range(3)] == ["", "r1", "r2"]
