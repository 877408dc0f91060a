"""The processes of a running shop: provider, web server, worker cluster.

Only what was started here is ever ended here.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from example_project.database import private_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

START_DEADLINE = 60.0
STOP_DEADLINE = 20.0
# Python code of one process runs on one processor at a time.
WEB_PROCESSES = 2
PR_SET_PDEATHSIG = 1


class NotStarted(Exception):
    """A process of the shop ended, or did not say where it listens; the message ends with its log."""


def die_with_parent() -> None:
    """Ask Linux to end the process when the one that started it is gone, however it went."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class Process:
    """One child with a log file of its own."""

    def __init__(self, name: str, *, command: Sequence[str], env: dict[str, str], cwd: Path, log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as stderr:
            self.child = subprocess.Popen(
                [sys.executable, *command],
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C is for the program that started them; it ends them in order
                preexec_fn=die_with_parent,  # noqa: PLW1509 - called from the main thread, one system call
            )
        self._lines: list[str] = []
        self._said = threading.Event()
        threading.Thread(target=self._listen, args=(self.child.stdout,), name=f"{name}-output", daemon=True).start()

    def _listen(self, stream: IO[bytes] | None) -> None:
        """Keep the first line; copy what follows to the log, or the pipe would fill up and the child stop."""
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
        """Wait for the first line on standard output. Raises NotStarted."""
        self._said.wait(START_DEADLINE)
        if not self._lines:
            raise NotStarted(self.explain("said nothing"))
        return self._lines[0]

    def explain(self, what: str) -> str:
        """Say what is wrong, with the end of the log."""
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
        return f"{self.name} {what} (exit code {self.child.poll()}); {self.log}:\n{tail}"

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.child.poll() is None

    def stop(self) -> None:
        """End it and whatever it started.

        Its own children are asked by itself: a signal to all hangs a django-q2 cluster.
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
    """A process by id and start time: an id alone may have been given away again."""

    __slots__ = ()

    @property
    def pid(self) -> int:
        """Its id."""
        return self[0]


def _table() -> dict[Entry, int]:
    """Return the parents of all processes, as far as the system tells (Linux)."""
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


class Shop:
    """Providers, web server and cluster over one database, on free ports of 127.0.0.1.

    Carts and orders have a provider with a ledger each; ``providers`` are the addresses by flow.
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
        process = Process(name, command=command, env=self.env, cwd=self.root, log=log)
        self._running.append(process)
        return process

    def check(self) -> None:
        """Raise NotStarted when one of the processes has ended."""
        for process in self._running:
            if not process.alive:
                raise NotStarted(process.explain("has ended"))

    def wait(self) -> None:
        """Stay until a process ends (NotStarted) or somebody interrupts."""
        while True:
            self.check()
            time.sleep(0.5)

    def stop(self) -> None:
        """End everything, those first who use the others."""
        while self._running:
            self._running.pop().stop()
