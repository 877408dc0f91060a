"""Laws of replay, over generated programs and schedules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temporalex_django import errors
from temporalex_django.testing import WorkflowEnvironment
from tests.property import grammar, legal
from tests.property.examples import examples
from tests.property.playing import play, play_at_once, replay_everything
from tests.property.program import SLOTS, Fan, Program


@examples()
@given(grammar.program, grammar.schedule, grammar.limits)
def test_a_history_and_its_prefixes_replay_and_a_rebuilt_run_is_the_same(
    program: Any, schedule: Any, limits: Any
) -> None:
    """TX-178 TX-187 TX-191 ST-096.

    Each prefix that ends with an activation replays, and whether a run stays in memory or is rebuilt before every
    activation makes no difference to its commands, its history, its outcomes and what it says of itself.
    """
    cached = play(program, schedule, **limits)
    evicted = play(program, schedule, evict=True, **limits)
    assert cached.commands() == evicted.commands()
    assert cached.facts() == evicted.facts()
    assert cached.outcomes() == evicted.outcomes()
    assert replay_everything(cached) > 0 or program["begins"] is not None
    for _, history in cached.histories():
        legal.check(history)


@examples()
@given(grammar.program, grammar.schedule, grammar.limits)
def test_all_at_once_is_as_legal_as_one_by_one(program: Any, schedule: Any, limits: Any) -> None:
    """TX-178 ST-096: what arrives in one activation gives a history that could be and that replays.

    Cached and rebuilt alike.
    """
    cached = play_at_once(program, schedule, **limits)
    evicted = play_at_once(program, schedule, evict=True, **limits)
    assert cached.commands() == evicted.commands()
    assert cached.facts() == evicted.facts()
    assert replay_everything(cached) > 0 or program["begins"] is not None
    for _, history in cached.histories():
        legal.check(history)


class Renamed(Program):
    """Gives every activity another input, and asks for the same ones."""

    name = "PropertyRenamed"

    async def steps(self, who: str, steps: list[Any]) -> None:
        await super().steps(f"other {who}", steps)

    async def approval(self, who: str, due: int | None, remind: int | None) -> Any:
        """The question stays: a decision of another one would part code and history."""
        return await super().approval(who.replace("other ", ""), due, remind)


@examples(0.5)
@given(grammar.program, grammar.schedule)
def test_each_input_that_differs_is_listed_and_nothing_else_is(program: Any, schedule: Any) -> None:
    """TX-178: with STRICT_REPLAY the first one parts code and history."""
    played = play(program, schedule)
    for name, history in played.histories():
        if name != Program.name:
            continue
        scheduled = [event.number for event in history if event.kind == "ActivityScheduled"]
        found = played.env.replay_history(Renamed, history)
        assert [one.event for one in found] == scheduled
        assert all(one.kind == "input" and one.path.startswith("value") for one in found)
        if scheduled:
            with pytest.raises(errors.NondeterminismError, match="value.* differs"):
                played.env.replay_history(Renamed, history, strict=True)


@examples()
@given(grammar.independent, st.data())
def test_the_order_of_independent_completions_does_not_matter(branches: list[list[str]], data: st.DataObject) -> None:
    """TX-178 TX-191: nor whether they come one by one or several in one activation."""
    ends = [number for number, steps in enumerate(branches) for kind in steps if kind != "local"]
    fails = data.draw(st.sets(st.tuples(st.integers(0, grammar.SLOTS), st.integers(0, 2)), max_size=3))
    results = [fan(branches, data.draw(st.permutations(ends)), fails, size) for size in (1, 1, 3)]
    assert results[0] == results[1] == results[2]


def fan(branches: list[list[str]], order: list[int], fails: set[tuple[int, int]], size: int) -> Any:
    """The result of a fan whose calls end in that order.

    At most ``size`` of them, of different branches, in one activation.
    """
    env = WorkflowEnvironment()
    for slot in SLOTS:
        env.hold(slot)
    h = env.start(Fan, branches, id="fan")
    ended = dict.fromkeys(order, 0)

    def end(number: int) -> None:
        ended[number] += 1
        try:
            if (number, ended[number]) in fails:
                env.fail(SLOTS[number], ValueError(f"{number}.{ended[number]}"))
            else:
                env.complete(SLOTS[number], [number, ended[number]])
        except LookupError:
            pass  # the branch failed before

    chunk: list[int] = []
    for number in [*order, None]:
        if number is None or number in chunk or len(chunk) == size:
            with env.batch():
                for one in chunk:
                    end(one)
            chunk = []
        if number is not None:
            chunk.append(number)
    env.replay(h)
    return h.result()
