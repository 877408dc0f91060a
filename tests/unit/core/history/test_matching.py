"""Commands against history, one difference at a time."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from temporalex_django.core.history import events as kinds
from temporalex_django.core.history.events import OUTPUT_OF, Command, HistoryEvent
from temporalex_django.errors import NondeterminismError

NOW = datetime(2026, 1, 1, tzinfo=UTC)
#: One command of each kind, with what names it.
COMMANDS = [
    (Command("ScheduleActivity", 1, {"activity": "shop.charge", "args": [1]}), "activity"),
    (Command("CancelActivity", 1, {}), None),
    (Command("StartTimer", 2, {"duration": 5.0}), None),
    (Command("CancelTimer", 2, {}), None),
    (Command("SetPatchMarker", None, {"id": "p", "deprecated": False}), "id"),
    (Command("AcceptUpdate", None, {"id": "u", "name": "add", "args": 1, "after": 0}), "id"),
    (Command("CompleteUpdate", None, {"id": "u", "name": "add", "result": 1}), "id"),
    (Command("FailUpdate", None, {"id": "u", "name": "add", "type": "E", "message": "m"}), "id"),
    (Command("StartChild", 3, {"workflow": "Kid", "id": "kid"}), "workflow"),
    (Command("SignalExternal", 4, {"id": "other", "name": "go"}), "name"),
    (Command("CancelExternal", 5, {"id": "other"}), "id"),
    (Command("CancelChild", 6, {"id": "kid", "child": 3}), "id"),
    (Command("CompleteWorkflow", None, {"result": 1}), None),
    (Command("FailWorkflow", None, {"reason": "r"}), None),
    (Command("CancelWorkflow", None, {}), None),
    (Command("ContinueAsNew", None, {"args": 1}), None),
]
KINDS = [command.kind for command, _ in COMMANDS]


def recorded(*commands):
    return [HistoryEvent(n, 1, c.event_kind, NOW, c.event_attributes()) for n, c in enumerate(commands, 10)]


def check(events, commands):
    kinds.check_commands(events, commands, run="Flow one", place_of=lambda index: f"flow.py:{index}", readers={})


def test_every_kind_of_command_is_looked_at():
    assert [f"the command {kind} has no row in COMMANDS of this test" for kind in OUTPUT_OF if kind not in KINDS] == []
    assert list(OUTPUT_OF) == KINDS


@pytest.mark.parametrize(("command", "named"), COMMANDS, ids=KINDS)
class TestOneDifference:
    """TX-178: by kind, number and name; not by what may change with the code."""

    def test_none(self, command, named):
        check(recorded(command), [command])
        changed = {k: v if k in (named, "deprecated") else "changed" for k, v in command.attributes.items()}
        check(recorded(command), [Command(command.kind, command.seq, changed)])

    def test_of_kind(self, command, named):
        for kind in KINDS:
            if OUTPUT_OF[kind] != command.event_kind:
                with pytest.raises(NondeterminismError):
                    check(recorded(command), [Command(kind, command.seq, command.attributes)])

    def test_of_number(self, command, named):
        if command.seq is not None:
            with pytest.raises(NondeterminismError, match=f"seq {command.seq}.* produced .*seq 77") as caught:
                check(recorded(command), [Command(command.kind, 77, command.attributes)])
            assert caught.value.seq == command.seq

    def test_of_name(self, command, named):
        if named is not None:
            other = {**command.attributes, named: "another"}
            with pytest.raises(NondeterminismError, match="produced .*another"):
                check(recorded(command), [Command(command.kind, command.seq, other)])

    def test_missing(self, command, named):
        with pytest.raises(
            NondeterminismError, match="at history event 10 .*flow.py:None.* produced nothing"
        ) as caught:
            check(recorded(command), [])
        assert caught.value.seq == (command.seq or 10) and caught.value.place == "flow.py:None"

    def test_surplus(self, command, named):
        with pytest.raises(NondeterminismError, match="flow.py:1.*recorded nothing, produced") as caught:
            check(recorded(command), [command, command])
        assert caught.value.seq == command.seq and caught.value.recorded == "nothing"

    def test_in_another_order(self, command, named):
        others = [other for other, _ in COMMANDS if other.kind != command.kind]
        for other in others:
            with pytest.raises(NondeterminismError):
                check(recorded(command, other), [other, command])


def test_a_deprecated_marker_may_be_missing_and_no_other():
    """TX-039."""
    marker = Command("SetPatchMarker", None, {"id": "p", "deprecated": True})
    plain = Command("SetPatchMarker", None, {"id": "p", "deprecated": False})
    work = COMMANDS[0][0]
    check(recorded(marker, work), [work])
    check(recorded(work, marker), [work])
    check(recorded(marker, work), [marker, work])
    with pytest.raises(NondeterminismError, match="recorded PatchMarked, id p"):
        check(recorded(plain, work), [work])
    with pytest.raises(NondeterminismError):
        check(recorded(marker, work), [])
