"""Programs on a host: a schedule is delivered, and what came of it is read off as plain data."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from temporalex_django import errors
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.testing import WorkflowEnvironment
from temporalex_django.testing.environment import Environment
from tests.property.operating import Operator
from tests.property.program import HELD, REACHED, Kid, Program, Strict
from tests.support.people import Somebody

#: Whoever is asked.
DECIDER = Somebody("decider", "test.decide")
#: The id of a failed message that its sender gave none.
_OF_A_RUN = re.compile(r"[0-9a-f-]{36}:\d+")
#: Drawn anew for each run, worded by the interpreter of the day, or compared by themselves (``list_runs``).
_NOT_COMPARED = ("run_id", "head", "traceback", "search_attributes")


@dataclass
class Played:
    """An environment after a schedule."""

    env: Environment
    handle: Any = None
    updates: list[Any] = field(default_factory=list)
    updates_with_headers: int = 0
    operator: Operator = field(default_factory=Operator)

    def deliver(self, kind: str, *args: Any) -> None:
        """One event of a schedule. Schedules are blind: what finds nothing to act on does nothing."""
        with self.operator.watches(self.handle):
            self._deliver(kind, *args)

    def _deliver(self, kind: str, *args: Any) -> None:
        if kind == "batch":
            with self.env.batch():
                for inner in args[0]:
                    self._deliver(*inner)
            return
        try:
            match kind:
                case "signal":
                    self.handle.signal(args[0], len(self.updates))
                case "signal with headers":
                    self.handle.signal(args[0], len(self.updates), headers={"of": "signal"})
                case "update with headers":
                    self.updates_with_headers += 1
                    update_id = f"headers-{self.updates_with_headers}"
                    with suppress(errors.UpdateRejected, errors.UpdateFailed, errors.UpdateTimeout):
                        self.handle.update(args[0], len(self.updates), id=update_id, headers={"of": "update"})
                case "update":
                    number = len(self.updates)
                    self.updates.append(self.handle.update_async(args[0], number, id=f"update-{number}"))
                case "advance":
                    self.env.advance(args[0])
                case "outage":
                    REACHED.add("outage")
                    self.env.outage(args[0])
                case "complete":
                    self.env.complete(self.open_call(args[0]), "result")
                case "fail":
                    self.env.fail(self.open_call(args[0]), ValueError("failed"))
                case "decide":
                    self.decide(*args)
                case "kid":
                    self.env.handle("kid").signal(args[0], "for the kid")
                case "strict":
                    self.env.handle("strict").signal(args[0], "for the strict one")
                case "cancel":
                    self.handle.cancel()
                case "terminate":
                    self.handle.terminate("asked for")
                case _:
                    self.operator.do(self.env, self.handle, kind, *args)
        except KeyError:
            raise  # no schedule's, but the host's
        except errors.UnknownSignal:
            assert (kind, *args) != ("strict", "a")
            REACHED.add("undeclared: sent")
        except (LookupError, errors.RunPaused, errors.HumanTaskClosed):
            pass  # nobody is asked, or somebody else was quicker
        except (errors.WorkflowClosed, errors.WorkflowNotFound, errors.ActionNotPossible):
            pass  # nothing is held, the run is closed, there is no kid, or nothing that this could be done to

    def decide(self, which: int, outcome: str) -> None:
        """One of the human tasks that are open. Raises ``LookupError`` when there is none."""
        tasks = self.handle.human_tasks()
        if not tasks:
            raise LookupError("nobody is asked")
        self.handle.decide(outcome, task=tasks[which % len(tasks)].key, comment=outcome[:3], by=DECIDER)

    def open_call(self, which: int) -> Any:
        """The activity of one of the calls that are held. Raises ``LookupError`` when there is none."""
        names = list(dict.fromkeys(task.activity for task in self.env._held_tasks))
        if not names:
            raise LookupError("nothing is held")
        return next(act for act in HELD.values() if act.name == names[which % len(names)])

    def histories(self) -> list[tuple[str, list[HistoryEvent]]]:
        """The workflow's name and the history of every run, oldest first."""
        rows = [self.env.row(run_id) for chain_id in self.env.chain_ids() for run_id in self.env.run_ids(chain_id)]
        return [(row.facts.workflow, row.events) for row in rows]

    def facts(self) -> list[Any]:
        """All that a host keeps of the runs, as plain data."""
        found: list[Any] = []
        for chain_id in self.env.chain_ids():
            for run_id in self.env.run_ids(chain_id):
                row = self.env.row(run_id)
                events = [[e.number, e.activation, e.kind, e.at.isoformat(), plain(e.attributes)] for e in row.events]
                found.append(
                    [
                        row.facts.workflow_id,
                        row.status,
                        row.published and row.published["log"],
                        row.waiting_for,
                        row.accepts if row.closed_at is None else None,
                        events,
                        *([asked] if (asked := self.asked(run_id)) else []),
                        *([failed] if (failed := self.failed(chain_id)) else []),
                    ]
                )
        return found

    def found_by(self) -> list[Any]:
        """What the runs are found by and joined with."""
        rows = [self.env.row(run_id) for chain_id in self.env.chain_ids() for run_id in self.env.run_ids(chain_id)]
        return [[dict(row.facts.search_attributes or {}), row.stored or {}] for row in rows]

    def asked(self, run_id: Any) -> list[Any]:
        """What a run asked people, and what became of it."""
        return [
            [one.key, one.title, one.reminders, [*one.asked], str(one.due_at), one.happened]
            for one in self.env.human_tasks(run_id)
        ]

    def failed(self, chain_id: Any) -> list[Any]:
        """The failed messages of a chain."""
        found = self.env._failed_messages(chain_id)
        return [[message.name, message.type, message.message] for message in found]

    def commands(self) -> list[Any]:
        # The digests were kept when the cancel request to a child had the same kind as one to another run.
        names = {"CancelChild": "CancelExternal"}
        return [
            [[names.get(c.kind, c.kind), c.seq, plain(c.attributes)] for c in commands]
            for commands in self.env.commands
        ]

    def outcomes(self) -> list[Any]:
        return [outcome(update) for update in self.updates]


