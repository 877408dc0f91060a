"""The two eyes of the determinism guard, looked into directly: what each makes of a call that it is told of.

The interpreter calls them where no debugger or coverage tool can follow; here they are called as functions.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import json
import os
import random
import sys
import time
import types
import uuid

import pytest

from temporalex_django.core import current
from temporalex_django.core.determinism import guard, rules
from temporalex_django.core.determinism.guard import Monitor, Profile, _is_refused
from temporalex_django.core.determinism.rules import reachable_code
from temporalex_django.errors import DeterminismViolation, DeterminismWarning
from tests.support.runs import once, work


def asks():
    return time.time()


def harmless():
    return len([])


def twice():
    return len([]) + len([])


class Owner:
    def __init__(self):
        self.made = time.time()

    def method(self):
        return time.time()

    def __call__(self):
        return time.time()


class Bare:
    def __len__(self):
        return 0


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring")
class TestMonitor:
    @pytest.fixture
    def seen(self):
        return []

    @pytest.fixture
    def monitor(self, seen):
        made = Monitor(lambda rule: seen.append(rule.name))
        if not made.is_available:
            pytest.skip("every tool id is taken")
        yield made
        sys.monitoring.register_callback(made._tool, sys.monitoring.events.CALL, None)
        for watched in made._instrumented.values():
            sys.monitoring.set_local_events(made._tool, watched.code, 0)
        sys.monitoring.free_tool_id(made._tool)

    def told(self, monitor, callee, argument=None, watched=asks):
        """What the callback answers when ``watched`` is about to call ``callee``."""
        monitor.watch(watched)
        return monitor._make_callback()(watched.__code__, 0, callee, argument)

    @pytest.mark.parametrize(
        ("callee", "argument", "name"),
        [
            (time.time, None, "time.time"),
            (time.localtime, sys.monitoring.MISSING if hasattr(sys, "monitoring") else None, "time.localtime"),
            (random.random, None, "random.random"),
            (functools.partial(time.time), None, "time.time"),
            (dt.datetime.now, None, "datetime.datetime.now"),
            (uuid.uuid4, None, "uuid.uuid4"),
            (open, "x", "open"),
            (random.Random(1).random, None, None),
            (random.SystemRandom().random, None, "random.random"),
            (time.localtime, 5, None),
            (json.dumps, {}, None),
            (len, [], None),
            (str.upper, "x", None),
            (asks, None, None),
            (Owner().method, None, None),
            (Owner, None, None),
            (Owner(), None, None),
            (Bare(), None, None),
            (ValueError, "x", None),
            (functools.lru_cache(asks), None, None),
            ([].append, 1, None),
            (os.environ.get, "HOME", "os.environ.get"),
            ({}.get, "HOME", None),
            (types.MethodType(len, []), None, None),
            (contextlib.contextmanager(asks), None, None),
        ],
        ids=lambda value: getattr(value, "__name__", type(value).__name__),
    )
    def test_a_call_that_it_is_told_of(self, monitor, seen, callee, argument, name):
        """Refused by what is called, whatever it is called through; told twice, it says the same."""
        for _ in range(2):
            seen.clear()
            self.told(monitor, callee, argument)
            assert seen == ([] if name is None else [name])

    def test_a_class_is_judged_once(self, monitor):
        assert monitor._judge(Owner) is monitor._judge(Owner) is None

    def test_every_site_of_a_function_is_settled_by_itself(self, monitor):
        monitor.watch(twice)
        called = monitor._make_callback()
        answers = [called(twice.__code__, offset, len, []) for offset in guard_sites_of(twice)]
        assert answers.count(sys.monitoring.DISABLE) == 2

    def test_a_site_that_can_only_call_what_it_called_is_switched_off(self, monitor):
        monitor.watch(harmless)
        called = monitor._make_callback()
        offsets = list(guard_sites_of(harmless))
        answers = [called(harmless.__code__, offset, len, []) for offset in offsets]
        assert sys.monitoring.DISABLE in answers

    def test_a_site_whose_name_stands_for_another_thing_goes_on_reporting(self, monitor):
        monitor.watch(harmless)
        called = monitor._make_callback()
        for offset in guard_sites_of(harmless):
            assert called(harmless.__code__, offset, max, []) is None
            assert called(harmless.__code__, offset, len, []) is None

    def test_without_a_free_tool_it_says_so_and_sees_nothing(self, monkeypatch):
        monkeypatch.setattr("temporalex_django.core.determinism.guard._TOOL_IDS", ())
        blind = Monitor(pytest.fail)
        assert not blind.is_available
        blind.watch(asks)
        assert not blind._instrumented

    def test_it_warns_when_there_is_none(self, monkeypatch):
        monkeypatch.setattr("temporalex_django.core.determinism.guard._TOOL_IDS", ())
        monkeypatch.setattr(guard, "_guard", None)
        monkeypatch.setattr(guard, "_guard_environment", lambda: None)
        with pytest.warns(DeterminismWarning, match="all tool ids of sys.monitoring are in use"):
            installed = guard._install()
        assert not installed.is_available


def guard_sites_of(function):
    from temporalex_django.core.determinism.rules import find_call_sites

    return [offset for offset, site in find_call_sites(function.__code__).calls.items() if site.chain]


class TestProfile:
    """The eye of Python 3.11, which any Python can call."""

    @pytest.fixture
    def seen(self):
        return []

    @pytest.fixture
    def profile(self, seen):
        return Profile(lambda rule, frame: seen.append((rule.name, frame.f_code.co_name)))

    @pytest.mark.parametrize(
        ("called", "name"),
        [
            (time.time, "time.time"),
            (random.Random(1).random, None),
            (random.random, "random.random"),
            (len, None),
            (time.localtime, None),
            ([].append, None),
        ],
        ids=["time", "own", "shared", "len", "with an argument", "method"],
    )
    def test_a_call_of_c_code(self, profile, seen, called, name):
        for _ in range(2):
            seen.clear()
            profile._profile_function(sys._getframe(), "c_call", called)
            assert [rule for rule, _ in seen] == ([] if name is None else [name])

    def calls(self, profile, like, module, qualname, *args):
        """Call a function that looks like one of the library and tells ``profile`` of it."""
        code = like.__code__.replace(
            co_name=qualname.rpartition(".")[2], co_qualname=qualname, co_filename=uuid.__file__
        )
        hook = lambda frame: profile._profile_function(frame, "call", None)  # noqa: E731
        types.FunctionType(code, {"hook": hook, "sys": sys, "__name__": module}, argdefs=(None,))(*args)

    def test_a_call_of_python_code(self, profile, seen):
        """What is called shows as its frame; who calls is the frame behind it, and must be the project's."""
        here = ("calls",)
        for _ in range(2):
            self.calls(profile, tells, "uuid", "uuid4")
        assert seen == [("uuid.uuid4", *here)] * 2
        seen.clear()
        self.calls(profile, tells_of_itself, "random", "Random.__init__", None)
        assert seen == [("random.Random", *here)]
        seen.clear()
        self.calls(profile, tells_of_itself, "random", "Random.__init__", None, 5)
        self.calls(profile, tells, "json", "dumps")
        profile._profile_function(sys._getframe(), "call", None)
        profile._profile_function(sys._getframe(), "return", None)
        assert seen == []

    def test_generated_code_counts_as_who_made_it_call(self, profile, seen):
        made = {"sys": sys, "tell": lambda frame: profile._profile_function(frame, "c_call", time.time)}
        exec(compile("def generated(): tell(sys._getframe())", rules.GENERATED, "exec"), made)
        made["generated"]()
        assert [rule for rule, _ in seen] == ["time.time"]
        seen.clear()
        exec(compile("def library(): tell(sys._getframe())", uuid.__file__, "exec"), made)
        made["library"]()
        assert seen == []

    def test_its_refusal_comes_back_although_the_interpreter_takes_the_profiler_away(self):
        def refuse(rule, frame):
            raise DeterminismViolation(rule.name)

        eye = Profile(refuse)
        before, tracer = sys.getprofile(), sys.gettrace()
        frame = sys._getframe()
        local = frame.f_trace
        try:
            with pytest.raises(DeterminismViolation):
                eye._profile_function(frame, "c_call", time.time)
            assert sys.getprofile() is eye._profile_function and sys.gettrace() is tracer
        finally:
            sys.setprofile(before)
            sys.settrace(tracer)
            frame.f_trace = local

    def test_a_profiler_that_is_there_stays(self, profile):
        def theirs(*_):
            return None

        before = sys.getprofile()
        sys.setprofile(theirs)
        try:
            with pytest.warns(DeterminismWarning, match="off while a profiler is running"):
                undo = profile.switch(True)
            profile._install_profile()  # warned once
            undo()
            assert sys.getprofile() is theirs
        finally:
            sys.setprofile(before)

    def test_it_is_set_and_taken_away_in_turn(self, profile):
        before = sys.getprofile()
        sys.setprofile(None)
        try:
            undo = profile.switch(True)
            assert sys.getprofile() is profile._profile_function
            inner = profile.switch(False)
            assert sys.getprofile() is None
            inner()
            assert sys.getprofile() is profile._profile_function
            undo()
            assert sys.getprofile() is None
        finally:
            sys.setprofile(before)

    def test_what_calls_something_suspect_is_suspect(self, profile):
        assert profile._is_suspect(functools.partial(asks)) and profile._is_suspect(asks)
        assert profile._is_suspect(Owner().method) and profile._is_suspect(Owner()) and profile._is_suspect(Owner)
        assert not profile._is_suspect(harmless)


