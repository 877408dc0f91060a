"""A pytest plugin that runs a failed test again, alone and once, when all others have ended.

A test that passes then is *flaky*: it does not fail the run, and the end of the output lists it with the seed of its
run and the load of the machine when it failed. A test that fails again fails the run. ``scripts/test.sh`` loads the
plugin, so every lane of ``make test`` has it; ``pytest`` by hand does not.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from typing import Any

import pytest

#: More failures than this are no accident: nothing is run again then.
MOST_FAILURES = 10
#: Seconds for one test, alone.
LONGEST = 300.0

_loads = pytest.StashKey[dict[str, float]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_loads] = {}
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(LoadOfFailures(config))


class LoadOfFailures:
    """Notes the load of the machine when a test fails."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.config.stash[_loads].setdefault(report.nodeid, os.getloadavg()[0])


@pytest.hookimpl(wrapper=True, trylast=True)  # behind the end of the test processes, before the summary
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    yield
    config = session.config
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if hasattr(config, "workerinput") or reporter is None:
        return
    failures = [report for name in ("failed", "error") for report in reporter.stats.get(name, ())]
    tests = list(dict.fromkeys(report.nodeid for report in failures))
    collected = all(isinstance(report, pytest.TestReport) for report in failures)
    if not tests or len(tests) > MOST_FAILURES or not collected or session.exitstatus != pytest.ExitCode.TESTS_FAILED:
        return
    reporter.ensure_newline()
    flaky = [test for test in tests if _passes_alone(config, reporter, test)]
    for name in ("failed", "error"):
        reporter.stats[name] = [report for report in reporter.stats.get(name, ()) if report.nodeid not in flaky]
    if flaky:
        reporter.stats["flaky"] = [next(report for report in failures if report.nodeid == test) for test in flaky]
        reporter._main_color = None
    if len(flaky) == len(tests):
        session.exitstatus = pytest.ExitCode.OK


def _passes_alone(config: pytest.Config, reporter: Any, test: str) -> bool:
    """Whether the test passes in a process of its own, in the order and with the chance of the run."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-q", test]
    if (seed := config.getoption("randomly_seed", None)) is not None:
        command += ["-p", "randomly", f"--randomly-seed={seed}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    try:
        again = subprocess.run(
            command,
            check=False,
            cwd=config.invocation_params.dir,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LONGEST,
        )
    except subprocess.TimeoutExpired:
        reporter.write_line(f"run again alone: {test}: no end after {LONGEST:g} s")
        return False
    reporter.write_line(f"run again alone: {test}: {'passed' if again.returncode == 0 else 'failed again'}")
    return again.returncode == 0


def pytest_terminal_summary(terminalreporter: Any) -> None:
    flaky = terminalreporter.stats.get("flaky", ())
    if not flaky:
        return
    config = terminalreporter.config
    seed = config.getoption("randomly_seed", None)
    terminalreporter.section("flaky: failed, and passed when run again alone", sep="=", yellow=True)
    for report in flaky:
        load = config.stash[_loads].get(report.nodeid, 0.0)
        terminalreporter.write_line(f"FLAKY {report.nodeid} (seed {seed}, load {load:.1f})")
        for line in _first_and_last_line(report):
            terminalreporter.write_line(f"      {line}")


def _first_and_last_line(report: Any) -> list[str]:
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(crash.message if crash is not None else report.longrepr).strip().splitlines()
    return [line[:200] for line in dict.fromkeys((lines[0], lines[-1]))]
