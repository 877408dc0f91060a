"""One attempt of a step in this process, with the same rules as on the durable runtime."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any

from temporalex_django.authoring.retry import next_delay
from temporalex_django.core.failures import ReturnedErr, describe, failure_types
from temporalex_django.core.payloads.round_trip import encode_lossless
from temporalex_django.core.results import Err
from temporalex_django.errors import PayloadError
from temporalex_django.graph.durable.activities import activity_of
from temporalex_django.graph.instance import Instance
from temporalex_django.graph.progress import Failure, Result, decode_step_result
from temporalex_django.graph.steps import name_of


class _InstanceSource:
    """The implementation of ``authoring.activity.RunSource`` for an instance in memory."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    def workflow(self, version: int) -> Any:
        del version
        return self._instance.workflow

    def instance(self, version: int) -> Instance:
        del version
        return self._instance


def run_attempt(instance: Instance, number: int, attempt: int) -> Result | float:
    """Run the step with that number and return its result, or the seconds until the next attempt (a float).

    ``attempt`` is the number of this attempt, from 1. An undeclared event, a value that is no result, and data that
    cannot be encoded fail the step at once. An exception and an ``Err`` fail it after the last attempt that its retry
    policy allows.
    """
    graph = instance.graph
    step, activity, source = graph.steps[number], activity_of(graph.steps[number]), _InstanceSource(instance)
    policy = instance.workflow.options[number].get("retry")
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
        delay = next_delay(policy, attempt, failure_types(exc))
        if delay is not None:
            return delay
        attempts_text = ""
        if attempt > 1:
            attempts_text = f" (after {attempt} attempts)"
        return Failure(type(exc).__name__, f"{describe(exc)['message']}{attempts_text}")
    try:
        label = f"the result of step {name_of(step)}"
        call_data = activity.encode_result(value, args, source)
        # Refuse a result that would come back changed, as the durable runtime does (see decision 14).
        return decode_step_result(encode_lossless(call_data, label=label))
    except ReturnedErr as exc:
        delay = next_delay(policy, attempt, exc.types)
        if delay is None:
            return Err(exc.reason)
        return delay
    except PayloadError as exc:
        return Failure(**describe(exc))


async def _await(value: Awaitable[Any]) -> Any:
    return await value
