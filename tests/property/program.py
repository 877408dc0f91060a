"""Programs as data, and the workflow that interprets them: every run has the same code, and what it does is its input.

A program is ``{"steps": [[kind, *arguments], ...], "end": how}``. Every step notes what it saw, so that a difference
shows in the result. ``REACHED`` collects the constructs that were run, for the counts.
"""

from __future__ import annotations

import decimal
from contextvars import ContextVar
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any

from temporalex_django import (
    Async,
    ContinueAsNew,
    Err,
    NoReply,
    Ok,
    Reply,
    RetryLater,
    RetryPolicy,
    Stop,
    TimedOut,
    Workflow,
    activity,
    activity_context,
    api,
    errors,
    update,
)


@activity
def work(value: Any = None) -> Any:
    return value


@activity
def other(value: Any = None) -> Any:
    return value


@activity(local=True)
def quick(value: Any = None) -> Any:
    return value


@activity
def slow(value: Any = None) -> Any:
    return value


@activity(retry=RetryPolicy(max_attempts=1))
def failing(value: Any = None) -> Any:
    """Ask for a later attempt, which does not count, and fail in it."""
    previous = activity_context().previous_failure
    if previous is None:
        raise RetryLater("busy", after=0, counts=False, details=value)
    REACHED.add("retry later")
    raise LookupError(f"failing: {value} after {previous.message} ({previous.details})")


def make_slot(number: int) -> Any:
    @activity(name=f"slot{number}")
    def slot(value: Any = None) -> Any:
        return value

    return slot


SLOTS = [make_slot(number) for number in range(5)]
#: Calls of these stay open until the schedule ends them.
HELD = {"work": work, "other": other, "slow": slow}
#: What the interpreter ran since somebody cleared it.
REACHED: set[str] = set()


TRAIL: ContextVar[tuple[str, ...]] = ContextVar("trail", default=())


def third() -> str:
    return str(Decimal(1) / 3)


def within(ends: Any) -> dict[str, Any]:
    """When a wait ends: after seconds, which may be negative, never, or at the instant ``["until", seconds]``."""
    passed = ends is not None and (ends[1] if isinstance(ends, (list, tuple)) else ends) <= 0
    if passed:
        REACHED.add("deadline passed")
    if not isinstance(ends, (list, tuple)):
        return {"timeout": ends}
    REACHED.add("instant")
    return {"until": api.now() + timedelta(seconds=ends[1])}


class Boom(Exception):
    """What a program raises on purpose."""


