"""The workflows that measure the pure executor."""

from __future__ import annotations

from functools import partial
from typing import Any

from temporalex_django import NoReply, Ok, Reply, Stop, Workflow, activity, api


@activity
def double(value: int) -> int:
    return 2 * value


class Steps(Workflow):
    """One activity after the other."""

    async def run(self, args: int) -> Ok[int]:
        total = 0
        for number in range(args):
            total += await double(number)
        return Ok(total)


class Fan(Workflow):
    """As many branches as its argument says, an activity in each."""

    async def run(self, args: int) -> Ok[int]:
        return Ok(len(await api.parallel([partial(double, number) for number in range(args)])))


class Long(Workflow):
    """One phase that counts signals until it has as many as its argument says."""

    async def run(self, args: int) -> Ok[int]:
        def count(step: int, seen: int) -> NoReply | Stop:
            return Stop(seen + step) if seen + step >= args else NoReply(seen + step)

        return Ok(await api.phase(0, signal={"count": count}))


class Cart(Workflow):
    """A shop's cart: updates and signals, a reminder, a fan-out at the end."""

    async def run(self, args: Any) -> Ok[int]:
        def add(item: dict[str, Any], state: dict[str, Any]) -> Reply:
            items = [*state["items"][-9:], item]
            return Reply(len(items), {**state, "items": items})

        def seen(_: Any, state: dict[str, Any]) -> NoReply:
            return NoReply({**state, "seen": state["seen"] + 1})

        cart: Any = {"items": [], "seen": 0}
        api.publish_state({"phase": "open"})
        cart = await api.phase(
            cart, update={"add": add}, signal={"seen": seen, "checkout": lambda _, state: Stop(state)}, timeout=86_400
        )
        api.publish_state({"phase": "paying"})
        lines: list[Any] = await api.parallel([partial(double, number) for number in range(len(cart["items"]))])
        await api.sleep(60)
        return Ok(sum(lines))
