"""One attempt of a step in this process, with the same rules for results and retries as on the durable runtime."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from temporalex_django.authoring.activity_options import delay_after, jitter_draw
from temporalex_django.core.failures import ReturnedErr, describe, exception_name, retry_request
from temporalex_django.core.payloads.round_trip import encode_lossless
from temporalex_django.core.results import Err
from temporalex_django.errors import PayloadError
from temporalex_django.graph.durable_run import activity_of
from temporalex_django.graph.instance import Instance
from temporalex_django.graph.progress import Failure, Result, decode_step_result
from temporalex_django.graph.steps import name_of


class _InstanceSource:
    """The access of a step's activity to its workflow class and its instance, where the instance is in memory.

    It implements the protocol ``authoring.activity.RunSource``.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    def workflow(self, version: int) -> Any:
        del version
        return self._instance.workflow

    def instance(self, version: int) -> Instance:
        del version
        return self._instance


@dataclass(frozen=True, slots=True)
class NextAttempt:
    """The next attempt of a step after a failed one: the ``seconds`` until it begins, and its ``number`` from 1."""

    seconds: float
    number: int


def run_attempt(instance: Instance, number: int, attempt: int) -> Result | NextAttempt:
    """Run the step with that number and return its result, or the next attempt if it is tried again.

    ``attempt`` is the number of this attempt, from 1. An undeclared event, a value that is no result, and data that
    cannot be encoded fail the step at once. An exception and an ``Err`` fail it after the last attempt that its retry
    policy allows. ``RetryLater`` says itself when the next attempt begins; its ``hold`` is ignored here.
    """
    graph = instance.graph
    step, activity, source = graph.steps[number], activity_of(graph.steps[number]), _InstanceSource(instance)
    policy = instance.workflow.options[number].get("retry")
    draw = jitter_draw(instance.id, number, attempt)
    args = [graph.keys[number], instance.log.configs.get(number), instance.version]
    try:
        fn, call_data, _ = activity.decode_call(args, {}, source)
    except PayloadError as exc:
        return Failure(**describe(exc))
    try:
        value = fn(*call_data)
        if inspect.isawaitable(value):
            value = asyncio.run(_await(value))
    except BaseException as exc:  # noqa: BLE001 - a step that raises SystemExit must not end a thread of the pool
        next_attempt = _next_attempt(policy, attempt, exc, draw)
        if next_attempt is not None:
            return next_attempt
        attempts_text = ""
        if attempt > 1:
            attempts_text = f" (after {attempt} attempts)"
        return Failure(exception_name(type(exc)), f"{describe(exc)['message']}{attempts_text}")
    try:
        label = f"the result of step {name_of(step)}"
        call_data = activity.encode_result(value, args, source)
        # Refuse a result that would come back changed, as the durable runtime does (see decision 14).
        return decode_step_result(encode_lossless(call_data, label=label))
    except ReturnedErr as exc:
        return _next_attempt(policy, attempt, exc, draw) or Err(exc.reason)
    except PayloadError as exc:
        return Failure(**describe(exc))


def _next_attempt(policy: dict[str, Any] | None, attempt: int, error: BaseException, draw: float) -> NextAttempt | None:
    """Return the attempt after the one with the number ``attempt``, which failed with ``error``; None if none is left.

    ``policy`` is the stored retry policy of the step. ``draw`` is a number from 0 to 1, the share of the jitter that
    shortens the pause.
    """
    delay = delay_after(policy, attempt, error, now=datetime.now(UTC), draw=draw)
    request = retry_request(error)
    counts = request is None or request.counts
    return None if delay is None else NextAttempt(delay, attempt + counts)


async def _await(value: Awaitable[Any]) -> Any:
    return await value
