"""Processes that tests start: each is ended by the test that started it, by its own pid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from temporalex_django.liveness.process_identity import identity_of
from tests.support.waiting import wait_for

MANAGE = [sys.executable, "-W", "ignore", "-m", "django"]


@contextmanager
def minding_interrupts() -> Iterator[None]:
    """What is started in the block minds SIGINT; a shell hands it down ignored to what it starts in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Process:
    """A ``manage.py`` command in a session of its own; what it says goes to a file. ``prefix``: a command around it."""

    def __init__(self, command: list[str], env: dict[str, str], log: Path, *, prefix: Sequence[str] = ()) -> None:
        self.log = log
        with log.open("ab") as output, minding_interrupts():
            self.popen = subprocess.Popen(
                [*prefix, *MANAGE, *command], env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def child(self) -> int:
        """The process that works; that of ``pid`` is its guardian."""
        return self._children()[0]

    @property
    def has_child(self) -> bool:
        return bool(self._children())

    def _children(self) -> list[int]:
        every = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
        return [pid for pid in every if parent_of(pid) == self.pid]

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone, and its children."""
        children = self._children()
        os.kill(self.pid, signal.SIGKILL)
        self.popen.wait(20)
        wait_for(lambda: not any(identity_of(child) for child in children))

    def terminate(self, *, seconds: float = 40.0) -> int:
        """SIGTERM, and wait for its own end; the exit code."""
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(seconds)

    def says(self, text: str) -> None:
        wait_for(lambda: text in self.log.read_text(errors="replace") or self._gone(), what=f"{text!r} in {self.log}")

    def _gone(self) -> bool:
        if self.popen.poll() is not None:
            raise AssertionError(
                f"the process ended with {self.popen.returncode}:\n{self.log.read_text(errors='replace')}"
            )
        return False


@contextmanager
def running(command: list[str], env: dict[str, str], log: Path, *, prefix: Sequence[str] = ()) -> Iterator[Process]:
    """A process for the length of the block; nothing of its session is left behind."""
    process = Process(command, env, log, prefix=prefix)
    try:
        yield process
    except BaseException:
        print(log.read_text(errors="replace")[-6000:])
        raise
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.popen.wait(20)


@contextmanager
def worker(env: dict[str, str], tmp_path: Path, *arguments: str, name: str = "worker") -> Iterator[Process]:
    """``manage.py temporalex worker``, registered when the block begins."""
    from temporalex_django.models import Worker

    before = set(Worker.objects.values_list("pk", flat=True))
    with running(["temporalex", "worker", *arguments], env, tmp_path / f"{name}.log") as process:
        new = Worker.objects.exclude(pk__in=before)
        wait_for(lambda: process._gone() or any(parent_of(row.pid) == process.pid for row in new.all()))
        yield process


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


@contextmanager
def cluster(env: dict[str, str], tmp_path: Path) -> Iterator[Process]:
    """``manage.py qcluster``, with a worker when the block begins."""
    from temporalex_django.models import Worker

    with running(["qcluster", "--skip-checks"], env, tmp_path / "cluster.log") as process:
        wait_for(lambda: process._gone() or Worker.objects.filter(kind="q2").exists(), what="a worker")
        yield process


def members(process: Process, *, parent: int | None = None) -> list[int]:
    """The living processes of the group that this one leads, all or those of one parent."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            pid, _, rest = stat.read_text().partition(" ")
            state, ppid, group, *_ = rest.rpartition(")")[2].split()
            if int(group) == process.pid and state not in {"Z", "X"} and parent in {None, int(ppid)}:
                found.append(int(pid))
    return found
