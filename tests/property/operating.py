"""What somebody does to the run of a program, and the laws of that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from temporalex_django.core.history.events import CLOSED_STATUSES, HistoryEvent
from temporalex_django.engine import activity_policy
from temporalex_django.testing.environment import Environment
from tests.property.program import REACHED

_ENDS = {
    "ActivityScheduled": ("ActivityCompleted", "ActivityFailed", "ActivityTimedOut", "ActivityCancelled"),
    "TimerStarted": ("TimerFired", "TimerCancelled"),
}


@dataclass
class Operator:
    """He chooses as blindly as schedules do. ``(run id, number)`` of what he did it to is kept for ``judge``."""

    skipped: set[tuple[str, int]] = field(default_factory=set)
    by_hand: set[tuple[str, int]] = field(default_factory=set)
    edited: set[tuple[str, int]] = field(default_factory=set)
    pauses: int = 0

    def do(self, env: Environment, handle: Any, kind: str, which: int = 0) -> None:
        """Raises ``LookupError`` where there is nothing of that kind, and what the operation raises."""
        run_id = handle.run_id
        match kind:
            case "pause":
                handle.pause("asked for")
                self.pauses += 1
            case "unpause":
                handle.unpause()
            case "skip":
                number = _open(handle.selected_run.events, "TimerStarted", which)
                handle.skip_timer(number)
                self.skipped.add((run_id, number))
            case "by hand" | "fail by hand":
                number = _open(handle.selected_run.events, "ActivityScheduled", which)
                held = [task for task in env._held_tasks if (str(task.run_id), task.seq) == (run_id, number)]
                if kind == "by hand":
                    handle.complete_activity(number, "by hand")
                else:
                    handle.fail_activity(number, "by hand", type="ByHand")
                self.by_hand.add((run_id, number))
                late = [activity_policy.completed_result(task, "late") for task in held]
                assert env.engine.tasks.finish_tasks(late) == [], "a worker was heard after it had been ended by hand"
            case "stumble":
                _stumble(env, run_id, which)
            case "retry":
                handle.retry_activity(_stumble(env, run_id, which))
            case "edit":
                number = _stumble(env, run_id, which)
                handle.retry_activity(number, input=["mended"])
                self.edited.add((run_id, number))
            case "redeliver" | "discard":
                failed = handle.describe().failed_messages
                if not failed:
                    raise LookupError("no message has failed")
                message = failed[which % len(failed)]
                if kind == "discard":
                    handle.discard(message.id)
                else:
                    handle.redeliver(message.id)
            case "delete":
                rows = [env.row(env.run_ids(chain)[-1]) for chain in env.chain_ids() if chain != handle.chain_id]
                closed = [row.facts.run_id for row in rows if row.status in CLOSED_STATUSES]
                if not closed:
                    raise LookupError("no other run is closed")
                env.handle(str(closed[which % len(closed)])).delete()
            case _:
                raise AssertionError(kind)
        REACHED.add(f"operator: {kind}")

    @contextmanager
    def watches(self, handle: Any) -> Iterator[None]:
        """Nothing of a run happens while it is paused."""
        before = self._paused(handle)
        yield
        after = self._paused(handle)
        if before is not None and after is not None:
            assert after == before, f"a paused run went on: {before} became {after}"

    def _paused(self, handle: Any) -> tuple[str, int] | None:
        if handle is None or not self.pauses:
            return None
        row = handle.selected_run
        return (str(row.facts.run_id), len(row.events)) if row.paused is not None else None

    def judge(self, env: Environment) -> None:
        """What was done stands in the histories, once."""
        for chain_id in env.chain_ids():
            for run_id in env.run_ids(chain_id):
                self._judge(env, run_id)

    def _judge(self, env: Environment, run_id: UUID) -> None:
        row = env.row(run_id)
        goes_on = row.status not in CLOSED_STATUSES and row.paused is None
        ends: dict[int, list[HistoryEvent]] = {}
        for event in row.events:
            if any(event.kind in kinds for kinds in _ENDS.values()):
                ends.setdefault(event.attributes["seq"], []).append(event)
        assert all(len(of_one) == 1 for of_one in ends.values()), ends
        mine = [
            {number for run, number in found if run == str(run_id)}
            for found in (self.skipped, self.by_hand, self.edited)
        ]
        for number in mine[0] | mine[1]:
            if goes_on:
                assert number in ends, f"{number} was ended by somebody, and nothing came of it"
        for number, (end,) in ends.items():
            if end.kind in ("ActivityCompleted", "ActivityFailed", "ActivityTimedOut"):
                assert ("by" in end.attributes) == (number in mine[1]), end
                assert ("edited" in end.attributes) == (number in mine[2]), end
            elif end.kind == "TimerFired" and "by" in end.attributes:
                assert number in mine[0], end


def _stumble(env: Environment, run_id: str, which: int) -> int:
    """The attempt of one of the calls that are held fails, and its policy decides. Raises ``LookupError``."""
    held = [task for task in env._held_tasks if str(task.run_id) == run_id]
    if not held:
        raise LookupError("nothing of it is held")
    task = held[which % len(held)]
    env._held_tasks.remove(task)
    env.engine.tasks.finish_tasks([activity_policy.failed_result(task, ConnectionError("stumbled"), env.clock)])
    return task.seq


def _open(history: Sequence[HistoryEvent], kind: str, which: int) -> int:
    """The number of one of the calls of this kind that have not ended. Raises ``LookupError``."""
    begun = [event for event in history if event.kind == kind]
    ended = {event.attributes["seq"] for event in history if event.kind in _ENDS[kind]}
    numbers = [event.attributes["seq"] for event in begun if event.attributes["seq"] not in ended]
    if not numbers:
        raise LookupError(f"no {kind} is open")
    return int(numbers[which % len(numbers)])
