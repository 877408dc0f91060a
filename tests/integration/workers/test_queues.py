"""What workers may take: limits of queues and activities, lines, fairness. Two workers, on committed data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from temporalex_django.authoring import activity
from temporalex_django.core.limits import Limits, Rate
from temporalex_django.db.inserts import StartedRun, insert_start
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.contracts.records import TaskState
from temporalex_django.engine.run_start import RunStart
from temporalex_django.engine.scheduling import Capacity
from temporalex_django.models import ActivityTask, Instance, Limit
from temporalex_django.operations.fleet.stats import queue_figures
from temporalex_django.workers.admission import Admission
from temporalex_django.workers.attempts import Attempt
from temporalex_django.workers.loop import WorkerLoop, run_until_idle
from temporalex_django.workers.polling import Poller
from temporalex_django.workers.pool import InlinePool, Quarantine
from tests.app.crowds import often, seldom

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("unhurried")]


def start(workflow: str, args: Any, workflow_id: str = "m-1") -> StartedRun:
    return insert_start(RunStart(workflow=workflow, workflow_id=workflow_id, args=args), storage=DjangoStorage())


@pytest.fixture
def loop() -> Iterator[WorkerLoop]:
    found = WorkerLoop(queues=["default", "other"])
    yield found
    found._shut_down(None, hurried=True)


def schedule(loop: WorkerLoop, calls: list[tuple[str, str | None]]) -> None:
    """Activities that nobody has."""
    start("Mixture", {"calls": calls})
    loop.engine.turn(limit=10, queues=["default"])
    assert ActivityTask.objects.filter(owner=None).count() == len(calls)


def limited(**queues: dict[str, Any]) -> Any:
    return override_settings(TEMPORALEX={"QUEUES": queues})


def taken_by(gates: Admission, owner: int, *, threads: int = 100) -> list[int]:
    """Numbers of the activities that a worker gets."""
    gates._next_look.clear()
    gates._storage.partitioned = True
    tasks, _ = gates.claim(Capacity(threads=threads), owner=owner)
    return sorted(task.seq for task in tasks)


def free(*owners: int) -> None:
    ActivityTask.objects.filter(owner__in=owners).update(owner=None)


def test_room_is_counted_by_what_is_under_way(loop: WorkerLoop) -> None:
    one, two = Admission(DjangoStorage(worker=True), ["default"]), Admission(DjangoStorage(worker=True), ["default"])
    with limited(default={"concurrency": 5, "concurrency_per_key": 2}):
        schedule(loop, [*[("often", "red")] * 6, *[("often", "blue")] * 3, *[("often", None)] * 3])
        assert Counter(ActivityTask.objects.values_list("line", flat=True)) == {"k:red": 6, "k:blue": 3, None: 3}
        first = taken_by(one, 1, threads=3)
        assert len(first) == 3
        assert len({*first} & {*range(1, 7)}) == 1  # one of each, then another one of each
        assert len(taken_by(two, 2)) == 2
        assert taken_by(two, 2) == []
        assert two.has_waiting
        (figures,) = queue_figures(["default"])
        held = ActivityTask.objects.filter(owner=None).exclude(line=None).count()
        assert (figures.running, figures.due_activities, figures.held_activities, figures.due_runs) == (5, 7, held, 0)
        assert figures.lag > 0
        assert (figures.concurrency, figures.rate, figures.off) == (5, None, False)
        by_line = Counter(ActivityTask.objects.exclude(owner=None).values_list("line", flat=True))
        assert max(by_line["k:red"], by_line["k:blue"]) <= 2
        # whoever had them is gone: no room is
        free(1)
        assert len(taken_by(two, 2)) == 3
        free(2)
        # nobody in the common line: two of each
        ActivityTask.objects.filter(line=None).delete()
        assert len(taken_by(one, 1)) == 4
        free(1)
        loop.poll()
        assert ActivityTask.objects.exclude(owner=None).count() == 4
    free(loop.row.epoch)
    # the setting is gone, and with it the lines: nothing is left behind
    taken_by(loop.admission, 1)
    assert not ActivityTask.objects.exclude(line=None).exists()


def test_a_rate_is_kept_by_the_clock_of_the_database(loop: WorkerLoop) -> None:
    one, two = Admission(DjangoStorage(worker=True), ["default"]), Admission(DjangoStorage(worker=True), ["default"])
    with limited(default={"rate": "4/h"}):
        schedule(loop, [("often", None)] * 9)
        assert len(taken_by(one, 1, threads=3)) == 3
        assert len(taken_by(two, 2)) == 1
        free(1, 2)  # what has begun counts, whatever became of it
        assert taken_by(one, 1) == []
        row = Limit.objects.get()
        row.starts = [[at - 4000, count] for at, count in row.starts]
        row.save()
        assert len(taken_by(one, 1)) == 4


@pytest.mark.parametrize("damage", [[1], ["x"], [[1]], [["x", 1]], [[1, "x"]], [[None, None]], [[1, 2, 3]]])
def test_damaged_counts_of_a_rate_stop_nothing(loop: WorkerLoop, damage: Any) -> None:
    Limit.objects.create(name="queue:default", starts=damage)
    gates = Admission(DjangoStorage(worker=True), ["default"])
    with limited(default={"rate": "4/h"}):
        schedule(loop, [("often", None)] * 6)

        assert len(taken_by(gates, 1)) == 4
        assert queue_figures(["default"])[0].kept_back == 2
    assert sum(count for _, count in Limit.objects.get().starts) == 4


def test_what_is_given_back_has_not_begun_for_a_rate(loop: WorkerLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    gates = Admission(DjangoStorage(worker=True), ["default"])
    monkeypatch.setitem(activity.limits_by_name, seldom.name, Limits(rate=Rate(2, 3600.0)))
    with limited(default={"rate": "4/h"}):
        schedule(loop, [*[("often", None)] * 4, *[("seldom", None)] * 4])
        assert len(taken_by(gates, 1)) == 4
        assert taken_by(gates, 1) == []
        assert gates.is_rate_limited
        seldoms = ActivityTask.objects.filter(owner=1, activity=seldom.name)
        (one, two) = seldoms.values_list("id", "attempt", "owner")
        loop.storage.release_unstarted([one, two, (two[0], 7, 1)])  # the last is not theirs
        assert ActivityTask.objects.filter(owner=1).count() == 2
        seldoms.model.objects.filter(owner=None, activity=often.name).delete()
        assert len(taken_by(gates, 1)) == 2
        assert taken_by(gates, 1) == []
        # one that its worker lost has begun
        free(1)
        assert taken_by(gates, 1) == []


def test_until_nothing_is_due_waits_for_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate says when: nobody has to do anything for that."""
    monkeypatch.setattr("temporalex_django.engine.policy.FRUITLESS_POLLS", 0)
    with limited(default={"rate": "2/s"}):
        started = start("Mixture", {"calls": [("often", None)] * 5})
        run_until_idle(timeout=60)
        assert Instance.objects.get(pk=started.run_id).status == "completed"
    with limited(default={"rate": "1/h"}):
        start("Mixture", {"calls": [("often", None)] * 2}, "m-2")
        with pytest.raises(TimeoutError, match="still work that is due"):
            run_until_idle(timeout=0.2)


