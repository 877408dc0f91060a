"""Interceptors: classes, of your project or of ``contrib``, around client calls, activations, activities and queries.

An interceptor is a class like this::

    class Timing(Interceptor):
        @contextmanager
        def activity_attempt(self, attempt):
            started = time.monotonic()
            yield  # the attempt runs here
            print(attempt.activity, time.monotonic() - started)

``TEMPORALEX["INTERCEPTORS"]`` names them, the outermost one first. Most hooks return a context manager, whose block is
the work itself. So one hook serves plain and async code, and can neither skip the work nor change its result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "ActivationCall",
    "AttemptCall",
    "Cause",
    "ClientCall",
    "Interceptor",
    "Outgoing",
    "Problem",
    "QueryCall",
    "WorkflowCode",
]


@dataclass(slots=True, kw_only=True)
class ClientCall:
    """A call from outside of runs: an operation such as ``start``, ``signal``, ``update``, ``query`` or ``decide``.

    ``operation`` is its name in the audit log. ``source`` is the interface: code, rest, admin, pages, command or
    schedule. ``workflow`` is the name of the class, ``workflow_id`` the business id and ``run_id`` the run, as far as
    they are known; a start has no run yet. ``message`` is the name of the signal, update or query. ``headers`` are
    those that are sent: you may add some, until the block begins. Calls that send no message ignore them.
    """

    operation: str
    source: str = "code"
    workflow: str | None = None
    workflow_id: str | None = None
    run_id: str | None = None
    message: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The reason of an activation: the start of its run (``kind`` "start"), a message or a result.

    ``kind`` is "start" or the kind of the message, such as signal, update, activity or child. ``name`` is the name of
    the signal or update, or the kind of the event. ``headers`` came with the message, or belong to the activity.
    """

    kind: str
    name: str
    headers: Mapping[str, str]


@dataclass(slots=True, kw_only=True)
class ActivationCall:
    """An activation of a run, which delivers messages and results to it. A replay is no activation.

    ``run_headers`` are those of the run. ``causes`` are what it delivers, without timers.
    """

    workflow: str
    workflow_id: str
    run_id: str
    queue: str
    number: int
    run_headers: Mapping[str, str]
    causes: Sequence[Cause] = ()


@dataclass(slots=True, kw_only=True)
class Outgoing:
    """Something that an activation sends: an activity, a child, or a signal or cancel request to another run.

    ``kind`` is "activity", "child", "signal" or "cancel", and ``name`` the name of the activity, the class or the
    signal. ``workflow_id`` is the business id of the receiver, and None for an activity. ``headers`` are those of the
    run: you may add some.
    """

    kind: str
    name: str
    workflow_id: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowCode:
    """Workflow code that runs now: in an activation or, if ``is_replaying``, in a replay of past activations."""

    workflow: str
    workflow_id: str
    run_id: str
    is_replaying: bool
    run_headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCall:
    """An attempt of an activity. ``attempt`` counts from 1.

    For a background task, ``workflow`` and ``workflow_id`` are empty.
    """

    activity: str
    workflow: str
    workflow_id: str
    run_id: str
    seq: int
    queue: str
    attempt: int
    is_atomic: bool
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryCall:
    """A query that a class answers from the published state of a run. ``name`` is the name of the query."""

    workflow: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An activity that has failed for good, or a run that is blocked; it is reported after the commit.

    ``kind`` is "activity_failed" or "run_blocked". ``error`` is the exception, or None if it was raised in another
    process. ``type`` is the type of the failure. ``activity`` and ``attempt`` are None for a run.
    """

    kind: Literal["activity_failed", "run_blocked"]
    workflow: str
    workflow_id: str
    run_id: str
    type: str
    error: BaseException | None = None
    queue: str | None = None
    activity: str | None = None
    attempt: int | None = None


class Interceptor:
    """Base class of interceptors. Each hook does nothing; override those that you need.

    One object serves all threads of the process. Its constructor takes no arguments, and runs when Django starts.
    """

    def client_call(self, call: ClientCall) -> AbstractContextManager[object]:
        """Return a context manager for a call from outside of runs.

        An exception that it raises reaches the caller. In async code the block contains waits.
        """
        del call
        return nullcontext()

    def activation(self, activation: ActivationCall) -> AbstractContextManager[object]:
        """Return a context manager for an activation of a run.

        It runs in the transaction of the turn and within the time limit of workflow code, so it must not wait for
        anything. It is outside of the workflow: it may read clocks. An exception that it raises blocks the run.
        """
        del activation
        return nullcontext()

    def outgoing(self, outgoing: Outgoing) -> None:
        """Add headers to something that an activation sends. It is called inside of the block of ``activation``."""

    def workflow_code(self, code: WorkflowCode) -> AbstractContextManager[object]:
        """Return a context manager for workflow code, in activations and in replays.

        It must be deterministic: what the guard refuses to workflow code blocks the run here, too.
        """
        del code
        return nullcontext()

    def activity_attempt(self, attempt: AttemptCall) -> AbstractContextManager[object]:
        """Return a context manager for an attempt of an activity. An exception that it raises fails the attempt."""
        del attempt
        return nullcontext()

    def query(self, query: QueryCall) -> AbstractContextManager[object]:
        """Return a context manager for the code that answers a query."""
        del query
        return nullcontext()

    def problem(self, problem: Problem) -> None:
        """Report an activity that failed for good, or a run that is blocked. It must return at once.

        An exception that it raises is logged.
        """