def tells(_=None):
    hook(sys._getframe())  # noqa: F821 - given by the test


def tells_of_itself(self, x=None):
    hook(sys._getframe())  # noqa: F821 - given by the test


class TestModes:
    @pytest.fixture(autouse=True)
    def _restored(self):
        yield
        guard.configure("error")

    def test_off_says_nothing_and_warn_says_it_once_for_a_place(self, caplog):
        rule = rules.Rule("time.time", "use api.now()")
        frame = sys._getframe()
        with current.outside_workflow("query"):
            guard.configure("off")
            assert guard.mode() == "off"
            guard.refuse(rule, frame)
            guard.refuse_in_step(rule)
            guard.configure("warn")
            with pytest.warns(DeterminismWarning, match="time.time in workflow code") as told:  # noqa: PT031
                for _ in range(3):
                    guard.refuse(rule, frame)
            assert len(told) == 1 and [r.name for r in caplog.records] == ["temporalex_django.core"]
            guard.configure("error")
            with pytest.raises(DeterminismViolation, match="use api.now"):
                guard.refuse_in_step(rule)
        guard.refuse_in_step(rule)  # nobody's workflow

    def test_a_frame_of_the_library_alone_is_named_when_there_is_no_other(self):
        with current.outside_workflow("query"), pytest.raises(DeterminismViolation):
            functools.reduce(lambda _, rule: guard.refuse_in_step(rule), [None, rules.Rule("x", "y")])


