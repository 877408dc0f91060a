"""The code that the stored histories replay against. Changed only so that every file still replays; see README.md."""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any

from temporalex_django import (
    Async,
    ContinueAsNew,
    Err,
    Escalation,
    NoReply,
    Ok,
    Reply,
    RetryPolicy,
    Stop,
    TimedOut,
    Workflow,
    activity,
    api,
    errors,
    update,
)


@activity
def charge(what=None):
    return {"charged": what}


@activity
def ship(what=None):
    return {"shipped": what}


@activity
def refund(what=None):
    return {"refunded": what}


@activity(retry=RetryPolicy(max_attempts=2, initial_interval=1, backoff=1))
def flaky(what=None):
    raise ConnectionError(f"no answer about {what}")


@activity(local=True)
def price(what=None):
    return 12


class KeptSequence(Workflow):
    """Steps one after the other, with all that is drawn and read on the way."""

    async def run(self, args):
        api.publish_state("begun")
        seen = [api.random(), str(api.uuid4()), api.now().isoformat()]
        seen.append(await price(args))
        seen.append(await charge(args))
        await api.sleep(60)
        await api.sleep(0)
        api.publish_state("paid")
        try:
            await flaky("the parcel")
        except errors.ActivityFailure as exc:
            seen.append([exc.type, exc.attempts])
        try:
            await ship.options(schedule_to_close=30)(args)
        except errors.ActivityFailure as exc:
            seen.append(exc.timeout)
        info = api.info()
        return Ok([*seen, info.workflow, info.id, api.random()])


class KeptFailure(Workflow):
    """Ends as its argument says."""

    run_timeout = 3600

    async def run(self, args):
        await charge(args)
        match args:
            case "err":
                return Err("not today")
            case "raise":
                raise ValueError("not at all")
            case "wrong":
                return "neither Ok nor Err"
        await api.wait_for_signal("never")
        return None


class KeptCart(Workflow):
    """A phase with plain and slow handlers."""

    async def run(self, args):
        cart = await api.phase(
            [],
            signal={"note": lambda n, s: NoReply([*s, n]), "checkout": lambda _, s: Stop(s), "odd": lambda _, s: 1 / 0},
            update={"add": update(self.add, validator=self.judge), "last": lambda n, s: Stop([*s, n], len(s))},
            timeout=args,
        )
        if isinstance(cart, TimedOut):
            return Err(["abandoned", cart.state])
        return Ok(await charge(cart))

    @staticmethod
    async def add(item, state):
        return Reply(len(state), [*state, await price(item), (await charge(item))["charged"]])

    @staticmethod
    def judge(item, state):
        if len(state) >= 4:
            return Err("full")
        return None


class KeptOverlap(Workflow):
    """Async handlers that change the state and wait for it."""

    async def run(self, args):
        ended = await api.phase(
            0,
            signal={"count": lambda n, s: Async(partial(self.count, n), s), "stop": lambda _, s: Stop(s)},
            update={
                "reach": lambda n, s: Async(partial(self.reach, n), s),
                "broken": lambda n, s: Async(partial(flaky, n), s),
                "slow": self.slow,
            },
            timeout=100,
        )
        return Ok([ended.state, "late"] if isinstance(ended, TimedOut) else ended)

    @staticmethod
    async def count(n):
        await charge(n)
        await api.update_state(lambda s: (None, s + n))

    @staticmethod
    async def reach(n):
        return await api.wait_condition(lambda s: s >= n, timeout=20)

    @staticmethod
    async def slow(n, state):
        await ship(n)
        return Reply("shipped", state + n)


class KeptFan(Workflow):
    """Branches, bounded, some of which fail."""

    async def run(self, args):
        many = await api.parallel([partial(charge, n) for n in range(5)], limit=args)
        mixed = await api.parallel([charge("a"), partial(self.steps, "b"), flaky("c"), partial(api.sleep, 5)])
        return Ok([many, [isinstance(one, Err) for one in mixed]])

    @staticmethod
    async def steps(n):
        await charge(n)
        return await ship(n)


class KeptRace(Workflow):
    """The first of several wins, and what the losers asked for is withdrawn."""

    async def run(self, args):
        first = await api.race(charge("quick"), partial(api.sleep, 10), partial(api.wait_for_signal, "go"))
        second = await api.race(partial(api.sleep, 10), partial(self.both), ship("slow"))
        try:
            await api.race(flaky("first"), partial(api.sleep, 50))
        except errors.ActivityFailure as exc:
            return Ok([first, second, exc.type])

    @staticmethod
    async def both():
        return await api.parallel([charge("one"), partial(api.wait_condition, lambda: False, timeout=40)])


class KeptCancel(Workflow):
    """Hears of a cancel in each of the ways there are."""

    async def run(self, args):
        match args:
            case "shield":
                async with api.shield():
                    await charge("whatever happens")
                    await ship("whatever happens")
                await api.sleep(60)
            case "ask":
                await api.wait_cancelled()
                return Ok([api.cancel_requested(), await refund("asked")])
            case "catch":
                try:
                    await api.parallel([charge("one"), partial(api.sleep, 60), partial(api.wait_for_signal, "never")])
                except errors.Cancelled:
                    return Ok(await refund("caught"))
            case "phase":
                await api.phase(0, signal={"slow": lambda _, s: Async(partial(charge, s), s)}, timeout=60)
        return None


