"""The order in which the jobs of an activation reach the executor, and the signals that wait for another one."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Sequence
from itertools import accumulate
from typing import Final

from temporalex_django.core.history.events import DELIVERED, Job
from temporalex_django.core.messages.dispatcher import Dispatcher
from temporalex_django.core.typed_dicts import CarriedMessages
from temporalex_django.temporal import names
from temporalex_django.temporal.activation import Inbound

#: Most signals that one activation takes from a long inbox. By number and not by time, so that a replay takes as many.
MAX_SIGNALS: Final = 500


class TemporalInbox:
    """The messages of one run. ``signals`` are those that were too many for one activation and wait for another one."""

    def __init__(self) -> None:
        self.signals: deque[Job] = deque()
        self._signal_ids: set[str] = set()
        self._was_reset = False

    def prepare_repeated(
        self, inbound: Inbound, dispatcher: Dispatcher, *, replaying: bool
    ) -> tuple[tuple[str, int], ...]:
        """Prepare the messages that the server delivers again after a reset; return ``DeliveryRecord.order``.

        The SDK delivers them in their order, but in a replay it delivers the signals first. They come with the new
        seed, and wait for code that takes them (``Update.waits``). All updates before the first phase wait like that.
        ``dispatcher`` is that of the run.
        """
        is_behind_reset, order = inbound.seed is not None, inbound.record.order
        self._was_reset = self._was_reset or is_behind_reset
        if order:
            inbound.messages = _restore_order(inbound.messages, order)
        elif is_behind_reset and not replaying:
            order = _order_of(inbound.messages)
        for job in inbound.messages if self._was_reset else ():
            is_early = job.kind == "UpdateRequested" and not dispatcher.had_phase
            if job.kind != "SignalReceived" and (is_behind_reset or is_early):
                job.attributes["waits"] = True
        return order

    def order_jobs(
        self, inbound: Inbound, carried: CarriedMessages | None, *, timers: Collection[int], failed: Container[str]
    ) -> tuple[list[Job], list[int]]:
        """Return ``(jobs, skipped)``: the jobs of an activation in the order of the executor, and the skipped timers.

        ``skipped`` has the command numbers of timers that people let fire early. The SDK has messages before results.
        Here results come first, since they may open a phase, which takes the messages. ``carried`` are the messages of
        the previous run, or None. ``timers`` are the numbers of the timers that run, and ``failed`` the ids of signals
        whose handler has failed: such a signal is delivered again if it is sent again.
        """
        answers = [job for job in inbound.answers if not is_rest(job)]
        jobs = [job for job in answers if job.kind == DELIVERED]
        jobs += [job for job in answers if job.kind != DELIVERED]
        skips = self._skips(inbound, timers)
        jobs += skips
        if carried is not None and carried["cancel"] is not None:
            jobs.append(Job("CancelRequested", carried["cancel"]))
        if inbound.cancel is not None:
            jobs.append(inbound.cancel)
        if carried is not None:
            jobs += [Job("SignalReceived", dict(signal)) for signal in carried["signals"]]
            jobs += _waiting_jobs(carried)
        return jobs + self._take_messages(inbound, failed), [job.attributes["seq"] for job in skips]

    def _skips(self, inbound: Inbound, timers: Collection[int]) -> list[Job]:
        """Return a job for each timer that people let fire early (skip), without the timers that have fired by now."""
        fired = {job.attributes["seq"] for job in inbound.answers if job.kind == "TimerFired"}
        skips = {skip["seq"]: skip for skip in reversed(inbound.skips) if skip["seq"] in timers}
        return [Job("TimerFired", skip) for seq, skip in reversed(skips.items()) if seq not in fired]

    def _take_messages(self, inbound: Inbound, failed: Container[str]) -> list[Job]:
        """Return the messages of this activation: at most ``MAX_SIGNALS`` signals, and all others."""
        messages = [job for job in inbound.messages if self._is_new(job, failed)]
        if not self.signals and len(messages) <= MAX_SIGNALS:
            return messages
        self.signals.extend(job for job in messages if job.kind == "SignalReceived")
        signals = [self.signals.popleft() for _ in range(min(MAX_SIGNALS, len(self.signals)))]
        # An update must be answered in this activation, so it does not wait behind the other signals.
        return [*signals, *(job for job in messages if job.kind != "SignalReceived")]

    def _is_new(self, job: Job, failed: Container[str]) -> bool:
        """Return True unless the job is a signal with an id that was delivered before."""
        message_id = job.attributes.get("id") if job.kind == "SignalReceived" else None
        if message_id is None:
            return True
        is_new = message_id not in self._signal_ids or message_id in failed
        self._signal_ids.add(message_id)
        return is_new


def is_rest(job: Job) -> bool:
    """Return True for the timer behind which the rest of a long inbox, or of many calls, comes."""
    return bool(job.attributes["seq"] >= names.REST_TIMERS)


def _order_of(messages: Sequence[Job]) -> tuple[tuple[str, int], ...]:
    """Return ``DeliveryRecord.order`` of the messages that come again after a reset."""
    if len(messages) > MAX_SIGNALS:
        return ()
    counts = accumulate(job.kind == "SignalReceived" for job in messages)
    pairs = zip(messages, counts, strict=True)
    return tuple((job.attributes["id"], count) for job, count in pairs if job.kind != "SignalReceived")


def _restore_order(messages: Sequence[Job], order: Sequence[tuple[str, int]]) -> list[Job]:
    """Return the messages of a replay in the order that ``_order_of`` has recorded. Others follow them."""
    signals = [job for job in messages if job.kind == "SignalReceived"]
    others = {job.attributes["id"]: job for job in messages if job.kind != "SignalReceived"}
    restored: list[Job] = []
    start = 0
    for message_id, count in order:
        restored += signals[start:count]
        start = count
        if message_id in others:
            restored.append(others.pop(message_id))
    return [*restored, *signals[start:], *others.values()]


def _waiting_jobs(carried: CarriedMessages) -> list[Job]:
    """Return the jobs of updates and requests that wait since a reset of the previous run."""
    jobs = [Job(kind, dict(attributes)) for kind, attributes in carried.get("waiting", ())]
    for job in jobs:
        if job.attributes.get("after") == len(carried["signals"]):
            job.attributes["after"] = None  # it comes behind all of them
    return jobs