class TestRules:
    def test_names(self):
        assert rules.advice("pathlib.Path.read_text") is not None
        assert rules.advice("time.localtime") is None and rules.advice("time.localtime", argument=False)
        assert rules.advice("subprocess.CalledProcessError") is None
        assert rules.advice("json.dumps") is None

    def test_functions_written_in_python(self):
        rule_of = rules.rule_of_code
        assert rule_of(uuid.uuid4.__code__, "uuid").name == "uuid.uuid4"
        assert rule_of(random.Random.randint.__code__, "random").name == "random.randint"
        assert rule_of(random.Random.__init__.__code__, "random").name == "random.Random"
        assert rule_of(json.JSONEncoder.__init__.__code__, "json.encoder") is None
        assert rule_of(Bare.__len__.__code__, "json") is None
        assert rule_of(os.environ.get.__func__.__code__, "collections.abc").name == "os.environ.get"
        import pathlib

        assert rule_of(pathlib.Path.read_text.__code__, "pathlib").name.startswith("pathlib.Path.")

    def test_builtins(self):
        rule_of = rules.rule_of_builtin
        assert rule_of(dt.datetime.now).name == "datetime.datetime.now"
        assert rule_of(dt.date.today).name == "datetime.date.today"
        assert rule_of(dt.date.fromisoformat) is None
        assert rule_of(dict.fromkeys) is None
        assert rule_of(random.random).name == "random.random"
        assert rule_of([].append) is None

    def test_what_a_thing_reaches(self):
        class Holder:
            cached = functools.cached_property(lambda self: asks())
            static = staticmethod(asks)
            made = property(lambda self: asks())

        def wrapped(_fn=asks, *, key=asks):
            return _fn, key

        for thing in (
            functools.partial(len, asks, key=asks),
            Owner().method,
            functools.lru_cache(asks),
            Holder,
            wrapped,
        ):
            codes = [code for code, _ in reachable_code(thing, ())]
            assert asks.__code__ in codes or Owner.method.__code__ in codes, thing
        assert list(reachable_code(len, ())) == []

    def test_suspects(self):
        assert _is_refused(uuid.uuid4) and _is_refused(time.time)
        assert _is_refused(random._inst.randint) and not _is_refused(asks) and not _is_refused(json.dumps)


def test_a_run_is_guarded_from_its_start():
    from temporalex_django.testing import WorkflowEnvironment

    async def body():
        await work()
        return time.time()

    h = WorkflowEnvironment().start(once(body))
    assert h.status == "failed"
