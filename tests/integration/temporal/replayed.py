"""Workflows that use every construct. ``test_replayer`` changes their text, and replays their histories against it."""

from __future__ import annotations

from temporalex_django import (
    ContinueAsNew,
    Done,
    Event,
    GraphWorkflow,
    Ok,
    Reply,
    Step,
    Stop,
    Unique,
    WaitForEvent,
    Workflow,
    activity,
    api,
    errors,
)


@activity
def price(item: str) -> int:
    return len(item)


@activity
def charge(amount: int) -> int:
    return amount


@activity
def pack(item: str) -> str:
    return f"packed {item}"


class ClusterPayment(Workflow):
    async def run(self, args):
        return Ok(await charge(args))


class ClusterRefund(Workflow):
    """A child that only changed code starts."""

    async def run(self, args):
        return Ok(-args)


class ClusterOrder(Workflow):
    """Activities, a timer, a child, a patch and a signal, one after the other."""

    async def run(self, args):
        amount = await price(args)
        await api.sleep(0.02)
        paid = await api.child(ClusterPayment, amount)
        if api.patched("boxes"):
            await pack(args)
        address = await api.wait_for_signal("address")
        await pack(address)
        return Ok(paid)


class ClusterSide(Workflow):
    """Branches side by side: a race that a timer wins, and three activities."""

    async def run(self, args):
        index, _ = await api.race(api.wait_for_signal("never"), api.sleep(0.03))
        results = await api.parallel([price(args), pack(args), charge(3)])
        async with api.shield():
            await charge(4)
        return Ok([index, *results])


def add(amount, total):
    if amount > 100:
        raise errors.ApplicationError("too much", type="TooMuch")
    return Reply(total + amount, total + amount)


def close(payload, total):
    return Stop(total)


class ClusterCounter(Workflow):
    """A phase with updates and a signal; each round is a run of its own."""

    async def run(self, args):
        total = await api.phase(args, signal={"close": close}, update={"add": add})
        await charge(total)
        if total < 10:
            return ContinueAsNew(total)
        return Ok(total)


class ClusterRelay(Workflow):
    """Two runs, of which the first one takes one signal and leaves the other."""

    async def run(self, args):
        number = await api.wait_for_signal("next")
        return ContinueAsNew(number) if args is None else Ok([args, number])


class ClusterTarget(Workflow):
    async def run(self, args):
        return Ok(await api.wait_for_signal("ping"))


class ClusterMessenger(Workflow):
    """A signal to another run, which is then cancelled."""

    async def run(self, args):
        await api.signal_external(args, "ping", 1)
        await api.cancel_external(args)
        await api.sleep(0.04)
        return Ok("sent")


class Check(Step):
    events = ("passed", "failed")

    def execute(self, instance, config, context):
        return Event("passed", {"total": context.initial.total})


class Bill(Step):
    events = ("billed",)

    def execute(self, instance, config, context):
        return Event("billed")


class Reserve(Step):
    events = ("reserved",)

    def execute(self, instance, config, context):
        return Event("reserved")


class Ship(Step):
    events = ("shipped",)

    def execute(self, instance, config, context):
        return Event("shipped")


class Pick(Step):
    """A step that only changed graphs have."""

    events = ("picked",)

    def execute(self, instance, config, context):
        return Event("picked")


class ClusterDelivery(GraphWorkflow):
    """A graph with two steps side by side, a join, and an event from outside."""

    unique = Unique(key="deliveryid")
    initial = Check
    receipt = WaitForEvent("signed")
    transitions = {
        (Check, "passed"): [Bill, Reserve],
        (Check, "failed"): Done,
        (Bill, "billed"): Ship,
        (Reserve, "reserved"): Ship,
        (Ship, "shipped"): receipt,
        (receipt, "signed"): Done,
    }


class ClusterExpense(Workflow):
    """A human task, and work behind its decision."""

    async def run(self, args):
        decision = await api.approval("Pay the expense?", users=["ann"], due=3600)
        if decision.outcome == "approved":
            await charge(args)
        await pack(decision.outcome)
        return Ok(decision.outcome)


class ClusterWaiting(Workflow):
    """A run that is still open: a step behind it, and a signal before it."""

    async def run(self, args):
        await charge(10)
        await api.wait_for_signal("more")
        await charge(20)
        return Ok()