class KeptSaga(Workflow):
    """Compensations, in reverse, also on a cancel."""

    async def run(self, args):
        async with api.saga() as saga:
            await charge(args)
            saga.add(refund, "the money")
            saga.add(flaky, "a compensation that fails")
            await ship(args)
            saga.add(refund, "the parcel")
            await api.wait_for_signal("delivered")
            if args == "refused":
                raise ValueError("the parcel was refused")
        return Ok("kept")


class KeptChild(Workflow):
    """Ends by a signal, or as it is told."""

    async def run(self, args):
        if args == "fail":
            raise ValueError("the child failed")
        return Ok([args, await api.wait_for_signal("end")])


class KeptParent(Workflow):
    """Children of the three policies, and one that fails."""

    async def run(self, args):
        policies = ("terminate", "abandon", "request_cancel")
        starts = [
            partial(api.child, KeptChild, policy, id=f"{api.info().id}-{policy}", parent_close=policy)
            for policy in policies
        ]
        try:
            await api.child(KeptChild, "fail")
        except errors.ChildWorkflowFailure as exc:
            failed = exc.type
        if args == "leave":
            await api.race(partial(api.parallel, starts), partial(api.wait_for_signal, "enough"))
            return Ok(failed)
        return Ok([failed, [str(result) for result in await api.parallel(starts)]])


class KeptMessenger(Workflow):
    """Signals and cancels others, and learns when there is nobody."""

    async def run(self, args):
        await api.signal_external(args, "end", "from the messenger")
        seen = []
        for call in (partial(api.signal_external, "nobody", "end"), partial(api.cancel_external, args)):
            try:
                await call()
            except errors.WorkflowNotFound:
                seen.append("not found")
            except errors.WorkflowClosed:
                seen.append("closed")
        await api.cancel_external(api.info().id)
        try:
            await api.sleep(10)
        except errors.Cancelled:
            seen.append("cancelled")
        return Ok(seen)


class KeptPatched(Workflow):
    """Code that changed while runs were open: each history is of another time."""

    async def run(self, args):
        seen = []
        for _ in range(2):
            if api.patched("charge-first"):
                seen.append(await charge("new"))
            else:
                seen.append(await ship("old"))
        api.deprecate_patch("long-gone")
        await api.wait_for_signal("end")
        if api.patched("refund-at-the-end"):
            seen.append(await refund("new"))
        return Ok(seen)


class KeptRounds(Workflow):
    """Continues as new, with what it has not read yet."""

    async def run(self, args):
        first = await api.wait_for_signal("item")
        await charge(first)
        if args < 2:
            return ContinueAsNew(args + 1)
        return Ok([args, first])


class KeptMailbox(Workflow):
    """Signals before, between and behind phases, and a wait that competes with a handler."""

    async def run(self, args):
        early = await api.wait_for_signal("early")
        first = await api.phase([], signal={"a": self.slow, "stop": lambda _, s: Stop(s)})
        second = await api.phase(first, signal={"b": lambda n, s: Stop([*s, n]), "a": lambda n, s: NoReply([*s, -n])})
        return Ok([early, second])

    @staticmethod
    async def slow(n, state):
        inner = await api.wait_for_signal("inner")
        return NoReply([*state, n, inner])


class KeptContexts(Workflow):
    """Branches with a precision of their own, and async generators that they leave."""

    async def run(self, args):
        decimal.getcontext().prec = args
        thirds = await api.parallel([partial(self.third, n) for n in range(1, 4)])
        return Ok([thirds, str(Decimal(1) / 3)])

    @classmethod
    async def third(cls, prec):
        with decimal.localcontext() as context:
            context.prec = prec
            async for _ in cls.steps(prec):
                break
            await api.sleep(4 - prec)
            return str(Decimal(1) / 3)

    @staticmethod
    async def steps(prec):
        try:
            yield await price(prec)
        finally:
            await charge(str(Decimal(1) / 3))


class KeptTurns(Workflow):
    """Units that wait for one lock, and races that leave what they do not return."""

    async def run(self, args):
        self.locked = True
        order = []
        await api.parallel([*[partial(self.turn, n, order) for n in range(3)], self.unlock])
        first = await api.race(api.wait_for_signal("a"), api.wait_for_signal("b"))
        return Ok([order, first, await api.wait_for_signal("b"), await api.wait_for_signal("b")])

    async def turn(self, number, order):
        await api.sleep(3 - number)
        await api.wait_condition(lambda: not self.locked)
        self.locked = True
        order.append(await charge(number))
        self.locked = False

    async def unlock(self):
        await api.wait_for_signal("unlock")
        self.locked = False


