"""Attempts of activities of a cluster in a Django process: with interceptors, signals, lanes and ``atomic=True``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from typing import Any, ClassVar, Final
from uuid import UUID

from django.db import DatabaseError, close_old_connections
from django.db.models import Q
from django.db.transaction import TransactionManagementError
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from temporalex_django.authoring import activity as activities
from temporalex_django.authoring.activity import Activity
from temporalex_django.authoring.activity_context import ActivityContext
from temporalex_django.backends.cluster.ids import queue_of
from temporalex_django.backends.cluster.names import DELIVERY
from temporalex_django.backends.cluster.permits import Permits
from temporalex_django.backends.host import host
from temporalex_django.core.history.events import DELIVERED
from temporalex_django.core.payloads import codec
from temporalex_django.db.atomic_activities import send_activity_signal
from temporalex_django.db.attempt_scope import AttemptScope
from temporalex_django.db.once import atomic_once
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.db.turn_writes import ExternalRunWriter
from temporalex_django.engine.contracts.records import TaskState
from temporalex_django.engine.executors import attempt_hooks
from temporalex_django.engine.external_messages import NewMessage
from temporalex_django.engine.ids import parse_run_id
from temporalex_django.errors import ApplicationError, WorkflowDefinitionError
from temporalex_django.models import Instance, Message
from temporalex_django.temporal.activities import ActivityRunner
from temporalex_django.temporal.attempts import ActivityAttempt
from temporalex_django.temporal.options import HostOptions

#: Tries of an atomic activity whose transaction conflicts with another one, and the seconds between them.
_CONFLICT_TRIES: Final = 5
_CONFLICT_PAUSE: Final = 0.05
#: Runs a task in a process of its own, with the context of its attempt.
ProcessCall = Callable[[TaskState, ActivityContext], Any]
_process_call: Final[list[ProcessCall]] = []
#: The permits of the worker that runs the attempt.
_permits: Final[ContextVar[Permits | None]] = ContextVar("temporalex_permits", default=None)


def bind_process_call(call: ProcessCall) -> None:
    """Set the function that runs activities with ``lane="process"``. A worker of this package calls it."""
    _process_call[:] = [call]


class ProjectAttempt(ActivityAttempt):
    """An attempt of an activity in a worker of this package.

    Hooks and signals get a ``TaskState`` for it, as they do for attempts on the tables; it has no row.
    """

    async def run(self, payloads: Sequence[Payload], executor: Executor | None) -> Any:
        """Wait until the limits of the activity allow it, run the function and return its result as plain data.

        Limits do not apply to atomic activities.
        """
        if self._info.activity_type == DELIVERY:
            return await asyncio.get_running_loop().run_in_executor(executor, self._deliver, payloads)
        activity, permits = activities.registry.get(self._info.activity_type), _permits.get()
        if activity is None:
            return await super().run(payloads, executor)
        if permits is None or activity.options_set.atomic:
            return await self._run_in_scope(activity, payloads, executor)
        queue = queue_of(self._info.task_queue)
        async with permits.hold_permit(queue, activity.name, self._key, self._beat):
            return await self._run_in_scope(activity, payloads, executor)

    async def _run_in_scope(
        self, activity: Activity[Any, Any], payloads: Sequence[Payload], executor: Executor | None
    ) -> Any:
        """Run the function, an async one in an ``AttemptScope``; a plain one gets its scope in its thread."""
        if not activity.is_async:
            return await super().run(payloads, executor)
        try:
            async with AttemptScope(activity.name):
                return await super().run(payloads, executor)
        except TransactionManagementError as exc:  # of the scope: errors of the function are errors of the SDK by now
            raise self._failure(exc) from exc

    def _deliver(self, payloads: Sequence[Payload]) -> tuple[str, dict[str, Any]]:
        """Deliver a message to a run that the cluster does not know, and return the answer for its sender.

        It goes into the inbox of a run on the tables, or into the outbox. Its id is made of the run that sends it, so
        that it is delivered once, also if the receiver has closed between two attempts.
        """
        close_old_connections()
        try:
            call, sent_by = self._options.payloads.decode(payloads[0]), self._info.workflow_run_id or self._run_id
            storage, run_id = host().storage(), UUID(sent_by)
            kind = "signal" if "name" in call else "cancel"
            message = NewMessage(
                kind=kind,
                name=call.get("name", ""),
                payload=call.get("payload") if kind == "signal" else {"reason": f"requested by {self._workflow_id}"},
                workflow_id=call["id"],
                message_id=f"{sent_by}:{self._seq}",
                ask=(run_id, run_id, self._seq),
                headers=self._headers,
            )
            with storage.transaction():
                if _is_stored(message, storage):
                    return DELIVERED, {}
                return ExternalRunWriter(storage.sql, storage.clock).deliver(message)
        except Exception as exc:
            raise self._failure(exc) from exc
        finally:
            close_old_connections()

    def _beat(self) -> None:
        """Show the server that the attempt waits in a living worker."""
        if self._info.heartbeat_timeout:
            self._note_heartbeat(None)

    def task_of(self, activity: Activity[Any, Any], args: Sequence[Any] = ()) -> TaskState:
        """Return the ``TaskState`` that describes the activity to hooks and signals. ``args`` are plain data."""
        info = self._info
        return TaskState(
            id=0,
            chain_id=UUID(int=0),
            run_id=UUID(self._run_id),
            workflow_id=self._workflow_id,
            workflow=info.workflow_type or "",
            seq=self._seq,
            activity=activity.name,
            args=args,
            kwargs=self._kwargs,
            options={},
            queue=info.task_queue,
            atomic=activity.options_set.atomic,
            attempt=info.attempt,
            scheduled_at=info.scheduled_time,
            due_at=info.current_attempt_scheduled_time,
            started_at=info.started_time,
            heartbeat_details=self._details[0] if self._details else None,
            headers=self._headers,
        )

    async def start_in_thread(self, activity: Activity[Any, Any], args: Sequence[Any], executor: Any) -> Any:
        """Run a plain function in a thread of ``executor``, and return its result.

        If an atomic activity is cancelled after its start, it runs to the end and its result counts.
        """
        call = executor.submit(copy_context().run, self.run_in_thread, activity, args)
        try:
            return await asyncio.shield(asyncio.wrap_future(call))
        except asyncio.CancelledError:
            if call.cancel() or not activity.options_set.atomic:
                raise
            return await asyncio.wrap_future(call)

    def run_in_thread(self, activity: Activity[Any, Any], args: Sequence[Any]) -> Any:
        """Run a plain function in this thread and return its result as plain data.

        For an atomic activity, its writes, its result and a row with its idempotency key commit in one transaction. A
        later attempt with that key returns the stored result.
        """
        if activity.options_set.atomic:
            return self._run_once(activity, args)
        if activity.name in activities.process_names and _process_call:
            with self.surroundings(activity):
                value = _process_call[0](self.task_of(activity, args), self._context())
            return self.encode(activity, value, args)
        return super().run_in_thread(activity, args)

    def _run_once(self, activity: Activity[Any, Any], args: Sequence[Any]) -> Any:
        if activity.options_set.shared_transaction:
            raise ApplicationError(
                f"{activity.name} needs the next step of its run in the same transaction (shared_transaction=True), "
                "which is not possible on a Temporal cluster: run the class on the tables",
                type=WorkflowDefinitionError.__name__,
                non_retryable=True,
            )
        # After a reset the number may belong to another call, so the call is part of the key.
        call = codec.digest([activity.name, list(args), dict(self._kwargs)])
        key, storage = f"{self._run_id}:{self._call_id}:{call}", DjangoStorage(worker=True)
        close_old_connections()  # and not inside the transaction
        for tries_left in reversed(range(_CONFLICT_TRIES)):
            try:
                with atomic_once(key, UUID(self._info.workflow_run_id or self._run_id), storage) as block:
                    if block.is_first:
                        block.result = self._perform(activity, args)
            except DatabaseError as exc:
                if not (tries_left and storage.is_transient(exc)):
                    raise
                time.sleep(_CONFLICT_PAUSE)
            else:
                return block.result
        raise AssertionError("the last try returns or raises")

    def _perform(self, activity: Activity[Any, Any], args: Sequence[Any]) -> Any:
        fn, positional, keywords = activity.decode_call(args, self._kwargs, self)
        try:
            with self.surroundings(activity):
                return self.encode(activity, fn(*positional, **keywords), args)
        except (KeyboardInterrupt, SystemExit) as exc:
            # These would end the thread; here they end the attempt.
            raise RuntimeError(f"{activity.name} raised {type(exc).__name__}") from exc

    @contextmanager
    def surroundings(self, activity: Activity[Any, Any]) -> Iterator[None]:
        """Return a context manager that sends ``activity_started`` and runs the function inside the interceptors.

        A plain function gets its ``AttemptScope`` here; its thread has given it a context of its own.
        """
        task = self.task_of(activity)
        send_activity_signal("activity_started", task, attempt=task.attempt)
        scope = (
            nullcontext() if activity.is_async else AttemptScope(activity.name, atomic=task.atomic, takes_caches=True)
        )
        with scope, attempt_hooks(task), super().surroundings(activity):
            yield


def _is_stored(message: NewMessage, storage: DjangoStorage) -> bool:
    """Return True if a run with the id to which this message goes has it already, open or not."""
    assert message.workflow_id is not None
    receivers = Q(workflow_id=message.workflow_id) | Q(pk=parse_run_id(message.workflow_id))
    chains = Instance.objects.using(storage.alias).filter(receivers).values("chain")
    return Message.objects.using(storage.alias).filter(chain__in=chains, request_id=message.message_id).exists()


class ProjectActivities(ActivityRunner):
    """Runs the activities of this project in a worker of the SDK, whose attempts get ``permits``, if there are any."""

    attempt_class: ClassVar[type[ActivityAttempt]] = ProjectAttempt

    def __init__(self, options: HostOptions, executor: Executor, permits: Permits | None) -> None:
        super().__init__(options, executor)
        self._permits = permits

    async def run(self, args: Sequence[RawValue]) -> RawValue:
        """Run one attempt, under the limits that apply to it, and return its result as a payload."""
        token = _permits.set(self._permits)
        try:
            return await super().run(args)
        finally:
            _permits.reset(token)
