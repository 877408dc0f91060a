"""Errors of requests: ids, permissions, what is not there or not possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from temporalex_django.errors.base import TemporalexError


class InvalidId(TemporalexError):
    """An id must be 1 to 200 printable characters without ``/``, and not the id of a run."""

    code = "invalid_id"
    next_step = "Use 1 to 200 printable characters without `/`, and nothing that is the id of a run."


class MessageIdTaken(InvalidId):
    """Another message of the run has that id: of another name, from somebody else, or, over REST, with another body."""

    code = "message_id_taken"
    next_step = "Take an id of its own for each message; the same one is for sending the very same message again."


class AmbiguousId(TemporalexError):
    """Several workflows used that id, and not exactly one of them has an open run.

    ``candidates`` holds one dict for each: ``workflow``, ``run_id`` and ``status`` of its newest run.
    """

    code = "ambiguous_id"
    next_step = (
        "Name the workflow (`Class.handle(id)`, `?workflow=` in REST), or the run by its own id: `candidates` has both."
    )

    def __init__(self, message: str | None = None, *, candidates: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(message)
        self.candidates = [dict(candidate) for candidate in candidates]


class WorkflowNotFound(TemporalexError):
    """No run with that id exists."""

    code = "workflow_not_found"
    next_step = "Check the id, and that the transaction that started the run has committed."


class AlreadyRunning(TemporalexError):
    """A run with that id is open already.

    ``pending`` is True when the other start is in a transaction that has not ended: whether it counts is not known yet.
    """

    code = "already_running"
    next_step = (
        "Use the handle of the open run, wait for its end, or start another id. With `pending`, try again "
        "when the other transaction has ended."
    )

    def __init__(self, message: str | None = None, *, pending: bool = False) -> None:
        super().__init__(message)
        self.pending = pending


class ResumeRefused(TemporalexError):
    """The event does not match exactly one waiting step."""

    code = "resume_refused"
    next_step = "Name the step, or an event that exactly one waiting step declares."


def no_process(run: str) -> ResumeRefused:
    """The run has nothing that takes requests from outside."""
    return ResumeRefused(f"{run} is no graph: it has no steps to resume")


class NotCancellable(TemporalexError):
    """The run is closed already."""

    code = "not_cancellable"
    next_step = "Nothing: the run has ended."


class UnknownQuery(TemporalexError):
    """The workflow does not answer a query of that name."""

    code = "unknown_query"
    next_step = "Ask one of the queries that the message lists."


class UnknownSignal(TemporalexError):
    """The class of the run declares its signals, and this one is not among them; ``known`` names those that are."""

    code = "unknown_signal"
    next_step = "Send one of the signals that the message lists, or add the name to `signals` of the class."

    def __init__(self, message: str | None = None, *, known: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.known = list(known)


class QueryFailed(TemporalexError):
    """The query function raised."""

    code = "query_failed"
    next_step = "Correct the query function; the run is unharmed."


class ActivityNotFound(TemporalexError):
    """No activity of that name is registered in this process."""

    code = "activity_not_found"
    next_step = (
        "The activity must be in `activities.py` or `workflows.py` of an installed app of the worker's "
        "project; deploy it there."
    )


class ActionNotPermitted(TemporalexError):
    """The user may not do this."""

    code = "not_permitted"
    next_step = "Ask for the permission that the message names."


class FourEyes(ActionNotPermitted):
    """Somebody else has to decide: this user started or forked the run, or decided an earlier approval of it."""

    code = "four_eyes"
    next_step = "Let another user with the role of the step decide."


class HumanTaskNotFound(TemporalexError):
    """There is no such human task, or not for this user."""

    code = "human_task_not_found"
    next_step = "Look into the inbox for what there is to decide; `handle.human_tasks()` gives those of a run."


class WorkerNotFound(TemporalexError):
    """There is no such worker: it has ended, was found dead, or goes on under a new id."""

    code = "worker_not_found"
    next_step = "Look which there are: the list of workers in the admin, or `GET workers/`."


class HumanTaskClosed(TemporalexError):
    """The human task is not open any more: the message says who decided what and when, or what happened instead."""

    code = "human_task_closed"
    next_step = "Nothing is left to decide here; look at the run for how it went on. Nothing was done."


class FormChanged(TemporalexError):
    """The form that was filled in for a human task is not the one that it has now."""

    code = "form_changed"
    next_step = "Look at the form of today, and decide again. Nothing was done."


class HumanTaskClaimed(TemporalexError):
    """Somebody else has claimed the human task: the message says who, and until when."""

    code = "human_task_claimed"
    next_step = "Ask the one who claimed it to decide or to release it, or wait until the claim ends. Nothing was done."


class ActionNotPossible(TemporalexError):
    """The run is not in a state in which this can be done to it."""

    code = "not_possible"
    next_step = (
        "Read the reason in the message. Where it is about a run, look at it again: somebody else may have been quicker. "
        "Nothing was done."
    )


class RunChanged(TemporalexError):
    """The run is no longer what whoever acts on it saw.

    ``changes`` has what differs: by name what it ``was`` and what it ``is``.
    """

    code = "changed"
    next_step = "Look at the run again, and decide again."

    def __init__(self, message: str | None = None, *, changes: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        super().__init__(message)
        self.changes = {name: dict(pair) for name, pair in (changes or {}).items()}


class IdempotencyKeyReused(TemporalexError):
    """That ``Idempotency-Key`` came with another request before."""

    code = "idempotency_key_reused"
    next_step = "Take a new key for each request; the same one is for sending the very same request again."
