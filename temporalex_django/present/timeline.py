"""The timeline: a history as people read it, with one row for each thing, however many events it has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from temporalex_django.core.history.events import CLOSING, KINDS, HistoryEvent, Thing, end_kinds_of, kinds_of
from temporalex_django.core.process import RECORDED_AS
from temporalex_django.present.formatting import capitalize, format_at, format_time, humanize_name, join_with_and
from temporalex_django.present.project_view import UnreadableRow
from temporalex_django.present.view_models import Diagnosis

#: Things whose events have the number of one command.
_NUMBERED: tuple[Thing, ...] = ("activity", "timer", "child", "external")
_ENDS = end_kinds_of(*_NUMBERED)
#: Kinds of events that begin a thing, which a later event with the same command number ends.
_STARTS = kinds_of(*_NUMBERED) - _ENDS
_UPDATE_ENDS = end_kinds_of("update")
_UPDATE_STARTS = kinds_of("update") - _UPDATE_ENDS
#: Kinds of events that say which activities and children there were, and how they ended.
REPEATED_KINDS = kinds_of("activity", "child") | {*CLOSING}
#: Kinds of events with which no row begins.
LATER_KINDS = _ENDS | _UPDATE_ENDS | {"ActivationStarted"}
#: States of rows that another event may still end. A message to another run gets an event only if it fails.
_UNFINISHED = frozenset({"open", "sent"})
#: Kinds of rows that end with their run. Children may outlive it.
_RUN_BOUND_KINDS = frozenset({"activity", "timer", "update"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRow:
    """A row of the timeline: an activity, a message or another thing that happened in a run, or is happening.

    - ``kind``: run, activity, timer, child, external (a message to another run), update, signal, decision, cancel,
      patch or end.
    - ``state``: open, sent (a message to another run), done, failed, timed_out, cancelled, dropped (the run ended
      before it), fired (a timer), taken (a message that the run received), or unread (a signal that no code consumed
      before the run ended). For an end it is the status of the run.
    - ``number`` and ``last``: the numbers of its first and its last event.
    - ``activation`` and ``ended_in``: the numbers of the activations of its first event and of its end.
    - ``seq``: the number of the command that created it.
    - ``due``: the due time of a timer.
    - ``attempt_began``: the time at which the last attempt of an activity began, if its end says so.
    - ``who``: the person who sent the message, or who ended the activity or timer by hand.
    - ``error``: the text of the error with which it failed.
    - ``key``: the id of a child or of another run, the version of a run, the step of a decision, or the unread signals
      of an end.
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
    attempt_began: datetime | None = None
    who: str = ""
    error: str = ""
    key: str = ""

    @property
    def is_finished(self) -> bool:
        """True if no later event of the run can change the row."""
        return self.state not in _UNFINISHED

    def text(self, *, now: datetime, titles: Mapping[str, str] | None = None) -> str:
        """Return the row as one line of text; times are written as people say them at ``now``.

        ``titles`` has the titles of activities and workflow classes by their names. Without a title, the name is used.
        """
        title = (titles or {}).get(self.name) or humanize_name(self.name)
        words: dict[str, Any] = {
            "title": capitalize(title), "name": title, "key": self.key, "who": self.who, "error": self.error,
            "began": format_time(self.began, now), "ended": "", "at": "", "due": "",
            "count": self.attempts,
        }  # fmt: skip
        if self.ended is not None:
            words |= {"ended": format_time(self.ended, now), "at": format_at(self.ended, now)}
        if self.due is not None:
            words["due"] = format_time(self.due, now)
        if self.kind == "patch":
            return _("Patch %(name)s") % {"name": self.name}
        text = _TEXTS.get(self.kind)
        if text is None:
            return capitalize(title)
        return text(self, words)


def is_first_event(event: HistoryEvent) -> bool:
    """Return True if the event is the first one of a row of the timeline."""
    return event.kind not in LATER_KINDS


def is_end_event(event: HistoryEvent) -> bool:
    """Return True if a row of the timeline, which an earlier event began, ends with this event."""
    return event.kind in _ENDS or event.kind in _UPDATE_ENDS


def _attributes_of(event: HistoryEvent) -> Mapping[str, Any]:
    """Return the attributes of an event; none if they are redacted or cannot be read."""
    if isinstance(event.attributes, Mapping):
        return event.attributes
    return {}


