"""A history as people read it: one row a thing, whatever events it took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from temporalex_django.core.history.events import CLOSING, SIGNAL_FAILED, HistoryEvent
from temporalex_django.core.process import RECORDED_AS
from temporalex_django.present.words import spelt, when, whole

#: Kinds that begin a thing which others with the same number end.
_BEGINS = {
    "ActivityScheduled": "activity",
    "TimerStarted": "timer",
    "ChildStarted": "child",
    "ExternalSignalSent": "external",
    "ExternalCancelSent": "external",
}
_ENDS = {
    "ActivityCompleted": "done", "ActivityFailed": "failed", "ActivityTimedOut": "timed_out",
    "ActivityCancelled": "cancelled", "TimerFired": "fired", "TimerCancelled": "cancelled", "ChildCompleted": "done",
    "ChildFailed": "failed", "ExternalFailed": "failed",
}  # fmt: skip
#: Kinds of events that say which activities and children there were, and how they ended.
DONE_AGAIN = frozenset({kind for kind in (*_BEGINS, *_ENDS) if kind.startswith(("Activity", "Child"))} | {*CLOSING})
_UPDATE_ENDS = {"UpdateCompleted": "done", "UpdateFailed": "failed"}
#: States of rows that another event may still end. A message to another run fails, or nothing more is heard of it.
_UNFINISHED = frozenset({"open", "sent"})
#: Kinds of rows that end with their run. Children may outlive it.
_OF_RUN = frozenset({"activity", "timer", "update"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRow:
    """A thing that happened, or is happening.

    ``kind``: run, activity, timer, child, external, update, signal, decision, cancel, patch. ``state``: open, sent (a
    message to another run), done, failed, timed_out, cancelled, dropped (the run ended first), fired, taken, unread (a
    signal that nobody took before the run ended). ``number`` is that of its first event, ``last`` that of its last one;
    ``activation`` the one that its first event belongs to, ``ended_in`` that of its end; ``seq`` the number of its
    command. ``due`` is a timer's, ``who`` sent a message, or ended it by hand; ``error`` says why it failed.
    """

    kind: str
    name: str
    state: str
    number: int
    last: int
    activation: int
    began: datetime
    ended_in: int | None = None
    ended: datetime | None = None
    seq: int | None = None
    attempts: int = 0
    due: datetime | None = None
    who: str = ""
    error: str = ""
    key: str = ""

    @property
    def finished(self) -> bool:
        """Whether no later event of the run changes it."""
        return self.state not in _UNFINISHED

    def text(self, *, now: datetime, titles: Mapping[str, str] | None = None) -> str:
        """The row as a line; ``titles`` are those of activities and classes, by name."""
        title = (titles or {}).get(self.name) or spelt(self.name)
        words: dict[str, Any] = {
            "title": whole(title), "name": title, "key": self.key, "who": self.who, "error": self.error,
            "began": when(self.began, now), "ended": "" if self.ended is None else when(self.ended, now),
            "due": "" if self.due is None else when(self.due, now), "count": self.attempts,
        }  # fmt: skip
        if self.kind == "patch":
            return _("Patch %(name)s") % {"name": self.name}
        text = _TEXTS.get(self.kind)
        return words["title"] if text is None else text(self, words)


def begins(event: HistoryEvent) -> bool:
    """Whether it is the first event of a row."""
    return event.kind not in _ENDS and event.kind not in _UPDATE_ENDS and event.kind != "ActivationStarted"


def ends(event: HistoryEvent) -> bool:
    """Whether it ends what an earlier event began."""
    return event.kind in _ENDS or event.kind in _UPDATE_ENDS


def about(event: HistoryEvent) -> tuple[str, Any]:
    """What tells the thing that it is about from the others of a run."""
    attributes = event.attributes if isinstance(event.attributes, Mapping) else {}
    if event.kind in _BEGINS or event.kind in _ENDS:
        return "seq", attributes.get("seq")
    if event.kind == "UpdateAccepted" or event.kind in _UPDATE_ENDS:
        return "update", attributes.get("id")
    return "event", event.number


def ending(unfinished: Iterable[TimelineRow]) -> set[str]:
    """Kinds of the events that end things like these."""
    kinds = {row.kind for row in unfinished}
    return {kind for kind in (*_ENDS, *_UPDATE_ENDS) if _kind_of(kind) in kinds}


def beginning(events: Iterable[HistoryEvent]) -> set[str]:
    """Kinds of the events that begin what these end."""
    kinds = {_kind_of(event.kind) for event in events if ends(event)}
    return {kind for kind in (*_BEGINS, "UpdateAccepted") if _kind_of(kind) in kinds}


def rows(events: Iterable[HistoryEvent]) -> list[TimelineRow]:
    """The rows of these events, in order of their first one.

    ``actions.timeline`` reads the events of a whole row: one whose beginning is not among them has no name.
    """
    found: dict[tuple[str, Any], TimelineRow] = {}
    for event in events:
        attributes = event.attributes if isinstance(event.attributes, Mapping) else {}
        if event.kind in _BEGINS:
            found["seq", attributes.get("seq")] = _begun(event, attributes)
        elif event.kind in _ENDS:
            _end(found, ("seq", attributes.get("seq")), event, _ENDS[event.kind], attributes)
        elif event.kind == "UpdateAccepted":
            found["update", attributes.get("id")] = _row(event, "update", str(attributes.get("name")), attributes)
        elif event.kind in _UPDATE_ENDS:
            _end(found, ("update", attributes.get("id")), event, _UPDATE_ENDS[event.kind], attributes)
        elif event.kind != "ActivationStarted":
            found["event", event.number] = _single(event, attributes)
        if event.kind in CLOSING:
            _close(found, event, attributes)
    return sorted(found.values(), key=lambda row: row.number)


def _close(found: dict[tuple[str, Any], TimelineRow], event: HistoryEvent, attributes: Mapping[str, Any]) -> None:
    """End what does not outlive the run."""
    for key, row in found.items():
        if row.state == "open" and row.kind == "run":
            found[key] = replace(row, state="done", ended=event.at)
        elif row.state == "open" and row.kind in _OF_RUN:
            found[key] = replace(row, state="dropped", ended=event.at)
    for name in attributes.get("never_consumed") or ():
        _unread(found, str(name))


def _unread(found: dict[tuple[str, Any], TimelineRow], name: str) -> None:
    """Nobody took one signal of that name: the last one of which that is not said yet, the first are taken first."""
    for key, row in reversed(found.items()):
        if (row.kind, row.name, row.state) == ("signal", name, "taken"):
            found[key] = replace(row, state="unread")
            return


def _row(event: HistoryEvent, kind: str, name: str, attributes: Mapping[str, Any], **more: Any) -> TimelineRow:
    given: dict[str, Any] = {"state": "open", **more}
    return TimelineRow(
        kind=kind, name=name, number=event.number, last=event.number, activation=event.activation, began=event.at,
        who=_who(attributes), **given,
    )  # fmt: skip


def _begun(event: HistoryEvent, attributes: Mapping[str, Any]) -> TimelineRow:
    kind = _BEGINS[event.kind]
    name = attributes.get("activity") or attributes.get("workflow") or attributes.get("name") or ""
    if kind == "timer":
        name = next((said for said in (attributes.get("then"), attributes.get("step")) if isinstance(said, str)), "")
    due = attributes.get("due")
    return _row(
        event, kind, str(name), attributes, seq=attributes.get("seq"), key=str(attributes.get("id") or ""),
        state="sent" if kind == "external" else "open",
        due=datetime.fromisoformat(due) if isinstance(due, str) else None,
    )  # fmt: skip


def _end(
    found: dict[tuple[str, Any], TimelineRow],
    key: tuple[str, Any],
    event: HistoryEvent,
    state: str,
    attributes: Mapping[str, Any],
) -> None:
    before = found.get(key)
    if before is None:  # it began before these events
        before = _row(event, _kind_of(event.kind), "", attributes, seq=attributes.get("seq"))
    attempts = attributes.get("attempts")
    found[key] = replace(
        before,
        state=state,
        last=event.number,
        ended=event.at,
        ended_in=event.activation,
        who=_name(attributes.get("by")) or before.who,
        attempts=attempts if isinstance(attempts, int) else before.attempts,
        error=_error(attributes) if state in ("failed", "timed_out") else "",
    )


def _kind_of(event_kind: str) -> str:
    return next(
        (name for name in ("activity", "timer", "child", "external", "update") if event_kind.lower().startswith(name)),
        "",
    )


def _single(event: HistoryEvent, attributes: Mapping[str, Any]) -> TimelineRow:
    """Something that is one event."""
    match event.kind:
        case "SignalReceived" if attributes.get("name") == RECORDED_AS:
            payload = attributes.get("payload")
            said = payload if isinstance(payload, Mapping) else {}
            row = _row(event, "decision", str(said.get("event") or ""), attributes, key=str(said.get("step") or ""))
            return replace(row, state="taken", who=str(said.get("by") or row.who))
        case "SignalReceived":
            return _row(event, "signal", str(attributes.get("name")), attributes, state="taken")
        case kind if kind == SIGNAL_FAILED:
            return _row(event, "signal", str(attributes.get("name")), {}, state="failed", error=_error(attributes))
        case "CancelRequested":
            return _row(event, "cancel", "", attributes, state="taken", error=str(attributes.get("reason") or ""))
        case "PatchMarked":
            return _row(event, "patch", str(attributes.get("id")), attributes, state="done")
        case "WorkflowStarted":
            key = str(attributes.get("version") or "")
            return _row(event, "run", str(attributes.get("workflow") or ""), attributes, state="open", key=key)
        case kind:
            state = kind.removeprefix("Workflow").lower()
            left = dict.fromkeys(map(str, attributes.get("never_consumed") or ()))
            return _row(event, "end", state, attributes, state=state, error=_error(attributes), key=", ".join(left))


def _who(attributes: Mapping[str, Any]) -> str:
    return _name(attributes.get("sender"))


def _name(person: object) -> str:
    if isinstance(person, Mapping):
        return str(person.get("name") or person.get("key") or "")
    return str(person or "")


def _error(attributes: Mapping[str, Any]) -> str:
    kind, message = attributes.get("type"), attributes.get("message")
    if message and kind:
        return f"{kind}: {message}"
    reason = attributes.get("reason")
    return str(message or kind or (reason if isinstance(reason, str) else "") or "")


# -- lines ------------------------------------------------------------------------------------------------------------


def _activity(row: TimelineRow, words: dict[str, Any]) -> str:
    if row.state in ("open", "cancelled", "dropped"):
        texts = {
            "open": _("%(title)s: since %(began)s"),
            "cancelled": _("%(title)s: %(began)s, cancelled %(ended)s"),
            "dropped": _("%(title)s: since %(began)s, dropped when the run ended %(ended)s"),
        }
        return texts[row.state] % words
    if row.who and row.state == "failed":
        return _("%(title)s: failed by %(who)s, %(began)s to %(ended)s: %(error)s") % words
    if row.who:
        return _("%(title)s: completed by %(who)s, %(began)s to %(ended)s") % words
    if row.state in ("failed", "timed_out"):
        return (
            ngettext(
                "%(title)s: failed after %(count)d attempt, %(began)s to %(ended)s: %(error)s",
                "%(title)s: failed after %(count)d attempts, %(began)s to %(ended)s: %(error)s",
                row.attempts,
            )
            % words
        )
    if row.attempts > 1:
        return _("%(title)s: %(count)d attempts, %(began)s to %(ended)s, done") % words
    return _("%(title)s: %(began)s to %(ended)s, done") % words


def _timer(row: TimelineRow, words: dict[str, Any]) -> str:
    if row.state == "fired" and row.who:
        return _("Timer: due %(due)s, fired by %(who)s %(ended)s") % words
    if row.state == "fired":
        return _("Timer: due %(due)s, fired %(ended)s") % words
    if row.state == "cancelled":
        return _("Timer: due %(due)s, cancelled %(ended)s") % words
    if row.state == "dropped":
        return _("Timer: due %(due)s, dropped when the run ended %(ended)s") % words
    return _("Timer: due %(due)s") % words


def _child(row: TimelineRow, words: dict[str, Any]) -> str:
    if row.state == "failed":
        return _("%(title)s %(key)s: failed %(ended)s: %(error)s") % words
    if row.state == "done":
        return _("%(title)s %(key)s: %(began)s to %(ended)s, done") % words
    return _("%(title)s %(key)s: since %(began)s") % words


def _external(row: TimelineRow, words: dict[str, Any]) -> str:
    if row.state == "failed":
        return _("Message %(name)s to %(key)s: not delivered: %(error)s") % words
    return _("Message %(name)s to %(key)s") % words


def _update(row: TimelineRow, words: dict[str, Any]) -> str:
    if row.state == "failed":
        return (
            _("Update %(name)s by %(who)s: failed: %(error)s") if row.who else _("Update %(name)s: failed: %(error)s")
        ) % words
    if row.state == "done":
        return (
            _("Update %(name)s by %(who)s: accepted, answered") if row.who else _("Update %(name)s: accepted, answered")
        ) % words
    if row.state == "dropped":
        return _("Update %(name)s: accepted, not answered when the run ended %(ended)s") % words
    return (_("Update %(name)s by %(who)s: accepted") if row.who else _("Update %(name)s: accepted")) % words


def _signal(row: TimelineRow, words: dict[str, Any]) -> str:
    if row.state == "failed":
        return _("Signal %(name)s: its handler failed, and the signal is kept: %(error)s") % words
    if row.state == "unread":
        return (
            _("Signal %(name)s from %(who)s: nobody took it before the run ended")
            if row.who
            else _("Signal %(name)s: nobody took it before the run ended")
        ) % words
    return (_("Signal %(name)s from %(who)s") if row.who else _("Signal %(name)s")) % words


def _decided(row: TimelineRow, words: dict[str, Any]) -> str:
    return (_("%(title)s by %(who)s") if row.who else _("%(title)s")) % words


def _cancel(row: TimelineRow, words: dict[str, Any]) -> str:
    return (_("Asked to cancel: %(error)s") if row.error else _("Asked to cancel")) % words


def _run(row: TimelineRow, words: dict[str, Any]) -> str:
    return (_("Run started, version %(key)s") if row.key else _("Run started")) % words


def _closed(row: TimelineRow, words: dict[str, Any]) -> str:
    if row.key and not row.error:
        return _("Run %(name)s; nobody took: %(key)s") % words
    return (_("Run %(name)s: %(error)s") if row.error else _("Run %(name)s")) % words


_TEXTS = {
    "activity": _activity, "timer": _timer, "child": _child, "external": _external, "update": _update,
    "signal": _signal, "decision": _decided, "cancel": _cancel, "run": _run, "end": _closed,
}  # fmt: skip
