"""The core knows no kind of process but through its protocol, and its parts belong to themselves."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

from temporalex_django import Ok, Workflow, activity, errors
from temporalex_django.core import current
from temporalex_django.core.human_tasks import Permits
from temporalex_django.core.units.ivar import IVar
from temporalex_django.testing import WorkflowEnvironment
from tests.structure.source import PACKAGE, modules, parse

_GRAPHS = re.compile(r"\bgraphs?\b|resume", re.IGNORECASE)
#: Where a word of graphs stands all the same: the name of a public error, and what a request is called outside.
_WORDS = {"core/process.py": {"resume"}, "engine/activity_policy.py": {"resume"}}
#: Objects that workflow code and hosts hold a reference to; their state is their own.
_PARTS = {
    "executor", "runtime", "run_context", "scheduler", "pending_commands", "dispatcher", "budget", "conditions", "journal",
    "cancellation", "patches", "mailbox",
}  # fmt: skip
#: The executor says where the run stands, the dispatcher that its first phase is open, and how many signals a process
#: took.
_OWNED = {
    "core/executor.py": {
        "run_context.admits_updates", "run_context.closed", "run_context.is_continued", "run_context.history_length", "run_context.info", "run_context.now",
        "run_context.replaying", "run_context.snapshot", "run_context.suggests_continue_as_new",
    },
    "core/messages/dispatcher.py": {"_run_context.is_continued", "mailbox.received"},
}  # fmt: skip


def within(path):
    return path.relative_to(PACKAGE).as_posix()


def words_of_graphs(path):
    # The scheduling policy names the tests that its numbers serve, and some of them are in a folder for graphs.
    text = path.read_text(encoding="utf-8").replace("tests/integration/graph/test_durable_graphs.py", "")
    return {word.lower() for word in _GRAPHS.findall(text)}


def test_neither_core_nor_engine_knows_graphs():
    words = {within(path): words_of_graphs(path) for room in ("core", "engine") for path in modules(PACKAGE / room)}
    assert {module: words_of_module for module, words_of_module in words.items() if words_of_module} == _WORDS


def assigned(tree: ast.Module) -> list[str]:
    """Assignments to an attribute of a part, as ``part.attribute``."""
    found = []
    for node in ast.walk(tree):
        targets: list[Any] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(one, ast.Attribute):
                    owner = one.value
                    held = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
                    if held.lstrip("_") in _PARTS:
                        found.append(f"{held}.{one.attr}")
    return found


def test_nobody_assigns_to_a_part_from_outside():
    """Each exception is one, and is needed."""
    assignments = {within(path): set(assigned(parse(path))) for path in modules(PACKAGE)}
    assert {module: parts for module, parts in assignments.items() if parts} == _OWNED


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("executor.phase = 1", ["executor.phase"]),
        ("self._executor.dispatched += 1", ["_executor.dispatched"]),
        ("entry.executor.judge: int = 1", ["executor.judge"]),
        ("a, runtime.run_context.closed = 1, 2", ["run_context.closed"]),
        ("executor = 1; self.executor = executor; other.phase = 2", []),
    ],
)
def test_the_check_sees_an_assignment(source, found):
    assert assigned(ast.parse(source)) == found


class Ladder:
    """A second kind of process: rungs one after the other, and people may climb as many as they ask for."""

    def __init__(self, port: Any, height: int) -> None:
        self.port = port
        self.height = height
        self.at = 0
        self.done = IVar("the top")

    def judge(self, request: dict[str, Any], permits: Permits) -> None:
        rungs = request.get("data")
        if not isinstance(rungs, int) or not 0 < rungs <= self.height - self.at:
            raise errors.ResumeRefused(f"{rungs!r} rungs are not to be climbed from {self.at} of {self.height}")

    def build_payload(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"event": request["event"], "data": request.get("data")}

    def apply(self, payload: dict[str, Any]) -> None:
        self.at += payload["data"]
        self.port.publish({"at": self.at})
        if self.at == self.height:
            self.done.put(self.at)


@activity
def ring_the_bell(times):
    return "ding" * times


class Climb(Workflow):
    async def run(self, args):
        port = current.active_runtime("run")
        ladder = Ladder(port, args["height"])
        port.attach(ladder)
        height = await ladder.done
        return Ok(await ring_the_bell(height - 2))


@pytest.mark.parametrize("evict", [False, True])
def test_another_kind_of_process_runs_on_the_core(evict):
    env = WorkflowEnvironment(evict=evict)
    run = env.start(Climb, {"height": 4})
    run.resume("climb", data=3)
    with pytest.raises(errors.ResumeRefused, match="2 rungs are not to be climbed from 3 of 4"):
        run.resume("climb", data=2)
    run.resume("climb", data=1)

    assert run.result() == "dingding"
    events = [event.attributes for event in run.history() if event.kind == "SignalReceived"]
    assert [(event["name"], event["payload"]["data"]) for event in events] == [("__resume__", 3), ("__resume__", 1)]
    env.replay(run)
