"""The pytest plugin that users get: their runs are replayed when a test is over."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

FLOWS = """
    import itertools
    import unittest
    import pytest
    from temporalex_django import Ok, Workflow, activity, api
    from temporalex_django.testing import WorkflowEnvironment

    calls = itertools.count()

    class Sound(Workflow):
        async def run(self, args):
            await api.sleep(1)
            return Ok(1)

    class Fickle(Workflow):
        async def run(self, args):
            if next(calls) % 2:
                await api.sleep(1)
            return Ok(1)
"""


@pytest.fixture
def run(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[3]))

    def run(tests, *options):
        pytester.makepyfile(FLOWS + tests)
        return pytester.runpytest_subprocess("-p", "temporalex_django.testing.pytest_plugin", *options)

    return run


FICKLE = """
    def test_fickle():
        WorkflowEnvironment().start(Fickle)
"""


def test_a_run_that_does_not_replay_fails_its_test(run):
    result = run(
        """
    def test_sound():
        env = WorkflowEnvironment()
        env.start(Sound)
        env.advance(1)

    @pytest.fixture
    def env():
        return WorkflowEnvironment()

    def test_made_by_a_fixture(env):
        env.start(Fickle)
"""
        + FICKLE
    )
    result.assert_outcomes(passed=3, errors=2)
    result.stdout.fnmatch_lines(["*NondeterminismError*Fickle*does not match*"])


def test_a_test_case_of_unittest_is_replayed_inside_its_own_clean_up(run):
    result = run(
        """
    class Tests(unittest.TestCase):
        def test_fickle(self):
            WorkflowEnvironment().start(Fickle)
"""
    )
    result.assert_outcomes(failed=1)


@pytest.mark.parametrize("options", [["-o", "temporalex_replay=false"]])
def test_it_can_be_turned_off(run, options):
    run(FICKLE, *options).assert_outcomes(passed=1)


def test_one_test_can_be_left_out(run):
    run(
        """
    @pytest.mark.temporalex_no_replay
    def test_fickle():
        WorkflowEnvironment().start(Fickle)
"""
    ).assert_outcomes(passed=1)


def test_a_test_that_failed_is_not_judged_twice(run):
    run(FICKLE + "        assert False\n").assert_outcomes(failed=1)
