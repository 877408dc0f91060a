"""Classes of workflows take turns where attempts wait for a thread, and with their ends."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID, uuid4

from temporalex_django.engine.contracts.records import TaskResult, TaskState
from temporalex_django.workers.admission import FairQueue, select_fairly
from temporalex_django.workers.attempts import Attempt

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def task(number: int, workflow: str, chain: UUID | None) -> TaskState:
    return TaskState(
        id=number,
        chain_id=chain,
        run_id=uuid4(),
        workflow_id="w",
        workflow=workflow,
        seq=1,
        activity="a",
        args=[],
        kwargs={},
        options={},
        queue="default",
        atomic=False,
        attempt=1,
        scheduled_at=NOW,
        due_at=NOW,
    )


def test_a_few_of_one_class_do_not_wait_for_all_of_another() -> None:
    line = FairQueue()
    many = [Attempt(task(n, "Greedy", uuid4()), lambda: NOW, claimed_at=float(n)) for n in range(4)]
    one = Attempt(task(9, "Small", uuid4()), lambda: NOW, claimed_at=9.0)
    assert (bool(line), line.pop(), line.waiting_since()) == (False, None, None)
    line.extend(many)
    line.extend([one])

    assert (bool(line), line.waiting_since()) == (True, 0.0)
    assert [line.pop() for _ in range(6)] == [many[0], one, *many[1:], None]


def test_ends_of_a_small_run_go_into_the_next_turn_beside_a_crowd() -> None:
    chains = [uuid4() for _ in range(6)]
    crowd = [TaskResult(task=task(n, "Greedy", chain)) for n, chain in enumerate(chains)]
    again, lone = TaskResult(task=task(7, "Greedy", chains[0])), TaskResult(task=task(8, "", None))
    small = TaskResult(task=task(9, "Small", uuid4()))
    ends = [*crowd, again, lone, small]

    assert select_fairly(ends, 20) == ends
    chosen = select_fairly(ends, 3)
    assert {end.task.id for end in chosen} == {0, 1, 7, 8, 9}
    assert [end.task.id for end in chosen if end.task.chain_id == chains[0]] == [0, 7]  # in their order
