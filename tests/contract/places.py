"""A storage of runs with what stands around the contract: how clients start, send and read, and a clock by hand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from temporalex_django import activity
from temporalex_django.core.messages.sender import Sender
from temporalex_django.engine.contracts.records import (
    InboxMessage,
    NewEvent,
    NewTask,
    Outcome,
    RunRecord,
    RunState,
    RunWrite,
    TaskState,
)
from temporalex_django.engine.memory.storage import MemoryRunStorage
from temporalex_django.engine.memory.tables import RunRow, start_labels
from temporalex_django.engine.run_start import RunStart
from temporalex_django.engine.scheduling import Capacity

NOW = datetime(2026, 1, 1, tzinfo=UTC)
QUEUES = ("default",)


#: A worker takes only what it has the code of; none of these is ever called.
for _name in ("plain", "waiting", "quick"):
    activity(name=f"contract.{_name}")(lambda: None)


class Place(ABC):
    """One storage, empty at first."""

    storage: Any

    @abstractmethod
    def start(
        self,
        workflow_id: str = "w-1",
        *,
        workflow: str = "Cart",
        version: int = 1,
        queue: str = "default",
        args: Any = None,
        scope: str = "global",
        execution_timeout: float | None = None,
        run_timeout: float | None = None,
    ) -> UUID:
        """The chain of a new run, due now."""  # fmt: skip

    @abstractmethod
    def send(
        self,
        chain: UUID,
        name: str = "go",
        body: Any = None,
        *,
        kind: str = "signal",
        request_id: str | None = None,
        sender: Sender | None = None,
    ) -> int:
        """The number of a new message."""  # fmt: skip

    @abstractmethod
    def outcome(self, message: int) -> Outcome | None: ...

    @abstractmethod
    def row(self, run: UUID) -> RunRow: ...

    @abstractmethod
    def runs(self, chain: UUID) -> list[UUID]:
        """Of the chain, oldest first."""

    @property
    @abstractmethod
    def now(self) -> datetime: ...

    @abstractmethod
    def advance(self, seconds: float) -> None: ...

    # -- what tests do all the time -----------------------------------------------------------------------------------

    def claim(self, *queues: str, limit: int = 100, chains: Sequence[UUID] = ()) -> list[UUID]:
        """The chains that a turn gets now."""
        with self.storage.transaction():
            found = self.storage.claim(limit=limit, queues=queues or QUEUES, chains=chains)
            return [run.chain_id for run in found]

    def state(self, chain: UUID) -> RunState:
        with self.storage.transaction():
            (run,) = self.storage.claim(limit=1, queues=QUEUES, chains=[chain])
            return run

    def write(self, chain: UUID, *, run: dict[str, Any] | None = None, **stored: Any) -> RunState:
        """A turn of one run: ``run`` are attributes of its state, the others those of the ``RunWrite``."""
        with self.storage.transaction():
            return self.write_inside(chain, run=run, **stored)

    def write_inside(self, chain: UUID, *, run: dict[str, Any] | None = None, **stored: Any) -> RunState:
        (state,) = self.storage.claim(limit=1, queues=QUEUES, chains=[chain])
        for name, value in (run or {}).items():
            setattr(state, name, value)
        self.storage.write([RunWrite(run=state, **stored)])
        return state

    def successor(self, chain: UUID, run_id: UUID, *, seed: int, **values: Any) -> RunRecord:
        """The record of the next run of the chain."""
        newest = self.runs(chain)[-1]
        return self.storage.run_records([newest])[newest].successor(run_id, seed=seed, **values)

    def quiet(self, *chains: UUID) -> None:
        """They wait for messages alone."""
        for chain in chains:
            self.write(chain, run={"due_at": None})

    def inbox(self, chain: UUID, **options: Any) -> list[InboxMessage]:
        with self.storage.transaction():
            self.storage.claim(limit=1, queues=QUEUES, chains=[chain])
            return self.storage.inbox([chain], **options)[chain]

    def schedule(self, chain: UUID, *seqs: int, **options: Any) -> None:
        """Activities with these numbers of the present run."""
        state = self.state(chain)
        self.write(chain, run={"due_at": None}, tasks=[self.task(state, seq, **options) for seq in seqs or (1,)])

    def task(self, run: RunState, seq: int = 1, *, options: dict[str, Any] | None = None, **fields: Any) -> NewTask:
        given = {
            "run_id": run.run_id,
            "chain_id": run.chain_id,
            "workflow_id": "w-1",
            "workflow": "Cart",
            "seq": seq,
            "activity": "contract.plain",
            "args": [1],
            "kwargs": {"a": 2},
            "options": options or {},
            "queue": "default",
            "atomic": False,
            "scheduled_at": self.now,
            **fields,
        }
        return NewTask(**given)

    def take(self, *queues: str, owner: int = 1, capacity: Capacity | None = None, **options: Any) -> list[TaskState]:
        capacity = Capacity(threads=100) if capacity is None else capacity
        found: list[TaskState] = self.storage.claim_tasks(
            capacity=capacity, queues=queues or QUEUES, owner=owner, **options
        )
        return found


def event(
    number: int, kind: str = "SignalReceived", *, activation: int = 1, at: datetime = NOW, **attributes: Any
) -> NewEvent:
    return NewEvent(number=number, activation=activation, kind=kind, at=at, attributes=attributes)


class MemoryPlace(Place):
    def __init__(self) -> None:
        self.storage: MemoryRunStorage = MemoryRunStorage(NOW)

    def start(
        self, workflow_id: str = "w-1", *, workflow: str = "Cart", version: int = 1, queue: str = "default",
        args: Any = None, scope: str = "global", execution_timeout: float | None = None, run_timeout: float | None = None,
    ) -> UUID:  # fmt: skip
        new = RunStart(
            workflow=workflow, workflow_id=workflow_id, version=version, queue=queue, args=args, seed=7, scope=scope,
            execution_timeout=execution_timeout, run_timeout=run_timeout,
        )  # fmt: skip
        return self.storage.start(new)

    def send(
        self, chain: UUID, name: str = "go", body: Any = None, *, kind: str = "signal", request_id: str | None = None,
        sender: Sender | None = None,
    ) -> int:  # fmt: skip
        return self.storage.send(chain, kind, name, body, message_id=request_id, sender=sender)

    def outcome(self, message: int) -> Outcome | None:
        kept = self.storage.messages.get(message)
        return None if kept is None else kept.outcome

    def row(self, run: UUID) -> RunRow:
        return self.storage.runs[run]

    def runs(self, chain: UUID) -> list[UUID]:
        return list(self.storage.run_ids[chain])

    @property
    def now(self) -> datetime:
        return self.storage.clock

    def advance(self, seconds: float) -> None:
        self.storage.clock += timedelta(seconds=seconds)


class DatabasePlace(Place):
    """On the database of the lane, in the transaction of the test."""

    def __init__(self) -> None:
        from temporalex_django.db.storage import DjangoStorage

        self._now = NOW
        self.storage: DjangoStorage = DjangoStorage(clock=lambda: self._now, worker=True)

    def start(
        self, workflow_id: str = "w-1", *, workflow: str = "Cart", version: int = 1, queue: str = "default",
        args: Any = None, scope: str = "global", execution_timeout: float | None = None, run_timeout: float | None = None,
    ) -> UUID:  # fmt: skip
        from temporalex_django.db.inserts import insert_start
        from temporalex_django.engine.run_start import RunStart

        new = RunStart(
            workflow=workflow, workflow_id=workflow_id, version=version, queue=queue, args=args, seed=7, scope=scope,
            execution_timeout=execution_timeout, run_timeout=run_timeout,
        )  # fmt: skip
        return insert_start(new, storage=self.storage).chain_id

    def send(
        self, chain: UUID, name: str = "go", body: Any = None, *, kind: str = "signal", request_id: str | None = None,
        sender: Sender | None = None,
    ) -> int:  # fmt: skip
        from temporalex_django.db.inserts import insert_message

        return insert_message(
            chain, kind=kind, name=name, body=body, request_id=request_id, sender=sender, storage=self.storage
        ).id

    def outcome(self, message: int) -> Outcome | None:
        from temporalex_django.db.inserts import message_outcome

        return message_outcome(message, storage=self.storage)

    def row(self, run: UUID) -> RunRow:
        from temporalex_django.models import Instance

        found = Instance.objects.get(pk=run)
        return RunRow(
            facts=self.storage.run_records([run])[run],
            created_at=found.created_at,
            labels=start_labels(found),
            status=found.status,
            published=found.published_state,
            accepts=found.accepts or {"signals": [], "updates": []},
            waiting_for=found.waiting_for or [],
            blocked=found.blocked,
            paused=found.paused,
            stored=found.stored,
            started_at=found.started_at,
            closed_at=found.closed_at,
            closing=found.closing_value,
        )

    def runs(self, chain: UUID) -> list[UUID]:
        from temporalex_django.models import Instance

        return list(Instance.objects.filter(chain_id=chain).order_by("id").values_list("pk", flat=True))

    @property
    def now(self) -> datetime:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
