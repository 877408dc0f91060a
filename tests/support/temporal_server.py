"""A real server of Temporal for the tests: one for each test run, which the processes of the run share."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.waiting import wait_for

PROGRAM = Path(sysconfig.get_path("scripts")) / "temporal"
#: The server skips time, and pauses runs, only where this is on. It takes ten updates of a run at a time unless it is
#: told otherwise.
SETTINGS = {
    "frontend.WorkflowTimeSkippingEnabled": "true",
    "frontend.WorkflowPauseEnabled": "true",
    "history.maxInFlightUpdates": "10000",
}


@contextmanager
def shared_server(folder: Path) -> Iterator[str]:
    """The address of the server of a test run, whose processes share ``folder``. The last of them ends the server."""
    with _locked(folder):
        state = _read(folder)
        if not state["users"]:
            state |= _start(folder)
        state["users"].append(os.getpid())
        _write(folder, state)
    try:
        yield state["address"]
    finally:
        with _locked(folder):
            state = _read(folder)
            state["users"].remove(os.getpid())
            if not state["users"]:
                with suppress(ProcessLookupError):
                    os.kill(state["pid"], signal.SIGKILL)  # it keeps nothing, and waits for clients otherwise
                with suppress(ChildProcessError):  # another process may have started it
                    os.waitpid(state["pid"], 0)
            _write(folder, state)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "temporal.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _read(folder: Path) -> dict:
    path = folder / "temporal.json"
    return json.loads(path.read_text()) if path.exists() else {"users": []}


def _write(folder: Path, state: dict) -> None:
    (folder / "temporal.json").write_text(json.dumps(state))


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _start(folder: Path) -> dict:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = [part for name, value in SETTINGS.items() for part in ("--dynamic-config-value", f"{name}={value}")]
    place = ["--ip", "127.0.0.1", "--port", str(port), "--headless"]
    with (folder / "temporal.log").open("ab") as log:
        process = subprocess.Popen(
            [PROGRAM, "server", "start-dev", *place, "--log-level", "error", *settings], stdout=log, stderr=log
        )
    wait_for(lambda: _answers(port), what=f"the server of Temporal, see {folder / 'temporal.log'}")
    process.returncode = 0  # its end is waited for by process id, so that the object does not warn
    return {"pid": process.pid, "address": f"127.0.0.1:{port}"}
