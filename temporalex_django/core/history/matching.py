"""The comparison of commands with the history: does the code still do what the run did? See decision 16.

It compares kind, command number and name, in order. A difference in these is nondeterminism. Differences of inputs and
durations are reported separately; see ``inputs``. Results, options and closing events without a command are not
compared.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from functools import partial
from typing import Any

from temporalex_django.core import aliases
from temporalex_django.core.history import kinds
from temporalex_django.core.history.events import Command, HistoryEvent
from temporalex_django.core.history.inputs import Reader, ReplayDifference, input_difference
from temporalex_django.core.history.kinds import KINDS
from temporalex_django.errors import NondeterminismError, PayloadError


def check_commands(
    recorded: Sequence[HistoryEvent],
    produced: Sequence[Command],
    *,
    run: str,
    place_of: Callable[[int | None], str | None],
    readers: MutableMapping[int, Reader],
) -> list[ReplayDifference]:
    """Compare recorded events with produced commands, and return the inputs and durations that differ.

    Raises ``NondeterminismError`` if kind, number or name differ. A deprecated marker that the code does not produce
    any more is no difference.

    - ``run`` names the run in errors.
    - ``place_of(index)`` returns the place where the code issued that command, or None. For the index None it returns
      the place where the code is suspended.
    - ``readers`` read inputs as the present code does, by the number of the command; used ones are removed.
    """
    index = 0
    differences: list[ReplayDifference] = []
    for event in recorded:
        command = produced[index] if index < len(produced) else None
        if command is not None and _matches(event, command):
            if KINDS[event.kind].has_input:
                input_change = input_difference(
                    event,
                    command,
                    command_text=_describe(command.event_kind, command.event_attributes()),
                    reader=readers.pop(command.seq or 0, None),
                    place=partial(place_of, index),
                )
                differences += [] if input_change is None else [input_change]
            index += 1
        # The index stays: the same command is compared with the next event.
        elif event.kind != "PatchMarked" or not kinds.PATCH_MARKED.read(event).get("deprecated"):
            raise _mismatch_error(run, event, command, place_of(None if command is None else index))
    if index < len(produced):
        raise _mismatch_error(run, None, produced[index], place_of(index))
    return differences


def input_error(run: str, change: ReplayDifference) -> NondeterminismError:
    """Return the error for an input that differs, for callers that treat a difference as an error.

    ``run`` names the run in the message.
    """
    at = f" ({change.place})" if change.place is not None else ""
    return NondeterminismError(
        f"{run}: the input of the code differs from the history at history event {change.event}{at}: "
        f"{change.command}, {change.path} differs. Does it come from iterating over a set, from hash() or id()? "
        "Sort it, or draw it from api. If you want the change, give new fields and parameters defaults, or keep the old "
        "input for old runs with api.patched()",
        recorded=change.command,
        produced=f"{change.command}, with a different {change.path}",
        place=change.place,
        event=change.event,
    )


def _matches(event: HistoryEvent, command: Command) -> bool:
    """Return True if event and command have the same kind, number and name."""
    if event.kind != command.event_kind or event.attributes.get("seq") != command.seq:
        return False
    name = KINDS[event.kind].name_attribute
    return name is None or aliases.is_same_name(name, event.attributes.get(name), command.attributes.get(name))


def _mismatch_error(
    run: str, event: HistoryEvent | None, command: Command | None, place: str | None
) -> NondeterminismError:
    """Return the error for an event and a command that do not match. One of them is None if it is missing.

    ``run`` names the run in the message, and ``place`` is the file and line of the code, if it is known.
    """
    recorded = None if event is None else _describe(event.kind, event.attributes)
    produced = None if command is None else _describe(command.event_kind, command.event_attributes())
    seq = command.seq if command is not None else None
    if event is not None:
        seq = event.attributes.get("seq") if event.attributes.get("seq") is not None else event.number
    at = f" at history event {event.number}" if event is not None else ""
    at += f" ({place})" if place is not None else ""
    return NondeterminismError(
        f"{run}: the code does not match the history{at}: recorded {recorded or 'nothing'}, produced "
        f"{produced or 'nothing'}{_payload_error_text(command)}. Restore the old code, or keep the old path for old "
        f"runs with api.patched(){_alias_advice(event, command)}",
        seq=seq,
        recorded=recorded or "nothing",
        produced=produced or "nothing",
        place=place,
        event=None if event is None else event.number,
    )


def _payload_error_text(command: Command | None) -> str:
    """Return the message of a refused payload in brackets, if ``command`` fails the run with it; else an empty text.

    Older code passed that payload. The messages of other exceptions may contain data, which must not go into logs.
    """
    attributes = {} if command is None else command.event_attributes()
    refused = command is not None and command.event_kind == "WorkflowFailed"
    return f" ({attributes.get('message')})" if refused and attributes.get("type") == PayloadError.__name__ else ""


def _alias_advice(event: HistoryEvent | None, command: Command | None) -> str:
    """Return advice for an error if one activity or class is in the place of another; else an empty text.

    The activity or class may have been renamed.
    """
    if event is None or command is None or event.kind != command.event_kind:
        return ""
    if event.kind == "ActivityScheduled":
        activity = kinds.ACTIVITY_SCHEDULED.read(event)["activity"]
        return f"; if the activity was renamed, keep its old name: @activity(aliases=[{activity!r}])"
    if event.kind == "ChildStarted":
        workflow = kinds.CHILD_STARTED.read(event)["workflow"]
        return f"; if the class was renamed, keep its old name: aliases = ({workflow!r},)"
    return ""


def _describe(kind: str, attributes: dict[str, Any]) -> str:
    """Return an event or a command in words, by its kind, number and name, for errors."""
    parts = [kind]
    if attributes.get("seq") is not None:
        parts.append(f"seq {attributes['seq']}")
    if kind == "WorkflowFailed" and attributes.get("type"):
        parts.append(str(attributes["type"]))
    name = KINDS[kind].name_attribute if kind in KINDS else None
    if name is not None:
        parts.append(f"{name} {attributes.get(name)}")
    return ", ".join(parts)
