"""The staff of an order: the clerk who reviews large orders, and the carrier who reports on parcels."""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Self

from django.db import DatabaseError, connection

from example_project.replay.rest import Connection, LostAnswer
from example_project.shop.carrier import SIGNATURE, signature
from example_project.shop.models import Shipment
from example_project.shop.orders import ORDER, OrderProcess

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType

LOOK_EVERY = 0.2
STOP_WITHIN = 30.0
#: One report in this many comes twice, as reports of carriers do.
TWICE = 10


class Staff(ABC, threading.Thread):
    """A thread that looks for work until its block ends. ``problem`` says why it gave up, if it did."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.problem = ""
        self._over = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self.join(STOP_WITHIN)

    def run(self) -> None:
        try:
            while not self._over.wait(LOOK_EVERY):
                try:
                    self.look()
                except DatabaseError:
                    connection.close()  # the database was busy: the next look finds the rest
        except Exception as error:  # noqa: BLE001 - the play goes on, and reports what its orders wait for
            self.problem = f"{self.name}: {type(error).__name__}: {error}"
        finally:
            connection.close()

    @abstractmethod
    def look(self) -> None:
        """Do the work that is there."""


class Clerk(Staff):
    """A clerk who approves ``orders`` over HTTP, from the inbox of the user whom the ``token`` belongs to."""

    def __init__(self, base_url: str, *, token: str, orders: Collection[str]) -> None:
        super().__init__("clerk")
        self._orders = frozenset(ORDER.id_for(number) for number in orders)
        self._connection = Connection(base_url, headers={"Authorization": f"Token {token}"})

    def look(self) -> None:
        for task in self._inbox():
            if task["workflow_id"] in self._orders:
                self._approve(task["id"])

    def _inbox(self) -> list[dict[str, Any]]:
        try:
            answer = self._connection.send("GET", f"/api/human-tasks/?workflow={OrderProcess.name}&limit=200")
        except LostAnswer:
            return []
        if answer.again:
            return []
        if not answer.ok:
            message = f"the inbox: {answer.reason}"
            raise RuntimeError(message)
        found: list[dict[str, Any]] = answer.body["results"]
        return found

    def _approve(self, task: str) -> None:
        body = json.dumps({"outcome": "approved", "comment": "the total is what the file says"}).encode()
        try:
            answer = self._connection.send(
                "POST", f"/api/human-tasks/{task}/decide/", body=body, headers={"Idempotency-Key": task}
            )
        except LostAnswer:
            return  # the next inbox has the task again
        if not (answer.ok or answer.again or answer.status == HTTPStatus.CONFLICT):
            message = f"decision {task}: {answer.reason}"
            raise RuntimeError(message)


class Carrier(Staff):
    """A carrier who delivers the parcels of ``orders`` and reports it to the shop over HTTP."""

    def __init__(self, base_url: str, *, orders: Collection[str]) -> None:
        super().__init__("carrier")
        self._orders = frozenset(orders)
        newest = Shipment.objects.order_by("-pk").first()
        self._before = newest.pk if newest else 0  # parcels of an earlier play
        self._connection = Connection(base_url)
        self._told: set[str] = set()
        self.repeated = 0

    @property
    def reported(self) -> int:
        """The number of parcels whose report the shop has confirmed."""
        return len(self._told)

    def look(self) -> None:
        shipped = Shipment.objects.filter(pk__gt=self._before).order_by("pk").values_list("parcel", "order")
        for parcel, order in shipped:
            if parcel in self._told or order not in self._orders or not self._tell(parcel):
                continue  # a report whose answer was lost is sent again
            self._told.add(parcel)
            if self.reported % TWICE == 0 and self._tell(parcel):
                self.repeated += 1

    def _tell(self, parcel: str) -> bool:
        """Report a delivery, and return True if the shop has confirmed it."""
        body = json.dumps({"parcel": parcel, "event": "delivered", "at": datetime.now(UTC).isoformat()}).encode()
        try:
            answer = self._connection.send("POST", "/carrier/", body=body, headers={SIGNATURE: signature(body)})
        except LostAnswer:
            return False
        if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return False
        if not answer.ok:
            message = f"parcel {parcel}: {answer.reason}"
            raise RuntimeError(message)
        return True
