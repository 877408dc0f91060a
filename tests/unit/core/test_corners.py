"""Corners of the core that no workflow comes to by itself, or where no coverage tool can follow."""

from __future__ import annotations

import asyncio
import functools
import sys
import time
import types

import pytest

from temporalex_django import Ok, Workflow, api
from temporalex_django.core import current
from temporalex_django.core.determinism import guard, rules
from temporalex_django.core.determinism.guard import Profile
from temporalex_django.core.determinism.rules import GENERATED, reachable_code
from temporalex_django.core.history.replay import replay
from temporalex_django.core.payloads import codec
from temporalex_django.errors import DeterminismViolation, NondeterminismError, PayloadError
from temporalex_django.testing import WorkflowEnvironment

RULE = rules.rule_of_builtin(time.time)


def frame_in(filename: str, below: str | None = None) -> types.FrameType:
    """The frame of a function that says it is in ``filename``, called by one of ``below``."""
    space: dict[str, object] = {}
    exec(
        compile("import sys\ndef inner(f=None):\n    return f() if f else sys._getframe(0)\n", filename, "exec"), space
    )
    inner = space["inner"]
    if below is None:
        return inner()  # type: ignore[operator]
    outer: dict[str, object] = {}
    exec(compile("def outer(f):\n    return f()\n", below, "exec"), outer)
    return outer["outer"](inner)  # type: ignore[operator]


class Looks(Workflow):
    async def run(self, args):
        return Ok(current.is_inside_workflow())


def test_a_history_of_nothing_replays():
    """TX-181: there is nothing that could differ."""
    assert replay(Looks.definition, []) == []


def test_a_difference_stays_one_when_it_cannot_be_found_again():
    """TX-178: the second run, which looks for the place, may be cut short by its time limit."""
    env = WorkflowEnvironment()
    h = env.start(Looks)
    runs = []

    def run(call):
        runs.append(call)
        if len(runs) == 1:
            call()

    class Sleeps(Workflow):
        async def run(self, args):
            await api.sleep(1)
            return Ok(None)

    with pytest.raises(NondeterminismError):
        replay(Sleeps.definition, h.history(), run=run)
    assert len(runs) == 2


def test_who_is_inside_a_workflow():
    assert not current.is_inside_workflow()
    assert WorkflowEnvironment().start(Looks).result() is True


def test_the_path_of_a_key_that_cannot_be_encoded():
    """Beside parts that can."""
    with pytest.raises(PayloadError, match=r"at `\$\.b`"):
        codec.encode({"a": [1, "x"], "b": {(1, 2): 3}})


def test_a_module_of_a_package_goes_by_the_name_of_the_package():
    assert rules.rule_of_code(asyncio.sleep.__code__, "asyncio.tasks") == rules.rule_of_code(
        asyncio.sleep.__code__, "asyncio"
    )


def test_generated_code_is_not_the_place_that_counts(monkeypatch):
    """``__init__`` of a dataclass is nobody's code: its caller is named."""
    frame = frame_in(GENERATED, below=__file__)
    monkeypatch.setattr(guard, "_mode", "error")
    with current.outside_workflow("query"), pytest.raises(DeterminismViolation, match="outer"):
        guard.refuse(RULE, frame)


def test_what_is_refused_whoever_asks_names_the_projects_frame(monkeypatch):
    monkeypatch.setattr(guard, "_mode", "off")
    with current.outside_workflow("query"):
        assert guard.refuse_in_step(RULE) is None
    monkeypatch.setattr(guard, "_mode", "error")
    assert guard.refuse_in_step(RULE) is None  # no workflow code here
    with (
        current.outside_workflow("query"),
        pytest.raises(DeterminismViolation, match="test_what_is_refused_whoever_asks"),
    ):
        guard.refuse_in_step(RULE)


def test_a_library_that_asks_is_not_named_but_who_called_it(monkeypatch):
    monkeypatch.setattr(guard, "_mode", "error")
    space = {"refuse": functools.partial(guard.refuse_in_step, RULE)}
    exec(compile("def library():\n    return refuse()\n", types.__file__, "exec"), space)
    with current.outside_workflow("query"), pytest.raises(DeterminismViolation, match="test_a_library_that_asks"):
        space["library"]()


def test_what_an_import_or_a_log_line_causes_is_excused(monkeypatch):
    monkeypatch.setattr(guard, "_mode", "error")
    space = {"__name__": "logging", "refuse": functools.partial(guard.refuse_in_step, RULE)}
    exec(compile("def emit():\n    return refuse()\n", "logging", "exec"), space)
    with current.outside_workflow("query"):
        assert space["emit"]() is None


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring")
def test_the_monitor_asks_about_the_code_two_frames_below(monkeypatch):
    monkeypatch.setattr(guard, "_mode", "error")

    def callback():
        guard._refuse_caller(RULE)

    with current.outside_workflow("query"), pytest.raises(DeterminismViolation, match="test_the_monitor_asks_about"):
        callback()


def test_after_a_refusal_the_profile_function_is_set_again(monkeypatch):
    """Python takes it away with the exception; one traced event brings it back, and the tracer that was there."""
    profile = Profile(lambda rule, frame: None)
    tracers, profiles = [], []
    before = sys.gettrace()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "settrace", tracers.append)
        patched.setattr(sys, "setprofile", profiles.append)
        frame = types.SimpleNamespace(f_trace="local")
        profile._restore_profile(frame)
        (trace,) = tracers
        assert frame.f_trace is trace
        trace(frame, "line", None)
    assert (tracers[1:], profiles, frame.f_trace) == ([before], [profile._profile_function], "local")


def test_code_of_nobodys_is_not_refused_by_the_profile():
    profile = Profile(lambda rule, frame: pytest.fail("it is no code of the project"))
    assert profile._refuse_call(RULE, frame_in(GENERATED, below=types.__file__)) is None


def test_a_generated_init_without_arguments_is_judged_by_its_name():
    """Rules may look at the first argument; there may be none."""
    seen = []
    profile = Profile(lambda rule, frame: seen.append(rule.name))
    called, frame = profile._profile_function, frame_in(__file__)
    for _ in range(2):  # judged once, remembered
        called(frame, "call", None)
    assert seen == []


def test_a_large_collection_and_an_empty_cell_are_not_walked():
    """What is too large to be code is not looked through; a variable without a value leads nowhere."""

    def looks():
        return later

    def hidden():
        return 1

    found = [code for code, _ in reachable_code([*range(10_000), hidden], {})]
    assert found == []
    assert [code for code, _ in reachable_code(looks, {})] == [looks.__code__]
    later = 1
    assert looks() == later