def row_key(event: HistoryEvent) -> tuple[str, Any]:
    """Return a key that the events of one row of the timeline share, and no other event of the run has."""
    attributes = _attributes_of(event)
    if event.kind in _STARTS or event.kind in _ENDS:
        return "seq", attributes.get("seq")
    if event.kind in _UPDATE_STARTS or event.kind in _UPDATE_ENDS:
        return "update", attributes.get("id")
    return "event", event.number


def end_kinds(unfinished: Iterable[TimelineRow]) -> set[str]:
    """Return the kinds of the events that can end these rows of the timeline, to find the events in a history."""
    things = {row.kind for row in unfinished}
    return {kind for kind in _ENDS | _UPDATE_ENDS if KINDS[kind].thing in things}


def build_rows(events: Iterable[HistoryEvent]) -> list[TimelineRow]:
    """Return the rows of the timeline for these events, in the order of the first events of the rows.

    The events must be in their order. A row whose first event is not among them has no name;
    ``operations.read.timeline`` reads all events of a row.
    """
    rows_by_key: dict[tuple[str, Any], TimelineRow] = {}
    for event in events:
        attributes = _attributes_of(event)
        if event.kind in _STARTS:
            rows_by_key["seq", attributes.get("seq")] = _opening_row(event, attributes)
        elif event.kind in _ENDS:
            _end_row(rows_by_key, ("seq", attributes.get("seq")), event, attributes)
        elif event.kind in _UPDATE_STARTS:
            rows_by_key["update", attributes.get("id")] = _new_row(
                event, "update", str(attributes.get("name")), attributes
            )
        elif event.kind in _UPDATE_ENDS:
            _end_row(rows_by_key, ("update", attributes.get("id")), event, attributes)
        elif event.kind == "ActivationStarted":
            if "copied" in attributes:
                _resume_rows(rows_by_key, event)
        else:
            rows_by_key["event", event.number] = _single_event_row(event, attributes)
        # The closing event has a row of its own, and ends the rows of what cannot outlive the run.
        if event.kind in CLOSING:
            _close_rows(rows_by_key, event, attributes)
    return sorted(rows_by_key.values(), key=lambda row: row.number)


def _resume_rows(rows_by_key: dict[tuple[str, Any], TimelineRow], event: HistoryEvent) -> None:
    """Let copied open activities begin at ``event``: a reset or fork schedules them again."""
    for key, row in rows_by_key.items():
        if row.state == "open" and row.kind == "activity":
            rows_by_key[key] = replace(row, began=event.at)


def _close_rows(
    rows_by_key: dict[tuple[str, Any], TimelineRow], event: HistoryEvent, attributes: Mapping[str, Any]
) -> None:
    """End the open rows at ``event``, which closes the run, and mark unread signals."""
    for key, row in rows_by_key.items():
        if row.state == "open" and row.kind == "run":
            rows_by_key[key] = replace(row, state="done", ended=event.at)
        # Nothing of it was cancelled by code, so its end is not in the history.
        elif row.state == "open" and row.kind in _RUN_BOUND_KINDS:
            rows_by_key[key] = replace(row, state="dropped", ended=event.at)
    for name in attributes.get("never_consumed") or ():
        _mark_unread(rows_by_key, str(name))


def _mark_unread(rows_by_key: dict[tuple[str, Any], TimelineRow], name: str) -> None:
    """Mark the last unmarked signal of the name: code consumes signals in order, so the last ones are unread."""
    for key, row in reversed(rows_by_key.items()):
        if (row.kind, row.name, row.state) == ("signal", name, "taken"):
            rows_by_key[key] = replace(row, state="unread")
            return


def _new_row(event: HistoryEvent, kind: str, name: str, attributes: Mapping[str, Any], **fields: Any) -> TimelineRow:
    """Return the row that begins with ``event``; its state is "open" by default."""
    row_fields: dict[str, Any] = {"state": "open", **fields}
    return TimelineRow(
        kind=kind, name=name, number=event.number, last=event.number, activation=event.activation, began=event.at,
        who=_sender_name(attributes), **row_fields,
    )  # fmt: skip


def _opening_row(event: HistoryEvent, attributes: Mapping[str, Any]) -> TimelineRow:
    """Return the row of an activity, timer, child or message to another run."""
    kind = KINDS[event.kind].thing or ""
    name = attributes.get("activity") or attributes.get("workflow") or attributes.get("name") or ""
    if kind == "timer":
        # A timer has no name: what follows it, or the step that waits, describes it better than its number.
        name = next((text for text in (attributes.get("then"), attributes.get("step")) if isinstance(text, str)), "")
    due = attributes.get("due")
    return _new_row(
        event, kind, str(name), attributes, seq=attributes.get("seq"), key=str(attributes.get("id") or ""),
        state="sent" if kind == "external" else "open", due=_parse_time(due),
    )  # fmt: skip


