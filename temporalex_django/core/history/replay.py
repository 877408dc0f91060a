"""Replay of a history, its trace, and histories as files."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from types import CodeType, FrameType
from typing import Any

from temporalex_django.core.executor import Executor
from temporalex_django.core.history import events as kinds
from temporalex_django.core.history.activation import Completion, Definition, RunInfo
from temporalex_django.core.history.events import ENGINE_VERSION, FORMAT, Command, HistoryEvent, ReplayDifference
from temporalex_django.core.messages.phase import HandlerFixed
from temporalex_django.core.messages.sender import headers_from
from temporalex_django.core.pending_commands import Journal
from temporalex_django.core.units.scheduler import Unit, suspended_parts
from temporalex_django.errors import NondeterminismError, PayloadError

# --- replay -----------------------------------------------------------------------------------------------------------
#
# Replays of a history against code, to see whether the code still issues the commands that the run issued.


def replay(
    definition: Definition,
    history: Sequence[HistoryEvent],
    *,
    run: Callable[[Callable[[], None]], None] | None = None,
    strict: bool = False,
) -> list[ReplayDifference]:
    """Run ``definition`` through ``history``, and return the inputs and durations that differ.

    An empty history fits any code. Each difference has the file and line of the code. With ``strict``, an input that
    differs raises an error. ``run(function)`` calls the function, for example within a time limit; None calls it
    directly.

    Raises ``NondeterminismError`` if code and history differ, with the file and line of the code in ``place``. Also
    raises any error of ``run``.
    """
    if not history:
        return []
    run, differences = run or _call_directly, list[ReplayDifference]()
    try:
        run(partial(_replay_history, Executor, definition, history, strict, differences))
    except NondeterminismError:
        # Replay again with a tracing executor, which is slower and knows the place.
        run(partial(_replay_history, TracingExecutor, definition, history, strict, differences))
        raise
    if differences:
        run(partial(_replay_history, TracingExecutor, definition, history, strict, differences))
    return differences


def _call_directly(call: Callable[[], None]) -> None:
    call()


def try_replay(
    definition: Definition,
    history: Sequence[HistoryEvent],
    *,
    run: Callable[[Callable[[], None]], None] | None = None,
    on_activation: Callable[[], None] | None = None,
) -> tuple[int, BaseException | None]:
    """Return ``(number of activations that could be replayed, error in the next one or None)``.

    ``run(function)`` calls the function, for example within a time limit. ``on_activation`` is called after each
    activation.
    """
    activation_count = 0

    def replay_steps() -> None:
        nonlocal activation_count
        for _ in executor.replay_in_steps(list(history)):
            activation_count += 1
            if on_activation is not None:
                on_activation()

    for skip_failed in (False, True):
        # A handler that was corrected asks for a second replay, which skips the failed handlers. See decision 46.
        activation_count, executor = 0, _new_executor(Executor, definition, history, skip_failed=skip_failed)
        try:
            (run or _call_directly)(replay_steps)
        except HandlerFixed:
            continue
        except Exception as exc:  # noqa: BLE001 - whatever the code raises, it does not fit
            return activation_count, exc
        finally:
            executor.evict()
        break
    return activation_count, None


def _replay_history(
    kind: type[Executor],
    definition: Definition,
    history: Sequence[HistoryEvent],
    strict: bool,  # noqa: FBT001 - called by `partial` alone
    differences: list[ReplayDifference],
) -> None:
    for skip_failed in (False, True):
        executor = _new_executor(kind, definition, history, strict=strict, skip_failed=skip_failed)
        try:
            executor.replay(list(history))
        except HandlerFixed:
            continue
        finally:
            differences[:] = executor.differences
            executor.evict()
        return


def _parse_time(text: str | None) -> datetime | None:
    if text is None:
        return None
    return datetime.fromisoformat(text)


def _new_executor(
    kind: type[Executor],
    definition: Definition,
    history: Sequence[HistoryEvent],
    *,
    strict: bool = False,
    skip_failed: bool = False,
) -> Executor:
    facts = history[0].attributes if history else {}
    info = RunInfo(
        workflow=facts.get("workflow", definition.name),
        id=facts.get("id", ""),
        run_id=facts.get("run_id", ""),
        version=facts.get("version", 1),
        attempt=facts.get("attempt", 1),
        parent=facts.get("parent"),
        scheduled_for=_parse_time(facts.get("scheduled_for")),
        headers=headers_from(facts),
    )
    return kind(definition, info, strict=strict, skip_failed=skip_failed)


# --- tracing ----------------------------------------------------------------------------------------------------------
#
# An executor that knows where in user code each command was issued. It serves reports and never runs workflows.


_PACKAGE_PATH = __file__.removesuffix("core/history/replay.py")
_LIBRARY = sysconfig.get_paths()["stdlib"]


class _TracingJournal(Journal):
    """A journal that records the place (``path:line``) of each command. ``current_place()`` returns it, or None."""

    __slots__ = ("_current_place", "places")

    def __init__(self, current_place: Callable[[], str | None]) -> None:
        super().__init__()
        self._current_place = current_place
        self.places: list[str | None] = []

    def begin(self, *, changed: bool) -> Completion:
        self.places = []
        return super().begin(changed=changed)

    def add(self, command: Command) -> None:
        self.places.append(self._current_place())
        super().add(command)


class TracingExecutor(Executor):
    """An executor whose ``place_of(index)`` returns the place (``path:line``) of a command of the activation."""

    def __init__(
        self, definition: Definition, info: RunInfo, *, strict: bool = False, skip_failed: bool = False
    ) -> None:
        self._tracing_journal = _TracingJournal(self._current_place)
        traced_definition = replace(definition, entry=self._start_coroutine)
        super().__init__(traced_definition, info, journal=self._tracing_journal, strict=strict, skip_failed=skip_failed)
        self._original_entry = definition.entry
        self._run_code: CodeType | None = None

    def _start_coroutine(self, args: Any) -> Any:
        coroutine = self._original_entry(args)
        self._run_code = coroutine.cr_code  # type: ignore[attr-defined] # run is an `async def`
        return coroutine

    def place_of(self, index: int | None) -> str | None:
        """Return the place (``path:line``) where command ``index`` was issued; for None, where the run is suspended."""
        return self._tracing_journal.places[index] if index is not None else self._suspended_place()

    def _current_place(self) -> str | None:
        """Return ``path:line`` of the innermost user code that runs, or where the unit or one that started it waits."""
        frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - the way that `traceback` and `logging` look, too
        while frame is not None and frame.f_code is not Executor._activate.__code__:  # noqa: SLF001 - one of ours
            if is_user_code(frame.f_code):
                return f"{frame.f_code.co_filename}:{frame.f_lineno}"
            frame = frame.f_back
        unit = self.scheduler.current
        while unit is not None:
            if place := _place_of_unit(unit):
                return place
            unit = unit.parent
        return self._suspended_place()

    def _suspended_place(self) -> str | None:
        """Return ``path:line`` where the oldest unit waits, else the first line of ``run``; None before the start."""
        if place := suspended_place(self):
            return place
        return f"{self._run_code.co_filename}:{self._run_code.co_firstlineno}" if self._run_code is not None else None


def suspended_place(executor: Executor) -> str | None:
    """Return ``path:line`` where the oldest unit of a run waits, or None if none waits in user code."""
    places = (_place_of_unit(unit) for unit in executor.scheduler.units.values())
    return next((place for place in places if place), None)


def _place_of_unit(unit: Unit) -> str | None:
    places = [f"{code.co_filename}:{line}" for code, line in _frames_of(unit.coroutine) if is_user_code(code)]
    return places[-1] if places else None


def _frames_of(coroutine: Any) -> Iterator[tuple[CodeType, int]]:
    for part in suspended_parts(coroutine):
        frame = next((f for name in ("cr_frame", "gi_frame", "ag_frame") if (f := getattr(part, name, None))), None)
        if frame is not None:
            yield frame.f_code, frame.f_lineno


def is_user_code(code: CodeType) -> bool:
    """Return True for code outside this package and the standard library."""
    path = code.co_filename
    if path.startswith("<"):
        return False
    # Installed packages may live below the directory of the standard library, but they count as user code here.
    return not path.startswith(_PACKAGE_PATH) and (not path.startswith(_LIBRARY) or "site-packages" in path)


# --- json file --------------------------------------------------------------------------------------------------------
#
# Histories as JSON text: exported from one database, replayed against code anywhere, kept in a repository.
#
# The text is one object: ``{"temporalex_history": format, "workflow", "id", "run_id", "events": [{"seq", "activation",
# "kind", "at", "attributes", "check"}]}``. ``check`` chains the events: it is eight hexadecimal digits of a hash over
# the previous check and this event. So a change, a gap or a missing end is found, with its place.


_HEADER = ("temporalex_history", "workflow", "id", "run_id", "events")
_EVENT = {"seq": int, "activation": int, "kind": str, "at": str, "attributes": dict, "check": str}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredHistory:
    """The history of one run, read from text. ``workflow`` is the name of its class, and ``id`` its business id."""

    workflow: str
    id: str
    run_id: str
    events: list[HistoryEvent]


def dump(events: Sequence[HistoryEvent]) -> str:
    """Return all events of one run as text. Its payloads are neither redacted nor encrypted."""
    start_attributes = events[0].attributes
    rows, check = [], ""
    for event in events:
        row = {
            "seq": event.number,
            "activation": event.activation,
            "kind": event.kind,
            "at": event.at.isoformat(),
            "attributes": event.attributes,
        }
        check = _next_checksum(check, row)
        rows.append(json.dumps({**row, "check": check}, ensure_ascii=False, allow_nan=False))
    head = {
        "temporalex_history": FORMAT,
        "workflow": start_attributes.get("workflow"),
        "id": start_attributes.get("id"),
        "run_id": start_attributes.get("run_id"),
        "length": len(rows),
    }
    start = json.dumps(head, ensure_ascii=False)[:-1]
    return start + ', "events": [\n  ' + ",\n  ".join(rows) + "\n]}\n"


def load(text: str | bytes, *, source: str = "the history") -> StoredHistory:
    """Read a text that ``dump`` wrote. ``source`` (a file name) begins every error message.

    Raises ``PayloadError``, with the number of the event, for a text that is not JSON, was cut off or changed, or is no
    history. The same goes for a newer format and for another engine number.
    """
    try:
        data = json.loads(text)
    except ValueError as exc:
        # Count the complete events, so that the message says where the text was cut off.
        event_count = len(
            re.findall(r'"check": "[0-9a-f]{8}"', text if isinstance(text, str) else text.decode(errors="replace"))
        )
        raise PayloadError(f"{source} is not complete JSON: it was cut off after event {event_count}: {exc}") from None
    if not isinstance(data, dict) or any(name not in data for name in _HEADER) or not isinstance(data["events"], list):
        raise PayloadError(
            f"{source} is not a history: it must be an object with {', '.join(_HEADER)}{_hint_for_temporal(data)}"
        )
    written = data["temporalex_history"]
    if not isinstance(written, int) or written > FORMAT:
        raise PayloadError(
            f"{source} has format {written!r}, but this version reads formats up to {FORMAT}: update temporalex_django "
            "(from event 1 on)"
        )
    events, check = [], ""
    for number, row in enumerate(data["events"], 1):
        events.append(_parse_event(row, number, source))
        check = _next_checksum(check, {name: row[name] for name in _EVENT if name != "check"})
        if row["check"] != check:
            raise PayloadError(
                f"{source}: event {number} differs from the export: it, or an event before it, was changed"
            )
    if not events or len(events) != data.get("length"):
        raise PayloadError(
            f"{source} has only {len(events)} of {data.get('length')} events: those from event {len(events) + 1} on "
            "are missing"
        )
    return _build_history(data, events, source)


def _hint_for_temporal(data: Any) -> str:
    """Return the end of the error for a history that a server of Temporal has written; else an empty string."""
    if not isinstance(data, dict) or "eventId" not in str(data.get("events")):
        return ""
    return "; replay a history of Temporal with the Replayer of its SDK and project_plugin()"


def _parse_event(row: Any, number: int, source: str) -> HistoryEvent:
    if not isinstance(row, dict):
        raise PayloadError(f"{source}: event {number} is {row!r}, not an object")
    for name, kind in _EVENT.items():
        if type(row.get(name)) is not kind:
            raise PayloadError(f"{source}: event {number} has no valid {name!r} ({kind.__name__} expected)")
    if row["seq"] != number:
        raise PayloadError(f"{source}: event {row['seq']} is in the place of event {number}")
    if row["kind"] not in kinds.KINDS:
        raise PayloadError(f"{source}: event {number} has the unknown kind {row['kind']!r}")
    try:
        at = datetime.fromisoformat(row["at"])
    except ValueError:
        raise PayloadError(f"{source}: event {number} has no valid 'at': {row['at']!r}") from None
    if at.tzinfo is None:
        raise PayloadError(f"{source}: event {number} has an 'at' without a time zone: {row['at']!r}")
    return HistoryEvent(row["seq"], row["activation"], row["kind"], at, row["attributes"])


def _build_history(data: dict[str, Any], events: list[HistoryEvent], source: str) -> StoredHistory:
    """Raise ``PayloadError`` if the text in ``data`` does not begin as a history does."""
    first = events[0]
    if first.kind != "WorkflowStarted":
        raise PayloadError(f"{source}: event 1 is {first.kind}, but a history begins with WorkflowStarted")
    engine = kinds.WORKFLOW_STARTED.read(first).get("engine", 1)
    if engine != ENGINE_VERSION:
        raise PayloadError(
            f"{source}: event 1 is from engine {engine}, but this is engine {ENGINE_VERSION}: read it with the version "
            "of temporalex_django that wrote it"
        )
    for name in ("workflow", "id", "run_id"):
        if data[name] != first.attributes.get(name):
            raise PayloadError(
                f"{source} has {name} {data[name]!r}, but event 1 has {first.attributes.get(name)!r}: it belongs to a "
                "different run"
            )
    return StoredHistory(workflow=data["workflow"], id=data["id"], run_id=data["run_id"], events=events)


def _next_checksum(before: str, row: dict[str, Any]) -> str:
    """Return the checksum of ``row``, which has none yet, chained to the checksum ``before``."""
    # Sorted and without spaces, so that a reformatted file has the same checksums.
    text = json.dumps(row, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(f"{before}{text}".encode()).hexdigest()[:8]
