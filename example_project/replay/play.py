"""The play itself: customers come at their times; six at a time fill carts, others wait for their orders."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from example_project.replay.clock import Stopped
from example_project.replay.person import Stuck, Visit
from example_project.replay.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from example_project.replay.clock import Clock
    from example_project.replay.day import Day
    from example_project.replay.person import Person

#: The busiest moment of the day has six open carts; a slow shop makes customers queue instead of opening more.
OPEN_CARTS = 6
WAITING_CUSTOMERS = 16
#: One basket in this many is not confirmed.
SILENT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The pace at which a day is played.

    If ``speed`` is None, the day takes about ``day_seconds``, but is never slower than the day itself.
    """

    speed: float | None = None
    confirm_within: float = 10.0
    patience: float = 120.0
    day_seconds: float = 60.0

    def factor(self, day: Day) -> float:
        """Return the seconds of the day that pass in one real second."""
        span = (day.ends - day.begins).total_seconds()
        return self.speed or max(span / self.day_seconds, 1.0)


class Play:
    """One day against one shop. ``visits`` records what happened, in the order in which the customers come."""

    def __init__(self, day: Day, *, person: Person, clock: Clock) -> None:
        self.day = day
        self.clock = clock
        self.seconds = 0.0
        # In the order of checkouts, so that the silent customers are spread over the day.
        order = sorted(day.baskets, key=lambda basket: (basket.stamp, basket.id))
        silent = {basket.id for number, basket in enumerate(order, start=1) if number % SILENT == 0}
        coming = sorted(day.baskets, key=lambda basket: (person.comes(basket), basket.id))
        self.visits = [Visit(basket=basket, confirms=basket.id not in silent) for basket in coming]
        self._person = person
        self._lock = threading.Lock()
        self._filled = 0
        self._finished = 0

    @property
    def expected_seconds(self) -> float:
        """Real seconds in which all customers come."""
        return (self.day.ends - self.day.begins).total_seconds() / self.clock.speed

    def run(self) -> None:
        """Play the day. An interrupt stops the customers and is raised again."""
        begun = time.monotonic()
        with (
            Progress(self._counts),
            _pool(WAITING_CUSTOMERS, self.clock) as waiting,
            _pool(OPEN_CARTS, self.clock) as filling,
        ):
            orders: list[Future[None]] = []

            def visit(one: Visit) -> None:
                if self._guard(self._person.fill, one):
                    with self._lock:
                        self._filled += 1
                        orders.append(waiting.submit(finish, one))

            def finish(one: Visit) -> None:
                if self._guard(self._person.finish, one):
                    with self._lock:
                        self._finished += 1

            for filled in as_completed([filling.submit(visit, one) for one in self.visits]):
                filled.result()
            for order in as_completed(list(orders)):
                order.result()
        self.seconds = time.monotonic() - begun

    @staticmethod
    def _guard(step: Callable[[Visit], None], visit: Visit) -> bool:
        """Run a step and return True if it succeeded; a problem is recorded in the visit, and the others go on."""
        try:
            step(visit)
        except Stuck as stuck:
            visit.problem = str(stuck)
        except Stopped:
            visit.problem = "the play was interrupted"
        except Exception as error:  # noqa: BLE001 - a surprise of one customer must not end the day of the others
            visit.problem = f"{type(error).__name__}: {error}"
        else:
            return True
        return False

    def _counts(self) -> tuple[int, int, str]:
        waits = sum(visit.added for visit in self.visits)
        troubled = sum(1 for visit in self.visits if visit.problem)
        words = f"baskets, {waits} lines, {self._filled - self._finished} orders under way"
        return self._finished, len(self.visits), words + (f", {troubled} with problems" if troubled else "")


@contextmanager
def _pool(size: int, clock: Clock) -> Iterator[ThreadPoolExecutor]:
    """Open a thread pool that ends early on an interrupt."""
    pool = ThreadPoolExecutor(size, thread_name_prefix="customer")
    try:
        yield pool
    except BaseException:
        clock.stop()
        raise
    finally:
        pool.shutdown(cancel_futures=clock.stopped)
