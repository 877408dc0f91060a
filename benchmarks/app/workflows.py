"""The workflows that are measured."""

from __future__ import annotations

from typing import Any

from temporalex_django import Ok, Reply, Stop, Workflow, activity, api


@activity
def nothing() -> int:
    return 1


class One(Workflow):
    """One activity that does nothing."""

    async def run(self, args: Any) -> Any:
        return Ok(await nothing())


def _count(args: int, state: int) -> Reply:
    return Reply(state + args, state + args)


class Parked(Workflow):
    """Waits in a phase for updates."""

    async def run(self, args: Any) -> Any:
        return Ok(await api.phase(0, update={"count": _count}, signal={"stop": lambda _, state: Stop(state)}))