def test_an_activity_has_limits_of_its_own_and_holds_up_no_others(
    loop: WorkerLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule(loop, [*[("seldom", "red")] * 3, *[("seldom", None)] * 3, *[("often", "red")] * 2])
    lines = Counter(ActivityTask.objects.values_list("line", flat=True))
    assert lines == {f"a:{seldom.name}\nred": 3, f"a:{seldom.name}": 3, None: 2}
    gates = loop.admission
    assert [task.activity for task in loop.turn_runner.claim_tasks(Capacity(threads=100))] == [often.name] * 2
    assert len(taken_by(gates, 1)) == 2
    assert ActivityTask.objects.filter(owner=1, line__endswith="red").count() == 1
    free(1)
    # one that was scheduled before it had limits joins its line when somebody meets it
    ActivityTask.objects.filter(owner=None).update(line=None)
    assert loop.turn_runner.claim_tasks(Capacity(threads=100)) == []
    assert not ActivityTask.objects.filter(owner=None, line=None).exists()
    assert len(taken_by(gates, 1)) == 2
    # nor does one that may begin once a minute: others may come, and it is looked for them soon
    free(1)
    monkeypatch.setitem(activity.limits_by_name, seldom.name, Limits(rate=Rate(1, 60.0)))
    assert len(taken_by(gates, 1)) == 1
    assert taken_by(gates, 1) == []
    assert gates.has_waiting
    assert gates.wait_seconds is not None
    assert gates.wait_seconds <= 0.2


def test_a_worker_does_what_is_limited_to_the_end() -> None:
    calls = [*[("seldom", "red")] * 3, *[("often", "blue")] * 6, ("seldom", None)]
    with limited(default={"concurrency": 2, "concurrency_per_key": 1}):
        started = start("Mixture", {"calls": calls})
        run_until_idle()

    row = Instance.objects.get(pk=started.run_id)
    assert (row.status, row.closing_value["result"]) == ("completed", [*range(10)])


def test_who_sets_no_limits_pays_nothing(loop: WorkerLoop) -> None:
    start("StepByStep", {"n": 1})
    loop.poll()
    with CaptureQueriesContext(
        connection,
    ) as queries:
        while loop.poll():
            pass

    assert not any("temporalex_limit" in query["sql"] for query in queries)
    assert not any("line is not null" in query["sql"] for query in queries)


@pytest.mark.usefixtures("unhurried")
def test_nobody_waits_behind_a_crowd(loop: WorkerLoop) -> None:
    """Counted in rounds: a run of three steps that begins behind a fan-out of 600 and 200 runs of another class."""
    start("Mixture", {"calls": [("often", None)] * 600}, "fan")
    loop.engine.turn(limit=1, queues=["default"])
    for n in range(200):
        start("Crowd", {"path": "", "tenants": [], "seconds": 0}, f"crowd-{n}")
    for _ in range(3):
        one_round(loop)
    small = start("StepByStep", {"n": 3}, "small")
    rounds = 0
    while Instance.objects.get(pk=small.run_id).status != "completed":
        one_round(loop)
        rounds += 1
        assert rounds < 40, "it waits behind those who came first"

    assert ActivityTask.objects.count() > 400
    assert Instance.objects.filter(workflow="Crowd", started_at=None).count() > 100


class Narrow(InlinePool):
    """Runs as many at once as somebody said before the poll."""

    left = 0

    def capacity(self) -> Capacity:
        return Capacity(threads=self.left)

    def submit(self, tasks: list[TaskState]) -> None:
        self.left -= len(tasks)
        super().submit(tasks)


def begun(loop: WorkerLoop, *, polls: int, threads: int) -> list[int]:
    """Numbers of the activities that begin in so many polls, each with so many free threads."""
    pool = loop.pool = Narrow(now=loop.row.now)
    quarantine = loop.quarantine = Quarantine(pool, loop.quarantine._mark, announce=lambda marked: None)
    loop.intake._pool, loop.intake._quarantine = pool, quarantine
    caution = loop.poller.caution
    loop.poller = Poller(replace(loop.poller._parts, pool=pool, quarantine=quarantine))
    loop.poller.caution = caution
    before = {*ActivityTask.objects.values_list("seq", flat=True)}
    for _ in range(polls):
        pool.left = threads
        loop.poll()
        loop.admission._next_look.clear()
    loop.poll()
    return sorted(before - {*ActivityTask.objects.values_list("seq", flat=True)})


def test_a_crowd_without_limits_leaves_room_for_what_is_limited(loop: WorkerLoop) -> None:
    with limited(other={"concurrency": 2}):
        schedule(loop, [*[("often", None)] * 12, *[("seldom", None)] * 4, *[("often", "red")] * 4])
        ActivityTask.objects.filter(seq__gt=16).update(queue="other")
        numbers = begun(loop, polls=12, threads=1)
    kinds = Counter("open" if n <= 12 else "line" if n <= 16 else "other" for n in numbers)
    assert len(numbers) == 12
    assert min(kinds[kind] for kind in ("open", "line", "other")) >= 2, kinds


def test_suspects_under_limits_are_tried_and_nobody_stops_for_a_death_elsewhere(loop: WorkerLoop) -> None:
    with limited(default={"concurrency": 3}):
        schedule(loop, [*[("often", None)] * 20, ("seldom", None)])
        ActivityTask.objects.filter(seq__in=(2, 21)).update(crashes=1)
        numbers = begun(loop, polls=6, threads=4)
        assert {2, 21} <= {*numbers}
        assert len(numbers) > 2
        loop.poller.caution = 1
        assert len(begun(loop, polls=2, threads=4)) >= 2


def one_round(loop: WorkerLoop) -> None:
    """Three activities begin and end, and four runs go on."""
    tasks = loop.turn_runner.claim_tasks(Capacity(threads=3))
    loop.storage.finish_tasks([Attempt(task, loop.row.now).run() for task in tasks])
    loop.engine.turn(limit=4, queues=["default"])
