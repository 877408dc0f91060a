"""The border of the core: hosts give it activations, and it returns completions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from temporalex_django.core.history.attributes import SignalFailedAttributes
from temporalex_django.core.history.events import Command, Job
from temporalex_django.core.messages.headers import Headers
from temporalex_django.core.messages.sender import Sender
from temporalex_django.core.typed_dicts import CarriedMessages
from temporalex_django.errors import TemporalexError


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The parts of a workflow class that the executor needs.

    ``entry(args)`` returns the coroutine of a new run. ``args_type`` is the annotation to which ``args`` is decoded.
    ``version`` is the version of the class that a new run gets.
    """

    name: str
    version: int
    entry: Callable[[Any], Awaitable[Any]]
    args_type: Any = Any
    args_default: Any = None  # the input of a run that is started without one
    result_type: Any = Any  # the annotation to which readers of the result decode it
    unexpected_error: Literal["fail", "block"] | None = None  # None: the setting of the host
    signals: frozenset[str] | None = None  # names that the class declares; None: it declares none and takes any
    tags: tuple[str, ...] | None = None  # tags of its activities, for searches; None if it has none
    metadata: Mapping[str, Any] | None = None
    stored: Mapping[str, type] = field(default_factory=dict)  # fields of the published state that SQL may read
    search_attributes: Mapping[str, Any] = field(default_factory=dict)  # their types, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """Facts of a run that never change while it is open.

    ``workflow`` is the name of its class, ``id`` its business id, and ``run_id`` its UUID as text. ``attempt`` is its
    number in its chain, from 1. ``parent`` is the id of the run that started it as a child, or None. ``scheduled_for``
    is the time for which a schedule started the chain, or None. ``headers`` are the headers of its start.
    """

    workflow: str
    id: str
    run_id: str
    version: int
    attempt: int = 1
    parent: str | None = None
    scheduled_for: datetime | None = None
    headers: Headers | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRecord:
    """The facts about the messages of an activation that a replay must know and that their events do not show.

    A completion has the record of its activation. The host keeps it, and passes it with the activation in a replay.

    - ``refused``: the numbers of buffered signals that a phase refused.
    - ``refused_arrivals``: the positions of signals that were refused on arrival, from 1, among the signals that the
      activation delivered. Carried signals do not count. Hosts that store the history in events do not need them,
      because such a signal has no event and is not delivered again.
    - ``failed``: the attributes of ``SignalFailed`` of each signal whose handler failed, by its number.
    - ``dispatched``: the number of messages taken from the mailbox before the host had enough; None if it never had.
      The next activation continues with the others, even if nothing is delivered.
    """

    refused: tuple[int, ...] = ()
    refused_arrivals: tuple[int, ...] = ()
    failed: Mapping[int, SignalFailedAttributes] = field(default_factory=dict)
    dispatched: int | None = None

    def to_data(self) -> dict[str, Any]:
        """Return the record as JSON data, without what is empty."""
        data: dict[str, Any] = self.stamp()
        if self.refused_arrivals:
            data["refused_arrivals"] = list(self.refused_arrivals)
        if self.failed:
            data["failed"] = list(self.failed.values())
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> DeliveryRecord:
        """Return the record that ``to_data`` has written as ``data``."""
        return cls(
            refused=tuple(data.get("refused", ())),
            refused_arrivals=tuple(data.get("refused_arrivals", ())),
            failed={failure["number"]: failure for failure in data.get("failed", ())},
            dispatched=data.get("dispatched"),
        )

    def stamp(self) -> dict[str, Any]:
        """Return the record as attributes of the event ``ActivationStarted``.

        Failed signals are left out, because each has an event ``SignalFailed``.
        """
        data: dict[str, Any] = {}
        if self.refused:
            data["refused"] = list(self.refused)
        if self.dispatched is not None:
            data["dispatched"] = self.dispatched
        return data


#: The record of an activation about which nothing must be recorded, as most are.
NO_DELIVERY: Final = DeliveryRecord()


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """Jobs that are delivered together and answered together.

    - ``now``: the time that ``api.now()`` returns throughout.
    - ``jobs``: in the order of delivery: results, a cancel request, messages.
    - ``start`` (first activation only): ``{"args", "seed"}``, with ``snapshot`` for a process that was moved. A run
      that continues another one has ``carried``, the number of its first signals that are in its mailbox when it
      begins. ``search_attributes`` is there if the run has any.
    - ``history_length``: the number of events before this activation.
    - ``suggests_continue_as_new``: True if the history is so long that the run should continue as new. The host decides
      that, and says the same in a replay.
    - ``seed``: the new seed of the random generator after a reset; else None.
    - ``replaying``: True if the activation was executed before. It then only repeats what it did: patches answer as the
      history says (see ``Executor.expect_markers``), nobody is judged, and nothing is logged.
    - ``copied`` (replay only): the mark behind a part that was copied from another run, see ``prefix.build_copy_mark``.
      Nothing is delivered then.
    - ``delivery`` (replay only): the record that its completion had.

    For hosts of other packages, ``consumes_all`` says that the host cannot deliver a message again. What comes behind a
    continue-as-new then goes to the next run (``Completion.carried``).

    Two limits exist for such hosts, and are recorded with the activation. ``admit_updates`` accepts an
    update behind a busy handler at once and queues it. ``max_pending`` is the largest number of unresolved calls
    (activities, children, external messages). Further calls are deferred, in their order.
    """

    now: datetime
    jobs: tuple[Job, ...] = ()
    start: Mapping[str, Any] | None = None
    history_length: int = 0
    suggests_continue_as_new: bool = False
    seed: int | None = None
    replaying: bool = False
    copied: Mapping[str, Any] | None = None
    admit_updates: bool = False
    max_pending: int | None = None
    consumes_all: bool = False
    delivery: DeliveryRecord = NO_DELIVERY


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedSignal:
    """A signal whose handler failed, or whose payload does not fit the annotation of the handler.

    - ``number`` is its position among the signals of the run, from 1.
    - ``id`` is the id from its sender, or ``<run id>:<number>``.
    - ``failure`` is ``{"type", "message"}``.
    - ``untouched`` is True if the handler had left nothing behind when it failed.
    """

    number: int
    id: str
    name: str
    payload: Any
    sender: Sender | None
    failure: dict[str, Any]
    untouched: bool
    headers: Headers | None = None

    def event_attributes(self) -> dict[str, Any]:
        """Return the attributes of the event ``SignalFailed``.

        They leave out the payload, which ``SignalReceived`` has.
        """
        return {"number": self.number, "id": self.id, "name": self.name, "untouched": self.untouched, **self.failure}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An update whose validator raised because of a bug, so that it is neither accepted nor rejected.

    ``error`` is the exception. The update stays unanswered.
    """

    update_id: str
    name: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A signal whose sender lacks the permission that its handler requires.

    ``job`` is the delivered job, which must leave no trace in the history, and ``arrival`` its position in
    ``DeliveryRecord.refused_arrivals``. Both are None if the signal came before the phase was open. Then the history
    contains the signal, and has its ``number``.
    """

    name: str
    sender: Sender
    permission: str
    job: Job | None = None
    arrival: int | None = None
    number: int | None = None


@dataclass(slots=True)
class Completion:
    """The answer to an activation.

    - ``jobs``: the inputs that took effect and belong in the history. A late result of a cancelled wait is not one of
      them.
    - ``rejected``: pairs of update id and error, of which nothing is written. They include the updates and requests
      that came behind the close of the run, unless the next run takes them from the inbox.
    - ``granted``: the ids of requests that a process accepted.
    - ``notes``: names and facts of the notices of a process for listeners.
    - ``pending``: pairs ``(update id, after)`` of updates that wait behind a busy handler. The host delivers them again
      with that ``after`` in each later activation until they are judged.
    - ``carried`` (only after a continue-as-new): the messages with which the next run begins. ``signals`` has the
      attributes of ``SignalReceived`` for what is left in the mailbox, and with ``consumes_all`` for what came behind
      the close. ``cancel`` has those of a ``CancelRequested`` that no unit has noticed, or None. The ``after`` of
      pending updates then counts the signals of the mailbox.
    - ``refused``: signals that the permission of a handler kept out.
    - ``failed``: signals whose handler failed; empty in a replay. ``faults``: updates whose validator failed.
    - ``unapplied``: the number of messages at the end of the jobs that were not applied, because the run had closed or
      the host had enough for one activation.
    - ``delivery``: what a replay must know about the messages. In a replay it is that of the activation.
    - ``changed``: False if nothing needs to be written.
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
    delivery: DeliveryRecord = NO_DELIVERY
    closed: str | None = None
    changed: bool = False
