"""Workflows that the tests of the faces run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import transaction

from temporalex_django import (
    Async,
    ContinueAsNew,
    Err,
    NoReply,
    Ok,
    Reply,
    Stop,
    Unique,
    Workflow,
    activity,
    api,
    query,
    update,
)


@dataclass
class Opening:
    owner: str
    limit: int = 10


@activity
def double(n: int) -> int:
    return 2 * n


@activity(atomic=True)
def touch_own_run(run_id: str, what: str) -> str:
    from temporalex_django import WorkflowHandle, errors

    handle = WorkflowHandle(run_id)
    try:
        if what == "update":
            handle.update("add", 1)
        elif what == "query":
            handle.query("items")
        else:
            handle.signal("note", "from inside")
    except errors.NestingError as exc:
        return f"refused: {exc}"
    return "done"


@activity
def ask_own_run(run_id: str) -> Any:
    from temporalex_django import WorkflowHandle

    with transaction.atomic():
        return WorkflowHandle(run_id).query("state")


def positive(args: int, state: Any) -> Any:
    return Ok(None) if args > 0 else Err("only more than nothing")


def add(args: int, state: list[int]) -> Any:
    api.publish_state([*state, args])
    return Reply(len(state) + 1, [*state, args])


def broken(args: Any, state: Any) -> Any:
    raise KeyError("lost")


def slow(args: int, state: list[int]) -> Any:
    async def work() -> int:
        return await double(args)

    return Async(work, state)


async def busy(args: int, state: list[int]) -> Any:
    return Reply(await double(args), state)


class Basket(Workflow):
    name = "test.Basket"
    tags = ["shop"]

    @query("items")
    @staticmethod
    def items(state):
        return state

    @query("upto")
    @staticmethod
    def upto(state, n):
        return state[:n]

    @query("broken")
    @staticmethod
    def failing(state):
        raise ValueError("no idea")

    async def run(self, args: Any) -> Any:
        api.publish_state([])
        items = await api.phase(
            [],
            update={
                "add": update(add, validator=positive),
                "broken": broken,
                "slow": slow,
                "busy": busy,
                "close": lambda args, state: Stop(state, "closing"),
            },
            signal={
                "note": lambda payload, state: NoReply([*state, payload]),
                "checkout": lambda payload, state: Stop(state),
            },
        )
        return Ok(items)


class Typed(Workflow):
    name = "test.Typed"

    async def run(self, args: Opening) -> Any:
        return Ok(f"{args.owner}:{args.limit}")


class Failing(Workflow):
    name = "test.Failing"

    async def run(self, args: str) -> Any:
        if args == "raise":
            raise LookupError("nowhere")
        return Err({"code": 7})


class Generations(Workflow):
    """Continues as new at each signal; publishes once in a generation, when told."""

    name = "test.Generations"

    @query("state")
    @staticmethod
    def state(state):
        return state

    async def run(self, args: int) -> Any:
        if args == 0:
            api.publish_state("of the first")
        while True:
            word = await api.wait_for_signal("word")
            if word == "next":
                return ContinueAsNew(args + 1)
            if word == "end":
                return Ok(args)
            api.publish_state(word)


class Sleepy(Workflow):
    name = "test.Sleepy"

    async def run(self, args: Any) -> Any:
        await api.sleep(timedelta(days=1))
        return Ok("awake")


class Inside(Workflow):
    name = "test.Inside"

    @query("state")
    @staticmethod
    def state(state):
        return state

    async def run(self, args: str) -> Any:
        api.publish_state("inside")
        if args == "ask":
            return Ok(await ask_own_run(api.info().run_id))
        return Ok(await touch_own_run(api.info().run_id, args))


class Orders(Workflow):
    name = "test.Orders"
    unique = Unique(key="order", scope="workflow")
    task_queue = "orders"

    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("end"))


class _Undo(Exception):
    """Ends a transaction."""


@contextmanager
def rolled_back() -> Iterator[None]:
    """A transaction that does not come about."""
    from django.db import transaction

    try:
        with transaction.atomic():
            yield
            raise _Undo
    except _Undo:
        pass


def drain() -> None:
    """What is due runs here; imported late, since this module also loads where Django is not set up."""
    from temporalex_django import testing

    testing.drain(timeout=20)
