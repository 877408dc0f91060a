"""The two flows of a day: carts that are filled line by line, and orders that are graphs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from example_project.replay.books import Books, CartBooks, OrderBooks
from example_project.replay.buyer import Buyer, order_number
from example_project.replay.chaos import Chaos, ClusterWork, TablesWork
from example_project.replay.clock import Clock
from example_project.replay.customer import Customer
from example_project.replay.manager import Manager
from example_project.replay.metric_books import MetricBooks
from example_project.replay.play import Pace, Play
from example_project.replay.report import CartReport, OrderReport, Report
from example_project.replay.rest import Shop
from example_project.replay.staff import Carrier, Clerk, Staff
from example_project.shop.workflows import OrderProcess, ShoppingCart
from temporalex_django.conf import get_settings
from temporalex_django.core.names import TEMPORAL

if TYPE_CHECKING:
    from example_project.replay.day import Day
    from example_project.replay.manager import Credentials
    from example_project.replay.person import Person
    from temporalex_django import Workflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A running shop, as a flow needs it.

    ``providers`` are the addresses of the payment provider's accounts by flow; ``clerk`` is the token of a user with
    the role, and ``manager`` a user who may manage schedules.
    """

    base_url: str
    token: str
    providers: dict[str, str]
    cluster: int
    clerk: str
    manager: Credentials


class Flow(ABC):
    """One way to play a day. ``play`` may be called once."""

    name: ClassVar[str]
    workflow: ClassVar[type[Workflow]]
    report: ClassVar[type[Report]]
    #: Seconds in which all customers come, unless a speed is given.
    day_seconds: ClassVar[float]

    def __init__(self, day: Day, *, scene: Scene, pace: Pace) -> None:
        self.day = day
        self.scene = scene
        self.pace = replace(pace, day_seconds=self.day_seconds)
        self.clock = Clock(begins=day.begins, speed=self.pace.factor(day))

    def play(self, *, kills: int) -> Report:
        """Play the day, kill workers meanwhile, and reconcile."""
        shop = Shop(self.scene.base_url, token=self.scene.token)
        books = self._books(self.scene.providers[self.name])
        metrics = MetricBooks(self.scene.base_url, gap=self._gap(kills=kills))
        present = self._staff()
        manager = Manager(self.scene.base_url, credentials=self.scene.manager, patience=self.pace.patience)
        manager.open_day()
        with ExitStack() as stack:
            for staff in present:
                stack.enter_context(staff)
            play = Play(self.day, person=self._person(shop), clock=self.clock)
            chaos = Chaos(
                wanted=kills,
                clock=self.clock,
                seconds=play.expected_seconds,
                cluster=self.scene.cluster,
                work=ClusterWork(self.workflow) if self.backend == TEMPORAL else TablesWork(),
            )
            chaos.start()
            try:
                play.run()
            finally:
                chaos.finish()
        manager.close_day()
        books.reports.wait(manager, patience=self.pace.patience)
        provider = books.provider()
        return self.report(
            day=self.day,
            backend=self.backend,
            visits=play.visits,
            checks=[
                *books.checks(play.visits, provider=provider, manager=manager),
                *metrics.checks(patience=self.pace.patience),
            ],
            not_compared=metrics.not_compared(),
            dropped=metrics.dropped,
            provider=provider,
            seconds=play.seconds,
            speed=self.clock.speed,
            kills=chaos.kills,
            kills_wanted=kills,
            chaos_problem=chaos.problem,
            fires=books.reports.fires(),
            staff_problems=[problem for problem in (*(staff.problem for staff in present), manager.problem) if problem],
            **self._own(),
        )

    @property
    def backend(self) -> str:
        """The backend on which the runs of the baskets live."""
        return self.workflow.backend or get_settings().BACKEND

    def _gap(self, *, kills: int) -> str:
        """Return why the metrics of this play may lack something, or an empty text."""
        if self.backend == TEMPORAL:
            return "workers count nothing for runs on a Temporal cluster"
        return "a worker that was killed may have committed what it has not counted" if kills else ""

    @abstractmethod
    def _books(self, provider_url: str) -> Books: ...

    @abstractmethod
    def _person(self, shop: Shop) -> Person: ...

    def _own(self) -> dict[str, Any]:
        """Return the arguments of the report that only this flow has."""
        return {}

    def _staff(self) -> list[Staff]:
        """Return the staff who take part besides the customers."""
        return []


class CartFlow(Flow):
    """The flow of carts."""

    name = "cart"
    workflow = ShoppingCart
    report = CartReport
    day_seconds = 60.0

    def _books(self, provider_url: str) -> Books:
        return CartBooks(self.day, provider_url=provider_url)

    def _person(self, shop: Shop) -> Person:
        return Customer(shop, clock=self.clock, confirm_within=self.pace.confirm_within, patience=self.pace.patience)


class OrderFlow(Flow):
    """The flow of orders, with a clerk and a carrier."""

    name = "graph"
    workflow = OrderProcess
    report = OrderReport
    day_seconds = 30.0

    def _books(self, provider_url: str) -> Books:
        return OrderBooks(self.day, provider_url=provider_url)

    def _person(self, shop: Shop) -> Person:
        return Buyer(shop, clock=self.clock, patience=self.pace.patience)

    def _staff(self) -> list[Staff]:
        orders = [order_number(basket) for basket in self.day.baskets]
        self._carrier = Carrier(self.scene.base_url, orders=orders)
        return [Clerk(self.scene.base_url, token=self.scene.clerk, orders=orders), self._carrier]

    def _own(self) -> dict[str, Any]:
        return {"reported": self._carrier.reported, "repeated": self._carrier.repeated}


FLOWS: dict[str, type[Flow]] = {flow.name: flow for flow in (CartFlow, OrderFlow)}