def _parse_time(text: object) -> datetime | None:
    """Return the time of an ISO text, or None for anything else."""
    return datetime.fromisoformat(text) if isinstance(text, str) else None


def _end_row(
    rows_by_key: dict[tuple[str, Any], TimelineRow],
    key: tuple[str, Any],
    event: HistoryEvent,
    attributes: Mapping[str, Any],
) -> None:
    """End a row, or add one if its first event is missing."""
    event_kind = KINDS[event.kind]
    state = event_kind.ends_as or ""
    earlier_row = rows_by_key.get(key)
    if earlier_row is None:  # its first event is not among these
        earlier_row = _new_row(event, event_kind.thing or "", "", attributes, seq=attributes.get("seq"))
    attempts = attributes.get("attempts")
    rows_by_key[key] = replace(
        earlier_row,
        state=state,
        last=event.number,
        ended=event.at,
        ended_in=event.activation,
        who=_person_name(attributes.get("by")) or earlier_row.who,
        attempts=attempts if isinstance(attempts, int) else earlier_row.attempts,
        attempt_began=_parse_time(attributes.get("begin")),
        error=_error_text(attributes) if state in ("failed", "timed_out") else "",
    )


def _single_event_row(event: HistoryEvent, attributes: Mapping[str, Any]) -> TimelineRow:
    """Return the row of an event that neither begins nor ends another row, such as a signal."""
    match event.kind:
        # A resume or a decision of a human task is recorded as a signal that no code can send.
        case "SignalReceived" if attributes.get("name") == RECORDED_AS:
            payload = attributes.get("payload")
            decision = payload if isinstance(payload, Mapping) else {}
            row = _new_row(
                event, "decision", str(decision.get("event") or ""), attributes, key=str(decision.get("step") or "")
            )
            return replace(row, state="taken", who=str(decision.get("by") or row.who))
        case "SignalReceived":
            return _new_row(event, "signal", str(attributes.get("name")), attributes, state="taken")
        case "SignalFailed":
            return _new_row(
                event, "signal", str(attributes.get("name")), {}, state="failed", error=_error_text(attributes)
            )
        case "CancelRequested":
            return _new_row(event, "cancel", "", attributes, state="taken", error=str(attributes.get("reason") or ""))
        case "PatchMarked":
            return _new_row(event, "patch", str(attributes.get("id")), attributes, state="done")
        case "WorkflowStarted":
            key = str(attributes.get("version") or "")
            return _new_row(event, "run", str(attributes.get("workflow") or ""), attributes, state="open", key=key)
        case kind:
            state = kind.removeprefix("Workflow").lower()
            # The event names each unread signal once for every message: people want each name once.
            unread_names = dict.fromkeys(map(str, attributes.get("never_consumed") or ()))
            return _new_row(
                event, "end", state, attributes, state=state, error=_error_text(attributes), key=", ".join(unread_names)
            )


def _sender_name(attributes: Mapping[str, Any]) -> str:
    return _person_name(attributes.get("sender"))


def _person_name(person: object) -> str:
    if isinstance(person, Mapping):
        return str(person.get("name") or person.get("key") or "")
    return str(person or "")


def _error_text(attributes: Mapping[str, Any]) -> str:
    """Return the text of the error or the reason; empty if there is none."""
    kind, message = attributes.get("type"), attributes.get("message")
    if message and kind:
        return f"{kind}: {message}"
    reason = attributes.get("reason")
    return str(message or kind or (reason if isinstance(reason, str) else "") or "")


# -- lines ------------------------------------------------------------------------------------------------------------


