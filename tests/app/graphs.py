"""A graph that real worker processes run: the same order as a shop's, with files for effects."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from temporalex_django import Done, Event, GraphWorkflow, Step, Unique, Wait, WaitForEvent, activity_context
from tests.app.durable import held_by, note


class Noted(Step):
    """Writes a line each time it is tried; waits until the test removes the file that ``hold`` names."""

    events = ("ok",)

    def execute(self, instance: Any, config: Any, context: Any) -> Event:
        attempt = activity_context()
        note(context.initial.path, f"{type(self).__name__} {attempt.attempt} {attempt.idempotency_key} {os.getpid()}")
        if context.initial.get("hold_in") == type(self).__name__:
            held_by(context.initial.hold)
        return Event("ok", {"saw": sorted(context.steps)})


class Check(Noted):
    pass


class Charge(Noted):
    pass


class Reserve(Noted):
    pass


class Ship(Noted):
    pass


pause = Wait(timedelta(milliseconds=50))
carrier = WaitForEvent("delivered", timeout=timedelta(days=1))


class Order(GraphWorkflow):
    name = "FaultyOrder"
    unique = Unique(key="faulty")
    initial = Check
    transitions = {
        (Check, "ok"): [Charge, Reserve],
        (Charge, "ok"): Ship,
        (Reserve, "ok"): pause,
        (pause, "timeout"): Ship,
        (Ship, "ok"): carrier,
        (carrier, "delivered"): Done,
        (carrier, "timeout"): Done,
    }
