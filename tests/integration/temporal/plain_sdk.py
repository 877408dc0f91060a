"""Workflows that are written with the SDK itself, to compare the time of their replay with ours."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity, workflow


@activity.defn
async def plain_step(number: int) -> int:
    return number + 1


@workflow.defn
class PlainSteps:
    @workflow.run
    async def run(self, steps: int) -> int:
        number = 0
        for _ in range(steps):
            number = await workflow.execute_activity(plain_step, number, start_to_close_timeout=timedelta(seconds=60))
        return number


@workflow.defn
class PlainCounter:
    def __init__(self) -> None:
        self.total = 0
        self.closed = False

    @workflow.run
    async def run(self) -> int:
        await workflow.wait_condition(lambda: self.closed)
        return self.total

    @workflow.update
    def add(self, number: int) -> int:
        self.total += number
        return self.total

    @workflow.signal
    def close(self) -> None:
        self.closed = True