class Program(Workflow):
    """The interpreter."""

    stored = {"at": int, "what": str}
    search_attributes = {"which": str, "seen": int, "names": list[str]}

    async def run(self, args: Any) -> Any:
        self.log: list[Any] = []
        self.holder: str | None = None
        end = args["end"]
        try:
            await self.steps("run", args["steps"])
        except errors.Cancelled:
            self.log.append("cancelled")
            if end == "obey":
                raise
            await api.sleep(1)
        match end:
            case "again":
                REACHED.add("continue-as-new")
                return ContinueAsNew({**args, "end": "ok"})
            case "err":
                return Err("asked for")
            case "raise":
                raise Boom("asked for")
        return Ok(self.log)

    def publish(self, who: str) -> None:
        """Also what runs are found by, and joined with."""
        seen = len(self.log)
        api.publish_state({"log": list(self.log), "at": seen, "what": who})
        api.set_search_attributes({"which": who if seen % 3 else None, "seen": seen, "names": [who, "every"]})

    async def steps(self, who: str, steps: list[Any]) -> None:
        for index, step in enumerate(steps):
            place = f"{who}.{index}"
            REACHED.add(step[0])
            try:
                self.log.append([place, step[0], await self.step(place, *step)])
            except (errors.TemporalexError, TypeError) as exc:
                self.log.append([place, type(exc).__name__, str(exc)])

    async def step(self, who: str, kind: str, *args: Any) -> Any:
        match kind:
            case "activity":
                return await HELD[args[0]](who)
            case "local":
                return await quick(who)
            case "failing":
                return await failing(who)
            case "hasty":
                return await slow.options(schedule_to_close=args[0])(who)
            case "sleep":
                return await api.sleep(args[0])
            case "sleep until":
                return await api.sleep_until(api.now() + timedelta(seconds=args[0]))
            case "wait":
                return await self.wait(*args)
            case "draw":
                return self.draw()
            case "headers":
                found = api.headers()
                REACHED.add(f"headers of {found.get('of', 'nothing')}")
                return found
            case "set":
                return {name: await quick(name) for name in {f"{who}-{n}" for n in range(args[0])}}
            case "forgotten":
                return await self.forgotten(who, *args)
            case "patch":
                return api.patched(args[0])
            case "deprecate":
                return api.deprecate_patch(args[0])
            case "precise":
                return await self.precise(who, *args)
            case "generator":
                return await anext(self.left(who))
            case "lock":
                return await self.lock(who, *args)
            case "publish":
                return self.publish(who)
            case "approval":
                return await self.approval(who, *args)
            case "condition":
                return await api.wait_condition(lambda: len(self.log) > args[0], **within(args[1]))
            case "condition of state":
                return await api.wait_condition(lambda state: len(state) > args[0], **within(args[1]))
            case "update_state":
                return await api.update_state(lambda state: (len(state), [*state, who]))
            case "until cancelled":
                return await api.race(api.wait_cancelled, partial(api.sleep, args[0])), api.cancel_requested()
            case "tell":
                return await self.tell(*args)
            case "raise":
                raise Boom(who)
        return await self.block(who, kind, *args)

    async def wait(self, name: str) -> Any:
        try:
            return await api.wait_for_signal(name)
        except errors.WorkflowDefinitionError:
            REACHED.add("undeclared: waited for")
            raise

    async def forgotten(self, who: str, how: str) -> Any:
        """A call without ``await``: it acts nowhere, and its unit hears of it here, at its next wait or at its end."""
        REACHED.add(f"forgotten: {how}")
        call = quick(who)
        match how:
            case "held":
                self.kept = [*getattr(self, "kept", ()), call]
                return None
            case "dropped":
                del call
                return await quick("never")
        try:
            return "acted" if call else "refused"
        except errors.NotAwaited:
            return await call

    async def approval(self, who: str, due: Any, remind: int | None) -> Any:
        """Asks whoever there is, in a hurry or not."""
        (when,) = within(due).values()
        decision = await api.approval(who, role="test.decide", due=when, remind=remind)
        REACHED.add("overdue" if decision.by is None else "decided")
        return [decision.outcome, decision.comment, str(decision.at)]

    async def precise(self, who: str, digits: int, seconds: int) -> Any:
        """What a unit sees of contexts: its own, whatever others do around their awaits."""
        seen = [list(TRAIL.get()), third()]
        TRAIL.set((*TRAIL.get(), who))
        decimal.getcontext().prec = digits + 5
        with decimal.localcontext() as context:
            context.prec = digits
            await api.sleep(seconds)
            seen.append(third())
        return [*seen, third(), list(TRAIL.get())]

    async def left(self, who: str) -> Any:
        """Left after its first value: closed with the unit."""
        try:
            yield await quick(who)
        finally:
            self.log.append([who, "closed", await quick([who, third()])])

    async def lock(self, who: str, seconds: int, timeout: int) -> Any:
        """One at a time, in the order in which they began to wait."""
        if not await api.wait_condition(lambda: self.holder is None, timeout=timeout):
            return f"{self.holder} has it"
        assert self.holder is None, (self.holder, who)
        self.holder = who
        try:
            await api.sleep(seconds)
        finally:
            self.holder = None

    def draw(self) -> Any:
        return [api.random(), str(api.uuid4()), str(api.now()), api.info().history_length]

    async def block(self, who: str, kind: str, *args: Any) -> Any:
        match kind:
            case "parallel":
                if args[1] is not None:
                    REACHED.add("parallel with a limit")
                results = await api.parallel(self.branches(who, args[0]), limit=args[1])
                return [str(result) for result in results]
            case "race":
                try:
                    return await api.race(*self.branches(who, args[0]))
                except Boom as exc:
                    return f"raised {exc}"
            case "shield":
                async with api.shield():
                    await self.steps(who, args[0])
                return None
            case "saga":
                return await self.saga(who, *args)
            case "child":
                return await self.child(*args)
            case "strict":
                return [str(result) for result in await api.parallel(self.strict(*args))]
            case "phase":
                return await self.phase(who, *args)
        raise AssertionError(kind)

    async def child(self, body: list[Any], policy: Any, child_id: str | None, end: str, begins: Any = None) -> Any:
        """A child, which may begin later: after some seconds, and not at all if that takes too long."""
        REACHED.add(f"child to {policy}")
        times: dict[str, Any] = {}
        if begins is not None:
            REACHED.add("child later")
            times["start_delay"], before = begins
            times["start_before"] = before and api.now() + timedelta(seconds=before)
        return await api.child(Kid, {"steps": body, "end": end}, id=child_id, parent_close=policy, **times)

    def strict(self, body: list[Any], told: str) -> list[Any]:
        """A child that declares its signals, and one of them or another for it."""
        child = partial(api.child, Strict, {"steps": body, "end": "ok"}, id="strict", parent_close="abandon")
        return [child, partial(self.tell, "strict", told)]

    def branches(self, who: str, bodies: list[Any]) -> list[Any]:
        return [partial(self.steps, f"{who}[{n}]", body) for n, body in enumerate(bodies)]

    async def tell(self, target: str, what: str) -> None:
        if what == "cancel":
            REACHED.add("cancel_external")
            await api.cancel_external(target)
        else:
            REACHED.add("signal_external")
            try:
                await api.signal_external(target, what, "told")
            except errors.UnknownSignal:
                REACHED.add("undeclared: told")
                raise

    async def saga(self, who: str, body: list[Any], raises: bool) -> Any:
        try:
            async with api.saga() as saga:
                saga.add(self.log.append, [who, "undone at last"])
                saga.add(work, [who, "undo"])
                await self.steps(who, body)
                saga.add(failing, [who, "undo"])
                if raises:
                    raise Boom(who)
        except Boom as exc:
            REACHED.add("compensation")
            return f"undone after {exc}"

    async def phase(self, who: str, handlers: dict[str, Any], ends: Any) -> Any:
        signals = {name: partial(self.handler, who, "signal", spec) for name, spec in handlers.items()}
        updates = {
            f"u{name}": update(partial(self.handler, who, "update", spec), validator=partial(self.judge, spec))
            for name, spec in handlers.items()
        }
        ended = await api.phase([], signal={**signals, "stop": lambda _, s: Stop(s)}, update=updates, **within(ends))
        if isinstance(ended, TimedOut):
            REACHED.add("phase timeout")
            return ["timed out", ended.state]
        REACHED.add("phase stop")
        return ended

    @staticmethod
    def judge(spec: dict[str, Any], args: Any, state: Any) -> Any:
        if spec["picky"] and len(state) % 2:
            if spec["picky"] == "faulty":
                REACHED.add("validator fails")
                raise KeyError("a fault of the validator")
            REACHED.add("validator refuses")
            return Err("odd")
        return None

    def handler(self, who: str, kind: str, spec: dict[str, Any], args: Any, state: Any) -> Any:
        me = f"{who}/{spec['how']}"
        REACHED.add(f"{spec['how']} {kind} handler")
        if headers := api.headers():
            REACHED.add(f"headers of {headers['of']}")
            self.log.append([me, headers])
        answer = (lambda s: Reply(len(s), s)) if kind == "update" else NoReply
        match spec["how"]:
            case "plain":
                return Stop([*state, me], len(state)) if spec["stop"] else answer([*state, me])
            case "raising":
                raise Boom(me)
            case "shapeless":
                return me
            case "sync":

                async def sync() -> Any:
                    await self.steps(me, spec["body"])
                    return Stop([*state, me], "bye") if spec["stop"] else answer([*state, me])

                return sync()

        async def background() -> Any:
            await self.steps(me, spec["body"])
            return await api.update_state(lambda s: (len(s), [*s, me]))

        return Async(background, [*state, "begun"])


class Kid(Program):
    """What programs start as their children.

    Its seed comes of its parent's run id, so it keeps to itself what it draws.
    """

    name = "PropertyKid"  # of its own: children are found by name, and other tests have kids

    def draw(self) -> Any:
        return super().draw()[2:]


class Strict(Kid):
    """A child that takes some of the signals only."""

    name = "PropertyStrict"
    signals = ("a", "stop")


class Fan(Workflow):
    """Branches that have nothing to do with each other, each with an activity of its own."""

    async def run(self, args: Any) -> Any:
        return Ok([str(result) for result in await api.parallel([partial(self.branch, *b) for b in enumerate(args)])])

    async def branch(self, number: int, steps: list[str]) -> list[Any]:
        seen: list[Any] = []
        for index, kind in enumerate(steps):
            seen.append(await self.step(SLOTS[number], f"{number}.{index}", kind))
        return seen

    async def step(self, slot: Any, what: str, kind: str) -> Any:
        match kind:
            case "local":
                return await quick(what)
            case "shield":
                async with api.shield():
                    return await slot(what)
            case "race":
                return await api.race(slot(what), partial(api.wait_for_signal, "never"))
        return await slot(what)
