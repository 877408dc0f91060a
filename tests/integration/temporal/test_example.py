"""The program of the guide works as it is written."""

from __future__ import annotations

import asyncio

import pytest

from temporalex_django import Ok, Workflow, api
from tests.integration.temporal import example

pytestmark = pytest.mark.once


def test_the_program_of_the_guide(temporal_address):
    class Order(Workflow):
        async def run(self, args):
            await api.wait_for_signal("close")
            return Ok(args["total"])

    async def main():
        client = await example.connect(temporal_address)
        worker = asyncio.create_task(example.work(client))
        try:
            return await example.order(client)
        finally:
            worker.cancel()

    assert asyncio.run(main()) == 1