def play(program: Any, schedule: list[Any], env: Environment | None = None, **options: Any) -> Played:
    """A program through a schedule, in memory unless ``env`` says where. No run may be blocked at the end."""
    played = begin(program, env or WorkflowEnvironment(**options))
    for event in schedule:
        played.deliver(*event)
    assert not played.env.errors, played.env.errors
    played.operator.judge(played.env)
    return played


def play_at_once(program: Any, schedule: list[Any], **options: Any) -> Played:
    """The same with everything that needs no answer delivered in the first activation; nobody leaves it paused."""
    env = WorkflowEnvironment(**options)
    with env.batch():
        played = begin(program, env)
        for event in [*flat(schedule), ("unpause",)]:
            played.deliver(*event)
    assert not played.env.errors, played.env.errors
    played.operator.judge(played.env)
    return played


def begin(program: Any, env: Environment) -> Played:
    for act in HELD.values():
        env.hold(act)
    times: dict[str, Any] = {}
    if program.get("begins") is not None:
        REACHED.add("begins later")
        times["start_delay"], before = program["begins"]
        times["start_before"] = before and env.now() + timedelta(seconds=before)
    return Played(env, env.start(Program, program, id="program", headers=program.get("headers"), **times))


def flat(schedule: list[Any]) -> list[Any]:
    """The schedule without its batches."""
    return [event for one in schedule for event in (one[1] if one[0] == "batch" else [one])]


def replay_everything(played: Played) -> int:
    """Replay every run, and every prefix of its history that ends with an activation; the number of replays."""
    before = len(played.env.commands)
    count = 0
    for name, history in played.histories():
        cls = {Kid.name: Kid, Strict.name: Strict}.get(name, Program)
        for activation in range(1, history[-1].activation + 1 if history else 0):
            up_to = [event for event in history if event.activation <= activation]
            assert played.env.replay_history(cls, up_to, strict=True) == []
            count += 1
    assert len(played.env.commands) == before, "a replay produced commands"
    return count


def outcome(update: Any) -> Any:
    try:
        return update.result()
    except errors.TemporalexError as exc:
        return [type(exc).__name__, str(exc)]


def plain(attributes: dict[str, Any]) -> dict[str, Any]:
    drawn = {
        *_NOT_COMPARED,
        *(["seed"] if attributes.get("parent") else []),
        *(["id"] if _OF_A_RUN.fullmatch(str(attributes.get("id"))) else []),
    }  # a child's is made of its parent's run id
    kept = {key: value for key, value in attributes.items() if key not in drawn}
    if "failed" in kept:
        kept["failed"] = [message["name"] for message in kept["failed"]]
    if "edited" in kept:  # the key has the run id
        kept["edited"] = _without_key(kept["edited"])
    return kept


def _without_key(edited: dict[str, Any]) -> dict[str, Any]:
    """An edited input; of a run that ended before it read them, one for each activity."""
    return {
        key: _without_key(value) if isinstance(value, dict) else value for key, value in edited.items() if key != "key"
    }


def digest(played: Played) -> str:
    """Sixteen hexadecimal digits over commands, histories and outcomes."""
    text = json.dumps([played.commands(), played.facts(), played.outcomes()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
