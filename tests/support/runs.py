"""What the tests of behaviour share: activities that do next to nothing, and ways to look at histories and commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from temporalex_django import Ok, Workflow, activity
from temporalex_django.core.history.events import Command
from temporalex_django.testing import WorkflowEnvironment
from temporalex_django.testing.environment import Environment
from temporalex_django.testing.environment_base import EnvironmentHandle
from tests.support.event_attributes import undeclared


@activity
def work(value: Any = None) -> Any:
    return value


@activity
def other(value: Any = None) -> Any:
    return value


@activity
def broken(value: Any = None) -> Any:
    raise ValueError(f"broken: {value}")


class CheckedEnvironment(WorkflowEnvironment):
    """In memory; ``check`` replays every run."""

    def check(self) -> None:
        replay_all(self, list(self.storage.chains))


def replay_all(env: Environment, chains: Iterable[UUID]) -> None:
    """Every run replays, from every activation boundary of its history, and no replay produces anything."""
    before = len(env.commands)
    for chain_id in chains:
        handle = EnvironmentHandle(env, "", chain_id)
        env.replay(handle)
        history = handle.history()
        about = handle.describe()
        cls = env.class_of(chain_id, about["workflow"], about["version"])
        for activation in range(1, history[-1].activation if history else 0):
            env.replay_history(cls, [event for event in history if event.activation <= activation])
        assert [event.number for event in history] == list(range(1, len(history) + 1))
        wrong = undeclared(history)
        assert not wrong, wrong
    assert len(env.commands) == before, "a replay produced commands"


def forget(env: Environment) -> None:
    """Drop all runs from memory: the next activation of each rebuilds it, with the code that there is then."""
    env._forget_runs()


def flow(run: Callable[[Any, Any], Any], **attributes: Any) -> type[Workflow]:
    """A workflow class of ``async def run(self, args)``."""
    return type("Flow", (Workflow,), {"run": run, "__module__": __name__, **attributes})


def once(body: Callable[[], Any], **attributes: Any) -> type[Workflow]:
    """A workflow that completes with what ``body()`` gives."""

    async def run(self: Any, args: Any) -> Ok[Any]:
        return Ok(await body())

    return flow(run, **attributes)


def kinds(handle: Any) -> list[str]:
    """Kinds of the events of the newest run, without the stamps."""
    return [event.kind for event in handle.history() if event.kind not in ("WorkflowStarted", "ActivationStarted")]


def events(handle: Any, kind: str) -> list[dict[str, Any]]:
    return [event.attributes for event in handle.history() if event.kind == kind]


def produced(env: WorkflowEnvironment) -> list[Command]:
    return [command for commands in env.commands for command in commands]


def produced_kinds(env: WorkflowEnvironment) -> list[str]:
    return [command.kind for command in produced(env)]


def stable(attributes: dict[str, Any]) -> dict[str, Any]:
    """Without what is drawn anew for each run: ids and tokens."""
    return {key: value for key, value in attributes.items() if key not in ("run_id", "head", "id", "update_id")}


def plain_history(handle: Any) -> list[tuple[Any, ...]]:
    return [(e.number, e.activation, e.kind, e.at, stable(e.attributes)) for e in handle.history()]


def plain_commands(env: WorkflowEnvironment) -> list[list[tuple[Any, ...]]]:
    return [[(c.kind, c.seq, stable(c.attributes)) for c in commands] for commands in env.commands]