class KeptGap(Workflow):
    """Continues as new with signals, updates and a cancel request that it has not seen, towards a phase."""

    async def run(self, args):
        async with api.shield():
            await charge(args)
        if args < 3:
            return ContinueAsNew(args + 1)
        try:
            await api.sleep(60)
        except errors.Cancelled:
            return Ok(await api.phase([], update={"add": self.add}, signal={"note": self.add, "end": self.end}))

    @staticmethod
    def add(item, state):
        return Reply(len(state), [*state, item]) if isinstance(item, int) else NoReply([*state, item])

    @staticmethod
    def end(_, state):
        return Stop(state)


class KeptApprovals(Workflow):
    """Asks people: one is reminded and decides late, one is not waited for any more, one is overdue."""

    async def run(self, args):
        escalate = Escalation(after=90, groups=["chiefs"])
        first = await api.approval(
            "first", role="kept.decide", remind=60, escalate=escalate, due=600, form=dict[str, int]
        )
        index, _ = await api.race(
            partial(api.approval, "left", users=["ann"], remind=60), partial(api.approval, "right", groups=["chiefs"])
        )
        last = await api.approval("last", role="kept.decide", outcomes=["yes", "no"], due=30, four_eyes=True)
        return Ok([first.outcome, first.data, first.by.name, index, last.outcome, await charge(first.comment)])


#: Whether the handler of the kept history was wrong, as it was when that was recorded. It has been put right since.
FAULTY = False


class KeptFailedSignals(Workflow):
    """Two signals failed, one of them was delivered again, and the run went on as new."""

    async def run(self, args):
        state = await api.phase(
            [], signal={"paid": self.paid, "stop": lambda _, state: Stop(state)}, update={"add": self.add}
        )
        await charge(state)
        return Ok(state) if args else ContinueAsNew(True)

    @staticmethod
    def paid(amount, state):
        if FAULTY:
            raise KeyError("vat")
        return NoReply([*state, amount])

    @staticmethod
    def add(item, state):
        return Reply(len(state), [*state, item])


class KeptPublished(Workflow):
    """Phases that publish their state: as it is, and by a function."""

    async def run(self, args):
        count = await api.phase(
            args,
            signal={"add": lambda n, s: NoReply(s + n), "later": lambda n, s: Async(partial(self.later, n), s)},
            update={"stop": lambda _, s: Stop(s, "stopped")},
            publish=True,
        )
        names = await api.phase(
            [],
            signal={"add": lambda n, s: NoReply([*s, n]), "stop": lambda _, s: Stop(s)},
            publish=lambda state: {"count": count, "names": len(state)},
        )
        return Ok([count, names, await charge(names)])

    @staticmethod
    async def later(n):
        await charge(n)
        await api.update_state(lambda s: (None, s + n))


class KeptDeadlines(Workflow):
    """Waits until instants, some of which have passed when the code comes to them."""

    async def run(self, args):
        start = api.now()
        seen = []
        for seconds in (10, 20, -5):
            ended = await api.phase(0, signal={"add": self.add}, until=start + timedelta(seconds=seconds))
            seen.append(ended.state if isinstance(ended, TimedOut) else ended)
            await charge(seconds)
        instants = [start + timedelta(seconds=seconds) for seconds in (90, 95, 120)]
        seen += [await api.wait_condition(lambda: False, until=instant) for instant in instants[:2]]
        asked = [await api.approval("Pay?", users=["ann"], due=due) for due in (instants[2], start, -3)]
        return Ok([*seen, *(decision.outcome for decision in asked)])

    @staticmethod
    def add(n, state):
        return Stop(state + n) if n > 5 else NoReply(state + n)


@dataclass
class Proration:
    """An answer that JSON has no type for."""

    amount: Decimal


class KeptAnswers(Workflow):
    """Answers of updates with a type: by annotations, and by ``returns``."""

    async def run(self, args):
        total = await api.phase(
            Decimal(args),
            update={
                "prorate": self.prorate,
                "later": self.later,
                "half": update(lambda _, s: Reply(s / 2, s / 2), returns=Decimal),
                "close": self.close,
            },
        )
        return Ok(await charge(str(total)))

    @staticmethod
    def prorate(days: int, total: Decimal) -> Reply[Proration, Decimal]:
        amount = total * days / 30
        return Reply(Proration(amount), total + amount)

    @staticmethod
    def later(days: int, total: Decimal) -> Async[Proration, Decimal]:
        async def work():
            await ship(days)
            return Proration(Decimal(days))

        return Async(work, total)

    @staticmethod
    def close(_: Any, total: Decimal) -> Stop[Decimal, Decimal]:
        return Stop(total, total)


class KeptRaising(Workflow):
    """Branches whose first failure is raised once all have ended, inside a saga."""

    async def run(self, args):
        good = await api.parallel(charge(1), partial(ship, 2), raise_errors=True)
        try:
            async with api.saga() as saga:
                await charge("the money")
                saga.add(refund, "the money")
                await api.parallel([partial(api.sleep, 5), flaky("first"), flaky("second")], raise_errors=True)
        except errors.ActivityFailure as exc:
            return Ok([good, exc.type, len(exc.__notes__)])
