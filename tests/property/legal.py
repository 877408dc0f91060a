"""Whether a history could be one at all: rules of its form, checked without the executor."""

from __future__ import annotations

from collections.abc import Sequence

from temporalex_django.core.history.events import (
    CLOSED_FROM_OUTSIDE,
    CLOSING,
    INPUTS,
    RESOLUTIONS,
    HistoryEvent,
    is_external_close,
)

_BEGINS = {
    "ActivityScheduled": {"ActivityCompleted", "ActivityFailed", "ActivityTimedOut", "ActivityCancelled"},
    "TimerStarted": {"TimerFired", "TimerCancelled"},
    "ChildStarted": {"ChildCompleted", "ChildFailed"},
    "ExternalSignalSent": {"ExternalFailed"},
    "ExternalCancelSent": {"ExternalFailed"},
}


def check(history: Sequence[HistoryEvent]) -> None:
    """Raise ``AssertionError`` naming the event that cannot be."""
    if not history:  # it begins later
        return
    if is_external_close(history[1].kind, history[1].attributes):  # before it had a turn
        assert [(e.number, e.activation) for e in history] == [(1, 1), (2, 1)]
        assert history[0].kind == "WorkflowStarted"
        return
    open_calls: dict[int, set[str]] = {}
    open_updates: set[str] = set()
    seen_updates: set[str] = set()
    numbers: set[int] = set()
    kept_back = any("max_pending" in e.attributes for e in history if e.kind == "ActivationStarted")
    signals = 0
    closed = False
    cancels = 0
    assert [e.number for e in history] == list(range(1, len(history) + 1))
    assert [e.kind for e in history[:2]] == ["WorkflowStarted", "ActivationStarted"]
    for before, event in zip([None, *history], history, strict=False):
        assert not closed, f"{event} after the end"
        if event.kind in CLOSING:
            closed = True
        if before is not None:
            same = event.activation == before.activation
            assert same or event.activation == before.activation + 1, event
            outside = event.kind in CLOSED_FROM_OUTSIDE
            assert event.at == before.at if same and not outside else event.at >= before.at, event
            assert same or event.kind == "ActivationStarted", event
            if same and event.kind in INPUTS:
                assert before.kind in INPUTS, f"{event} was delivered after an answer"
            if same and event.kind in RESOLUTIONS:
                assert before.kind in RESOLUTIONS | {"ActivationStarted"}, f"{event} is out of order"
        number = event.attributes.get("seq")
        if event.kind in _BEGINS:
            assert number not in numbers, f"{event}: that number was given before"
            assert kept_back or number == len(numbers) + 1, f"{event}: the last number was {len(numbers)}"
            numbers.add(number)
            open_calls[number] = _BEGINS[event.kind]
        elif number is not None:
            assert event.kind in open_calls.pop(number, ()), f"{event} ends nothing that is open"
        for delivered in event.attributes.get("delivered", ()) if event.kind == "ActivationStarted" else ():
            assert "ExternalFailed" in open_calls.pop(delivered, ()), event
        match event.kind:
            case "SignalReceived":
                signals += 1
            case "SignalFailed":
                assert 1 <= event.attributes["number"] <= signals, event
            case "CancelRequested":
                cancels += 1
                assert cancels == 1, event
            case "UpdateAccepted":
                assert event.attributes["id"] not in seen_updates, event
                assert event.attributes["after"] <= signals, event
                seen_updates.add(event.attributes["id"])
                open_updates.add(event.attributes["id"])
            case "UpdateCompleted" | "UpdateFailed":
                assert event.attributes["id"] in open_updates, event
                open_updates.remove(event.attributes["id"])
