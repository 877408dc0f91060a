"""Atomic activities, which run inside the transaction of a turn (see decision 4), and effects that happen once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from temporalex_django import signals
from temporalex_django.authoring import activity, workflow
from temporalex_django.authoring.activity import Activity
from temporalex_django.authoring.activity_context import activity_context, use_context
from temporalex_django.conf import codec, get_settings
from temporalex_django.core import process
from temporalex_django.core.names import MAX_LENGTH
from temporalex_django.core.payloads.codec import error_reason
from temporalex_django.core.payloads.round_trip import encode_lossless
from temporalex_django.db.attempt_scope import call_in_scope
from temporalex_django.db.graph_storage import TaskSource
from temporalex_django.engine import activity_policy
from temporalex_django.engine.contracts.records import TaskResult, TaskState
from temporalex_django.engine.executors import attempt_hooks
from temporalex_django.errors import KeyMissing, PayloadError

if TYPE_CHECKING:
    from temporalex_django.db.storage import DjangoStorage


def run_atomic_activity(task: TaskState) -> TaskResult:
    """Run an atomic activity inside the turn's transaction, and return its result.

    Raises what the function raises. Raises ``PayloadError`` if a payload does not fit, and
    ``activity_policy.ActivityUnavailable`` if this process lacks code or a key.
    """
    try:
        act = activity.find(task.activity)
        fn, args, kwargs = act.decode_call(task.args, task.kwargs, TaskSource(task))
    except activity_policy.UNAVAILABLE_ERRORS as exc:
        raise activity_policy.ActivityUnavailable(str(exc)) from exc
    send_activity_signal("activity_started", task, attempt=task.attempt)

    def call() -> Any:
        with attempt_hooks(task), use_context(activity_policy.activity_context(task)):
            process.reached("atomic effect: before")
            value = fn(*args, **kwargs)
            process.reached("atomic effect: after")
            return value

    value = call_in_scope(task.activity, call, atomic=True)
    try:
        return completed_result(task, act.encode_result(value, task.args, TaskSource(task)), act)
    except KeyMissing as exc:  # none of its writes are committed, so another worker can run it
        raise activity_policy.ActivityUnavailable(str(exc)) from exc


def completed_result(task: TaskState, value: Any, act: Activity[Any, Any], **about: str) -> TaskResult:
    """Return the result of an attempt that returned ``value``, which is plain data.

    ``about`` has further attributes of the event of the result: ``begin`` and ``worker``. Raises ``PayloadError`` if it
    cannot be stored.
    """
    result = activity_policy.completed_result(task, value, limit=get_settings().MAX_PAYLOAD_BYTES, activity=act)
    assert result.outcome is not None
    result.outcome[1].update(about)
    result.encoded = encode_payload(result.outcome[1], description=f"the result of {task.activity}")
    return result


def encode_payload(value: Any, *, description: str) -> bytes:
    """Encode plain data with the codec.

    ``description`` names the data in errors. Raises ``KeyMissing`` if this process lacks a key, and ``PayloadError``
    for any other error of the codec.
    """
    try:
        return codec().encode(value)
    except KeyMissing:
        raise
    except Exception as exc:
        raise PayloadError(f"{description} cannot be stored: {error_reason(exc)}") from exc


def send_activity_signal(name: str, task: TaskState, **facts: Any) -> None:
    """Send the Django signal ``name`` (of ``signals.ALL``) about an activity, if it has receivers.

    ``facts`` are further arguments of the signal.
    """
    signal = signals.ALL[name]
    if not signal.receivers:
        return
    sender = workflow.signal_sender(task.workflow)
    if signal.has_listeners(sender):
        signals.send(
            name,
            sender,
            workflow=task.workflow,
            workflow_id=task.workflow_id,
            run_id=str(task.run_id),
            activity=task.activity,
            seq=task.seq,
            **facts,
        )


# --- once -------------------------------------------------------------------------------------------------------------
#
# ``once(key)``: work in your database that takes effect once, however often its activity is repeated.
#
# The work, its result and a row with the key commit together. A repeat finds the row. Of two at a time, the second
# waits for the first.


_OWN: Final = "own:"  # prefix of the keys of projects
_ATOMIC: Final = "atomic:"  # prefix of the keys of atomic activities


class OnceBlock:
    """The work of one key. ``is_first`` is True if it is still to be done, and ``result`` is its result.

    Set ``result`` to plain data, which a repeat gets.
    """

    def __init__(self, *, is_first: bool, result: Any = None) -> None:
        self.is_first = is_first
        self.result = result


@contextmanager
def once(key: str) -> Iterator[OnceBlock]:
    """Return a context manager for work in the database that is done once for ``key``, of 1 to 200 characters.

    Use it in an activity. The block runs in a transaction of the alias ``TEMPORALEX["DATABASE"]``, or in a savepoint if
    one is open. Its value is a ``OnceBlock``. If ``is_first`` is True, do the work and set ``result`` to plain data.
    Otherwise the work is done, and ``result`` is its result. An exception rolls back the work and the row of the key,
    so the next attempt does the work.

    The row is deleted with the run of the activity. Raises ``OutsideWorkflow`` outside of an activity, ``ValueError``
    for an invalid key, and ``PayloadError`` for a result that cannot be stored.
    """
    if not isinstance(key, str) or not 0 < len(key) <= MAX_LENGTH:
        raise ValueError(f"once: the key must be a text of 1 to {MAX_LENGTH} characters, not {key!r:.60}")
    context = activity_context()
    # The tables are imported here: `from temporalex_django import *` has to work before Django is set up.
    from temporalex_django.db.storage import DjangoStorage  # noqa: PLC0415 - as above

    run_id = UUID(context._owner or context.run_id)  # noqa: SLF001 - of no interest to activities
    with _done_once(f"{_OWN}{key}", run_id, DjangoStorage()) as block:
        yield block


@contextmanager
def atomic_once(key: str, run_id: UUID, storage: DjangoStorage) -> Iterator[OnceBlock]:
    """Return the context manager in which an atomic activity of a run on a Temporal cluster runs.

    ``key`` is the idempotency key of the activity: its writes and its result are stored once for it.
    """
    with _done_once(f"{_ATOMIC}{key}", run_id, storage) as block:
        yield block


@contextmanager
def _done_once(key: str, run_id: UUID, storage: DjangoStorage) -> Iterator[OnceBlock]:
    from temporalex_django.db.sql_columns import DONE_ONCE  # noqa: PLC0415 - as in `once`
    from temporalex_django.models import DoneOnce  # noqa: PLC0415 - as in `once`

    with storage.transaction("once"):
        new = DONE_ONCE.pick_columns("key", "run_id", "created_at")
        # Inserted before the work: another attempt that comes meanwhile waits here for the end of this transaction.
        inserted = storage.sql.execute(
            new.insert_parameters(storage.sql.placeholder, "on conflict do nothing"),
            new.encode_row((key, run_id, storage.now())),
        )
        rows = DoneOnce.objects.using(storage.alias).filter(pk=key)
        if not inserted:
            encoded = rows.values_list("result", flat=True).get()
            yield OnceBlock(is_first=False, result=None if encoded is None else codec().decode(bytes(encoded)))
            return
        block = OnceBlock(is_first=True)
        yield block
        if block.result is not None:
            encoded = codec().encode(encode_lossless(block.result, label="the result of once()"))
            rows.update(result=encoded)
