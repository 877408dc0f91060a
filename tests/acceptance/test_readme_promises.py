"""What the README promises a newcomer.

Its commands and files, to the letter, in a clean environment with the built wheel.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 60.0

pytestmark = [pytest.mark.slow, pytest.mark.each_python]


def block(name: str) -> str:
    """The code block of the README that is marked ``<!-- start: name -->``."""
    found = re.search(
        rf"<!-- start: {name} -->\n```\w+\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert found, f"the README has no block {name!r}"
    return found[1]


@pytest.fixture
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], folder)
    return next(folder.glob("*.whl"))


#: Of Python, beside those that the lanes run on: tried where the machine has one.
LATER = "3.14"


def later_python() -> str | None:
    """The interpreter of that version, unless it is the one that runs this."""
    found = subprocess.run(
        [str(ROOT / "scripts" / "find_python.sh"), LATER], capture_output=True, text=True, timeout=120, check=False
    ).stdout.strip()
    here = ".".join(map(str, sys.version_info[:2]))
    return found if found and here != LATER else None


def clean_environment() -> dict[str, str]:
    """No Django settings, no path to this checkout, no virtual environment of the tests."""
    dropped = ("DJANGO_", "PYTHON", "VIRTUAL_ENV", "TX_", "TEST_DB", "DATABASE_URL", "COVERAGE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    kept["PIP_NO_COMPILE"] = "1"  # Python compiles what it imports
    kept["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), kept["PATH"]])
    return kept


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, env=clean_environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def shell(script: str, folder: Path) -> str:
    return run(["bash", "-e", "-c", f". .venv/bin/activate 2>/dev/null || true\n{script}"], folder)


@contextmanager
def server(folder: Path, port: int) -> Iterator[None]:
    """``runserver`` as in the README, on a free port; ended with its reloader."""
    command = f". .venv/bin/activate; exec python manage.py runserver 127.0.0.1:{port}"
    log = (folder / "server.log").open("w")
    child = subprocess.Popen(
        ["bash", "-c", command], cwd=folder, env=clean_environment(), stdout=log, stderr=log, start_new_session=True
    )
    try:
        deadline = time.monotonic() + DEADLINE
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/admin/login/", timeout=5):
                    break
            except OSError:
                assert child.poll() is None, (folder / "server.log").read_text()
                assert time.monotonic() < deadline, "the server did not answer"
                time.sleep(0.1)
        yield
    finally:
        os.killpg(child.pid, signal.SIGTERM)
        child.wait(20)
        log.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


#: What the README says it prints.
PRINTED = ["{'text': 'Hello, Ada!'}", "done completed"]


def test_the_readme_leads_to_a_completed_run(wheel: Path, tmp_path: Path) -> None:
    assert follow_the_readme(wheel, tmp_path, "python") == PRINTED


@pytest.mark.once
def test_so_it_does_on_the_next_python_where_there_is_one(wheel: Path, tmp_path: Path) -> None:
    if (python := later_python()) is None:
        pytest.skip(f"there is no Python {LATER} here beside the one that runs this")
    assert follow_the_readme(wheel, tmp_path, python) == PRINTED
    assert run([str(tmp_path / ".venv" / "bin" / "python"), "--version"], tmp_path).startswith(f"Python {LATER}.")


def follow_the_readme(wheel: Path, tmp_path: Path, python: str) -> list[str]:
    """To the letter, but for where the wheel comes from, which Python makes the environment, and the port.

    Gives the last two lines that its own run prints.
    """
    commands = block("commands").replace("pip install temporalex-django", f"pip install --quiet '{wheel}'")
    assert "python -m venv" in commands
    shell(commands.replace("python -m venv", f"'{python}' -m venv"), tmp_path)
    settings = tmp_path / "mysite" / "settings.py"
    settings.write_text(settings.read_text() + "\n" + block("settings"))
    (tmp_path / "hello" / "workflows.py").write_text(block("workflows"))
    migrate, runserver = block("serve").strip().splitlines()
    assert runserver == "python manage.py runserver"
    shell(migrate, tmp_path)

    with server(tmp_path, free_port()):
        printed = shell(block("use"), tmp_path)

    return printed.strip().splitlines()[-2:]


def test_a_project_without_the_app_is_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "workflows.py").write_text(block("workflows"))

    done = subprocess.run(
        [sys.executable, "-c", "from workflows import Greeting; Greeting.start({})"],
        cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert done.returncode == 1
    assert "INSTALLED_APPS" in done.stderr.strip().splitlines()[-1]
