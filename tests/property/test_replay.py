"""Laws of replay, over generated programs and schedules.

A program is plain data, which one workflow class interprets: so every run of it has the same code, and the data is its input.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from temporalex_django import Async, Err, NoReply, Ok, Reply, Stop, TimedOut, Workflow, api, errors, update
from temporalex_django.testing import WorkflowEnvironment
from tests.unit.support import other, plain_commands, plain_history, work

ACTIVITIES = {"work": work, "other": other}
NAMES = ("a", "b", "c")


class Program(Workflow):
    """Interprets its input; every step notes what it saw, so that a difference shows in the result."""

    async def run(self, args: Any) -> Any:
        self.log: list[Any] = []
        try:
            await self.steps("run", args)
        except errors.Cancelled:
            self.log.append("cancelled")
            await api.sleep(1)
        return Ok(self.log)

    async def steps(self, who: str, steps: list[Any]) -> None:
        for index, step in enumerate(steps):
            place = f"{who}.{index}"
            try:
                self.log.append([place, step[0], await self.step(place, *step)])
            except (errors.ActivityFailure, errors.NestingError) as exc:
                self.log.append([place, type(exc).__name__])

    async def step(self, who: str, kind: str, *args: Any) -> Any:
        match kind:
            case "activity":
                return await ACTIVITIES[args[0]](who)
            case "sleep":
                return await api.sleep(args[0])
            case "wait":
                return await api.wait_for_signal(args[0])
            case "draw":
                return [api.random(), str(api.uuid4()), str(api.now())]
            case "patch":
                return api.patched(args[0])
            case "publish":
                return api.publish_state(list(self.log))
            case "condition":
                return await api.wait_condition(lambda: len(self.log) > args[0], timeout=args[1])
            case "parallel":
                branches = [partial(self.steps, f"{who}[{n}]", body) for n, body in enumerate(args[0])]
                return len(await api.parallel(branches, limit=args[1]))
            case "phase":
                return await self.phase(who, *args)
            case _:
                raise AssertionError(kind)

    async def phase(self, who: str, handlers: dict[str, Any], timeout: int | None) -> Any:
        signals = {name: partial(self.handler, who, "signal", spec) for name, spec in handlers.items()}
        updates = {
            f"u{name}": update(partial(self.handler, who, "update", spec), validator=partial(self.judge, spec))
            for name, spec in handlers.items()
        }
        ended = await api.phase([], signal={**signals, "stop": lambda _, s: Stop(s)}, update=updates, timeout=timeout)
        return ["timed out", ended.state] if isinstance(ended, TimedOut) else ended

    @staticmethod
    def judge(spec: dict[str, Any], args: Any, state: Any) -> Any:
        return Err("odd") if spec["picky"] and len(state) % 2 else None

    def handler(self, who: str, kind: str, spec: dict[str, Any], args: Any, state: Any) -> Any:
        me = f"{who}/{spec['how']}"
        answer = (lambda s: Reply(len(s), s)) if kind == "update" else NoReply
        if spec["how"] == "plain":
            return Stop([*state, me]) if spec["stop"] else answer([*state, me])
        if spec["how"] == "raising":
            raise ValueError(me)
        if spec["how"] == "sync":

            async def sync() -> Any:
                await self.steps(me, spec["body"])
                return Stop([*state, me]) if spec["stop"] else answer([*state, me])

            return sync()

        async def background() -> Any:
            await self.steps(me, spec["body"])
            return await api.update_state(lambda s: (len(s), [*s, me]))

        return Async(background, [*state, "begun"])


simple = st.one_of(
    st.tuples(st.just("activity"), st.sampled_from(sorted(ACTIVITIES))),
    st.tuples(st.just("activity"), st.just("work")),
    st.tuples(st.just("sleep"), st.integers(0, 5)),
    st.tuples(st.just("wait"), st.sampled_from(NAMES)),
    st.tuples(st.just("draw")),
    st.tuples(st.just("patch"), st.sampled_from(NAMES)),
    st.tuples(st.just("publish")),
    st.tuples(st.just("condition"), st.integers(0, 8), st.one_of(st.none(), st.integers(1, 5))),
)
body = st.recursive(
    st.lists(simple, min_size=1, max_size=3),
    lambda inner: st.lists(
        st.one_of(simple, st.tuples(st.just("parallel"), st.lists(inner, max_size=3), st.sampled_from([None, 1, 2]))),
        max_size=3,
    ),
    max_leaves=6,
)
handler = st.fixed_dictionaries(
    {
        "how": st.sampled_from(["plain", "sync", "async", "async", "raising"]),
        "body": body,
        "stop": st.booleans(),
        "picky": st.booleans(),
    }
)
phase = st.tuples(
    st.just("phase"),
    st.dictionaries(st.sampled_from(NAMES), handler, min_size=2, max_size=3),
    st.one_of(st.none(), st.integers(1, 8)),
)
parallel = st.tuples(st.just("parallel"), st.lists(body, max_size=3), st.sampled_from([None, 1]))
program = st.builds(
    lambda before, first, after: [*before, first, *after],
    st.lists(st.one_of(simple, parallel), max_size=1),
    phase,
    st.lists(st.one_of(simple, phase, phase, parallel), max_size=3),
)

event = st.one_of(
    st.tuples(st.just("signal"), st.sampled_from([*NAMES, *NAMES, "stop"])),
    st.tuples(st.just("update"), st.sampled_from([f"u{name}" for name in NAMES])),
    st.tuples(st.just("update"), st.sampled_from([f"u{name}" for name in NAMES])),
    st.tuples(st.just("complete"), st.just("work")),
    st.tuples(st.just("advance"), st.integers(1, 6)),
    st.tuples(st.just("complete"), st.sampled_from(sorted(ACTIVITIES))),
    st.tuples(st.just("fail"), st.sampled_from(sorted(ACTIVITIES))),
)
schedule = st.lists(
    st.one_of(
        *[event] * 8,
        *[st.tuples(st.just("batch"), st.lists(event, min_size=2, max_size=4))] * 3,
        st.tuples(st.just("cancel")),
    ),
    min_size=4,
    max_size=20,
)


def play(steps: list[Any], events: list[Any], *, evict: bool) -> tuple[WorkflowEnvironment, Any, list[Any]]:
    env = WorkflowEnvironment(evict=evict)
    for act in ACTIVITIES.values():
        env.hold(act)
    h = env.start(Program, steps, id="program")
    updates: list[Any] = []

    def act(kind: str, *args: Any) -> None:
        if kind == "batch":
            with env.batch():
                for inner in args[0]:
                    act(*inner)
            return
        try:
            match kind:
                case "signal":
                    h.signal(args[0], len(updates))
                case "update":
                    updates.append(h.update_async(args[0], len(updates), id=f"update-{len(updates)}"))
                case "advance":
                    env.advance(args[0])
                case "complete":
                    env.complete(ACTIVITIES[args[0]], "result")
                case "fail":
                    env.fail(ACTIVITIES[args[0]], ValueError("failed"))
                case "cancel":
                    h.cancel()
        except (LookupError, errors.WorkflowClosed):
            pass  # nothing is held, or the run is closed: schedules are blind

    for one in events:
        act(*one)
    return env, h, updates


def outcome(u: Any) -> Any:
    try:
        return u.result()
    except errors.TemporalexError as exc:
        return [type(exc).__name__, str(exc)]


@settings(
    max_examples=100,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(program, schedule)
def test_laws_of_replay(steps: list[Any], events: list[Any]) -> None:
    """TX-178 TX-187 TX-191 ST-096.

    A history replays, so does each prefix that ends with an activation, and whether a run stays in memory or is rebuilt before
    every activation makes no difference.
    """
    cached, h, updates = play(steps, events, evict=False)
    evicted, g, again = play(steps, events, evict=True)
    assert h.blocked is None and g.blocked is None

    assert plain_commands(cached) == plain_commands(evicted)
    assert plain_history(h) == plain_history(g)
    assert [outcome(u) for u in updates] == [outcome(u) for u in again]
    assert (h.status, h.describe()["waiting_for"], h.describe()["accepts"]) == (
        g.status, g.describe()["waiting_for"], g.describe()["accepts"],
    )  # fmt: skip

    history = h.history()
    cached.replay(h)
    for activation in range(1, history[-1].activation):
        cached.replay_history(Program, [e for e in history if e.activation <= activation])
