"""The border of the core: an activation goes in, a completion comes out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from temporalex_django.core.history.commands import Command
from temporalex_django.core.history.events import Job
from temporalex_django.core.senders import Sender
from temporalex_django.core.typed_dicts import CarriedMessages
from temporalex_django.errors import TemporalexError


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What the executor needs of a workflow class.

    ``entry(args)`` gives the coroutine of a new run; ``args_type`` is the annotation that ``args`` is decoded to.
    """

    name: str
    version: int
    entry: Callable[[Any], Awaitable[Any]]
    args_type: Any = Any
    args_default: Any = None  # the input of a run that is started without one
    result_type: Any = Any  # what a result is decoded to where code reads it
    unexpected_error: Literal["fail", "block"] | None = None  # None: as the host says
    signals: frozenset[str] | None = None  # those that the class declares; None: it declares none, and takes any
    tags: tuple[str, ...] | None = None  # to find its activities by; None where the class has none
    metadata: Mapping[str, Any] | None = None
    stored: Mapping[str, type] = field(default_factory=dict)  # fields of the published state that SQL may read
    search_attributes: Mapping[str, Any] = field(default_factory=dict)  # types of those that its runs may have


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """Facts of a run that never change while it is open."""

    workflow: str
    id: str
    run_id: str
    version: int
    attempt: int = 1
    parent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """Delivered together, answered together.

    ``now`` is the time that ``api.now()`` gives throughout. ``start`` (first activation only) is ``{"args", "seed"}``,
    ``snapshot`` of a process that was moved, and of a run that goes on from another one ``carried``: so many of the
    first signals are in its mailbox when it begins; ``search_attributes`` where it has any. ``jobs`` are in delivery
    order: resolutions, a cancel request, messages. ``seed`` replaces the generator (after a reset). ``copied`` (replay
    only): what is before was copied from another run, which this one takes up, see ``prefix.build_copy_mark``; nothing
    is delivered then. ``refused`` (replay only) holds the numbers of buffered signals that a phase refused in this
    activation, ``failed`` those whose handler failed in it (True where it had left nothing behind), ``dispatched`` how
    many messages phases and waits took from the mailbox before the host had enough.

    Two limits of hosts that are not ours, recorded with the activation: ``admit_updates`` accepts an update that comes
    behind a busy handler at once and queues it, ``max_pending`` keeps back calls (activities, children, external
    messages) beyond so many that are unresolved, in call order.
    """

    now: datetime
    jobs: tuple[Job, ...] = ()
    start: dict[str, Any] | None = None
    history_length: int = 0
    seed: int | None = None
    copied: Mapping[str, Any] | None = None
    admit_updates: bool = False
    max_pending: int | None = None
    refused: tuple[int, ...] = ()
    failed: Mapping[int, bool] = field(default_factory=dict)
    dispatched: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedSignal:
    """A signal whose handler failed, or whose payload does not fit the handler's annotation.

    ``number`` counts the signals of the run. ``id`` is the one that its sender gave it, else ``<run id>:<number>``.
    ``failure`` is ``{"type", "message"}``. ``untouched``: the handler had left nothing behind when it failed.
    """

    number: int
    id: str
    name: str
    payload: Any
    sender: Sender | None
    failure: dict[str, Any]
    untouched: bool

    def event_attributes(self) -> dict[str, Any]:
        """Attributes of ``SignalFailed``: the payload stands in ``SignalReceived``."""
        return {"number": self.number, "id": self.id, "name": self.name, "untouched": self.untouched, **self.failure}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A validator failed by a fault of the code, and did not judge: the update stays what it was, unanswered."""

    update_id: str
    name: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A signal whose sender lacks the permission of its handler.

    ``job`` is what was delivered: no trace of it is to be left in the history. None: it came before the phase was open
    and is in the history; its ``number`` among the signals of the run is to be noted with the activation.
    """

    name: str
    sender: Sender
    permission: str
    job: Job | None = None
    number: int | None = None


@dataclass(slots=True)
class Completion:
    """The answer to an activation.

    ``jobs`` are the inputs that took effect and belong into the history (a late result of a cancelled wait does not).
    ``rejected`` holds ``(update id, error)``: nothing of those is written. ``granted`` holds the ids of requests that a
    process let through, ``notes`` what it tells whoever listens: name and facts. ``pending`` holds ``(update id,
    after)`` of updates that wait behind a busy handler: the host delivers them again, with that ``after``, in each
    later activation until they are judged. ``changed`` is False when nothing needs writing. ``unapplied`` counts the
    messages at the end of the jobs with which nothing was done: the run had closed before them, or the host had
    ``enough`` for one activation. ``failed`` holds the signals whose handler failed, ``faults`` the updates whose
    validator did. ``dispatched`` (else None): so many messages were taken by phases and waits when the
    host had enough, and more are in the mailbox: the next activation goes on with them, also when nothing is delivered.
    ``carried`` (of a continue-as-new, else None) is what the next run begins with: ``signals``, attributes of
    SignalReceived of what is left in the mailbox, and ``cancel``, those of a CancelRequested that no unit has seen, or
    None. ``after`` of updates that are ``pending`` then counts those signals. ``refused``: signals that the permission
    of a handler kept out.
    """

    commands: list[Command] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    rejected: list[tuple[str, TemporalexError]] = field(default_factory=list)
    granted: list[str] = field(default_factory=list)
    notes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    pending: list[tuple[str, int]] = field(default_factory=list)
    carried: CarriedMessages | None = None
    refused: list[Refusal] = field(default_factory=list)
    failed: list[FailedSignal] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    unapplied: int = 0
    dispatched: int | None = None
    closed: str | None = None
    changed: bool = False