def _activity_text(row: TimelineRow, words: dict[str, Any]) -> str:
    if row.state in ("open", "cancelled", "dropped"):
        texts = {
            "open": _("%(title)s: since %(began)s"),
            "cancelled": _("%(title)s: since %(began)s, cancelled %(at)s"),
            "dropped": _("%(title)s: since %(began)s, dropped when the run closed %(at)s"),
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
        return _("%(title)s: %(count)d attempts, %(began)s to %(ended)s, succeeded") % words
    return _("%(title)s: %(began)s to %(ended)s, succeeded") % words


def _timer_text(row: TimelineRow, words: dict[str, Any]) -> str:
    if row.state == "fired" and row.who:
        return _("Timer: due %(due)s, fired by %(who)s %(at)s") % words
    if row.state == "fired":
        return _("Timer: due %(due)s, fired %(at)s") % words
    if row.state == "cancelled":
        return _("Timer: due %(due)s, cancelled %(at)s") % words
    if row.state == "dropped":
        return _("Timer: due %(due)s, dropped when the run closed %(at)s") % words
    return _("Timer: due %(due)s") % words


def _child_text(row: TimelineRow, words: dict[str, Any]) -> str:
    if row.state == "failed":
        return _("%(title)s %(key)s: failed %(at)s: %(error)s") % words
    if row.state == "done":
        return _("%(title)s %(key)s: %(began)s to %(ended)s, completed") % words
    return _("%(title)s %(key)s: since %(began)s") % words


def _external_text(row: TimelineRow, words: dict[str, Any]) -> str:
    if row.state == "failed":
        return _("Message %(name)s to %(key)s: not delivered: %(error)s") % words
    return _("Message %(name)s to %(key)s") % words


def _update_text(row: TimelineRow, words: dict[str, Any]) -> str:
    if row.state == "failed":
        if row.who:
            return _("Update %(name)s by %(who)s: failed: %(error)s") % words
        return _("Update %(name)s: failed: %(error)s") % words
    if row.state == "done":
        if row.who:
            return _("Update %(name)s by %(who)s: accepted, answered") % words
        return _("Update %(name)s: accepted, answered") % words
    if row.state == "dropped":
        return _("Update %(name)s: accepted, not answered when the run closed %(at)s") % words
    if row.who:
        return _("Update %(name)s by %(who)s: accepted") % words
    return _("Update %(name)s: accepted") % words


def _signal_text(row: TimelineRow, words: dict[str, Any]) -> str:
    if row.state == "failed":
        return _("Signal %(name)s: its handler failed (%(error)s); the signal is kept") % words
    if row.state == "unread":
        if row.who:
            return _("Signal %(name)s from %(who)s: never consumed; the run closed first") % words
        return _("Signal %(name)s: never consumed; the run closed first") % words
    if row.who:
        return _("Signal %(name)s from %(who)s") % words
    return _("Signal %(name)s") % words


def _decision_text(row: TimelineRow, words: dict[str, Any]) -> str:
    if row.who:
        return _("%(title)s by %(who)s") % words
    return _("%(title)s") % words


def _cancel_text(row: TimelineRow, words: dict[str, Any]) -> str:
    if row.error:
        return _("Cancel requested: %(error)s") % words
    return _("Cancel requested") % words


def _run_text(row: TimelineRow, words: dict[str, Any]) -> str:
    if row.key:
        return _("Run started, version %(key)s") % words
    return _("Run started") % words


def _end_text(row: TimelineRow, words: dict[str, Any]) -> str:
    if row.key and not row.error:
        return _("Run %(name)s; never consumed: %(key)s") % words
    if row.error:
        return _("Run %(name)s: %(error)s") % words
    return _("Run %(name)s") % words


_TEXTS = {
    "activity": _activity_text, "timer": _timer_text, "child": _child_text, "external": _external_text, "update": _update_text,
    "signal": _signal_text, "decision": _decision_text, "cancel": _cancel_text, "run": _run_text, "end": _end_text,
}  # fmt: skip


# --- unreadable rows --------------------------------------------------------------------------------------------------
#
# The diagnoses of rows that no process can read, each with its repair.


#: Code of the findings about rows that cannot be read.
UNREADABLE_ROW: Final = "unreadable_row"


def unreadable_diagnoses(rows: Iterable[UnreadableRow]) -> Iterator[Diagnosis]:
    """Yield an error for each of the rows. It names the table, the row and the columns, but nothing of their values."""
    for row in rows:
        words = {
            "table": row.table,
            "columns": join_with_and(row.columns),
            "sets": ", ".join(f"{column} = …" for column in row.columns),
            "condition": row.condition,
            "id": row.id,
        }
        text = _("A row of %(table)s cannot be read: the value of %(columns)s is not one that this package writes.")
        step = _("Correct it: UPDATE %(table)s SET %(sets)s WHERE %(condition)s")
        if row.id:
            text = _(
                "A row of the run %(id)s in %(table)s cannot be read: the value of %(columns)s is not one that this package writes."
            )
            step = _(
                "Correct it: UPDATE %(table)s SET %(sets)s WHERE %(condition)s; a blocked run then continues by itself. Or terminate and delete the run."
            )
        yield Diagnosis(
            severity="error",
            code=UNREADABLE_ROW,
            text=text % words,
            next_step=step % words,
            evidence=[f"{row.table}: {row.condition}"],
            about=row.table,
        )
