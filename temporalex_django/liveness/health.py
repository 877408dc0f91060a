"""The health of workers, and their load."""

from __future__ import annotations

import json
import math
import os
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, TypedDict

from temporalex_django.conf import CLUSTER_CONNECTIONS, get_settings, uses_cluster
from temporalex_django.engine import policy
from temporalex_django.liveness.crash_markers import marker_folder
from temporalex_django.liveness.process_identity import has_ended, identity_of

# --- health -----------------------------------------------------------------------------------------------------------
#
# The health of a worker as its supervisor sees it: a small file, written every second, and one of its guardian.
#
# No server, port or database is needed. ``manage.py temporalex health`` reads the files of this machine or container.
# It judges them by the system's monotonic clock, which all processes share.


_HEALTH, _GUARDIAN, _FRESH = ".health", ".guardian", "-new"
_MOMENT = struct.Struct("<d")

State = Literal["starting", "working", "draining", "leaving"]
Check = Literal["started", "live", "ready"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The content of the health file of one worker. Times are seconds of the monotonic clock.

    - ``wrote_at``: the last write, by its maintenance.
    - ``looked_at``: the last time at which its worker loop looked for work.
    - ``lease_until``: the end of its lease; 0.0: it has none.
    - ``leaves_by``: the time by which it has ended, once it was asked to stop; 0.0: it was not asked.
    - ``guardian``: the pid of the process that ends it when it hangs; 0: there is none.
    - ``runs``, ``activities``, ``turns``: executors in memory, activities in the pool, and runs advanced so far.
    - ``connections``: the largest number of database connections that it opens.
    """

    worker: str
    pid: int
    guardian: int
    kind: str
    queues: Sequence[str]
    state: State
    wrote_at: float
    looked_at: float
    lease_until: float = 0.0
    leaves_by: float = 0.0
    runs: int = 0
    activities: int = 0
    turns: int = 0
    connections: int = 0
    counters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthVerdict:
    """The verdict about the health of one worker.

    ``live`` False means that it should be ended, and ``ready`` False that it takes no work now. ``problems`` has a
    sentence for each problem; empty if ready.
    """

    started: bool
    live: bool
    ready: bool
    problems: Sequence[str]


def judge_health(health: Health, *, now: float, limit: float, guardian_at: float | None) -> HealthVerdict:
    """Return the verdict about the health of one worker at ``now`` (``time.monotonic``). No I/O.

    ``limit`` is the number of seconds for which the turns, the maintenance and the guardian of the worker may show no
    sign of life. ``guardian_at`` is the time of the guardian's last write, or None if it has no file.

    A database that does not answer makes a worker unready, not dead: a restart would not help.
    """
    dead, unready = [], []
    if (silent := now - health.wrote_at) > limit:
        dead.append(f"its maintenance has been silent for {silent:.0f} s")
    if health.state in ("working", "draining") and (silent := now - health.looked_at) > limit:
        dead.append(f"it has not looked for work for {silent:.0f} s")
    if health.leaves_by and now > health.leaves_by:
        dead.append("it was asked to stop and is still running")
    if health.guardian:
        if guardian_at is None:
            dead.append(f"its guardian {health.guardian} is gone")
        elif (silent := now - guardian_at) > limit:
            dead.append(f"its guardian {health.guardian} has been silent for {silent:.0f} s")
    started = health.state != "starting"
    if not started:
        unready.append("it is starting: it is waiting for the database or its tables")
    elif health.lease_until <= now:
        unready.append("it has no lease: the database does not answer, or it was declared dead")
    if health.state == "draining":
        unready.append("it is drained: it accepts no new work")
    if health.state == "leaving":
        unready.append("it was asked to stop and is finishing its running work")
    return HealthVerdict(started=started, live=not dead, ready=not (dead or unready), problems=(*dead, *unready))


class _ProcessFile:
    """A file in which this process reports about itself, for one database, which ``domain`` identifies.

    If the folder cannot be written, the process continues without the file, and ``temporalex health`` does not see it.
    """

    suffix: str

    def __init__(self, domain: str) -> None:
        self.domain = domain
        self.path: Path | None = None
        with suppress(OSError):
            self.path = _path(domain, os.getpid(), self.suffix)

    def _replace_file(self, data: bytes) -> None:
        """Replace the file as a whole, so that no reader sees half of it."""
        if self.path is None:
            return
        with suppress(OSError):
            fresh = self.path.with_suffix(self.suffix + _FRESH)
            fresh.write_bytes(data)
            fresh.replace(self.path)

    def remove(self) -> None:
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)


class HealthFile(_ProcessFile):
    """The file in which a worker writes its health, for the command ``health``.

    ``domain`` identifies the database of the worker (``DjangoStorage.domain``).
    """

    suffix = _HEALTH

    def __init__(self, domain: str) -> None:
        super().__init__(domain)
        self._guardian = 0

    def write(self, health: Health) -> None:
        self._replace_file(json.dumps(asdict(health)).encode())

    def guardian_pid(self) -> int:
        """Return the pid of the guardian, which is the parent process if it has written its file, or 0 without one."""
        parent = os.getppid()
        with suppress(OSError):
            if _path(self.domain, parent, _GUARDIAN).exists():
                # Kept once found: after the guardian's death the parent is another process, and a guardian that is gone
                # is a problem to report.
                self._guardian = parent
        return self._guardian


class GuardianFile(_ProcessFile):
    """The file of a guardian: the time at which it last checked its workers."""

    suffix = _GUARDIAN

    def write(self) -> None:
        self._replace_file(_MOMENT.pack(time.monotonic()))


def read_health_files(domain: str) -> list[tuple[Health, float | None]]:
    """Return ``(health, guardian's time)`` for each worker of this machine that lives, sorted by pid.

    ``domain`` identifies their database. The second item is the time at which its guardian last wrote its file
    (``time.monotonic``), or None without one. Files that cannot be read are left out.
    """
    reports = []
    for path in _files(domain, _HEALTH):
        if _is_stale(path):
            continue
        with suppress(OSError, ValueError, TypeError):
            # A worker of another release may have written other fields: unknown ones are ignored, and missing ones
            # raise ``TypeError`` unless they have a default.
            raw: dict[str, Any] = json.loads(path.read_text())
            health = Health(
                **{name: raw[name] for name in raw.keys() & {health_field.name for health_field in fields(Health)}}
            )
            reports.append(
                (health, _guardian_moment(_path(domain, health.guardian, _GUARDIAN)) if health.guardian else None)
            )
    return sorted(reports, key=lambda report: report[0].pid)


def delete_stale_files(domain: str) -> None:
    """Delete the files of processes that ended without deleting them, for the database that ``domain`` identifies."""
    for suffix in (_HEALTH, _GUARDIAN, _HEALTH + _FRESH, _GUARDIAN + _FRESH):
        for path in _files(domain, suffix):
            if _is_stale(path):
                with suppress(OSError):
                    path.unlink(missing_ok=True)


def _path(domain: str, pid: int, suffix: str) -> Path:
    return marker_folder() / f"{domain}.{identity_of(pid).replace(':', '.') or pid}{suffix}"


def _files(domain: str, suffix: str) -> Iterator[Path]:
    with suppress(OSError):
        yield from marker_folder().glob(f"{domain}.*{suffix}")


def _is_stale(path: Path) -> bool:
    """Return True if the process that wrote the file has ended."""
    identity = path.name.partition(".")[2].rpartition(".")[0]
    if identity.isdecimal():  # not Linux: only the pid is known
        try:
            os.kill(int(identity), 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False
    return has_ended(identity.replace(".", ":"))


def _guardian_moment(path: Path) -> float | None:
    try:
        return float(_MOMENT.unpack(path.read_bytes())[0])
    except (OSError, struct.error):
        return None


# --- load -------------------------------------------------------------------------------------------------------------
#
# The load of a worker: how long its runs and activities take, and how many there are.
#
# A worker stores it in its row with each heartbeat. ``operations.fleet.scaling`` computes from the rows of all workers
# how many workers a queue needs.


_EXTRA_CONNECTIONS: Final = 5


class QueueLoad(TypedDict):
    """The attempts of activities of one queue: how many end in a second, and the mean of their seconds.

    ``share`` is the part of a worker that one running attempt occupies, such as 1/8 for one of eight threads.
    """

    rate: float
    seconds: float
    share: float


class WorkerLoad(TypedDict):
    """The load of a worker, as its row stores it.

    ``busy`` is the part of its time, from 0 to 1, in which it
    ran turns, and ``run_seconds`` the mean time to advance one run; None if it has advanced none. ``queues`` has the
    load by activities, by queue.
    """

    busy: float
    run_seconds: float | None
    queues: dict[str, QueueLoad]


class LoadMeter:
    """Measures the load of one worker. Thread-safe.

    All sums fade with time, so that a load of a minute ago counts little.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._updated_at = time.monotonic()
        self._elapsed = self._busy = self._runs = 0.0
        #: By queue: the number of attempts, and the sums of their seconds and of their shares of the worker.
        self._attempts: dict[str, tuple[float, float, float]] = {}

    def add_attempt(self, queue: str, seconds: float, *, slots: int) -> None:
        """Count an attempt of an activity that has ended after ``seconds``.

        ``slots`` is the number of such attempts that the worker can run at a time.
        """
        with self._lock:
            count, total, shares = self._attempts.get(queue, (0.0, 0.0, 0.0))
            if count or len(self._attempts) < policy.MAX_MEASURED_QUEUES:
                self._attempts[queue] = count + 1.0, total + seconds, shares + 1.0 / slots

    def add_poll(self, seconds: float, *, runs: int) -> None:
        """Count a poll that found work: it took ``seconds`` and advanced ``runs`` runs."""
        with self._lock:
            self._busy += seconds
            self._runs += runs

    def load(self) -> WorkerLoad:
        """Return the present load, and let what was measured fade."""
        with self._lock:
            now = time.monotonic()
            passed, self._updated_at = now - self._updated_at, now
            elapsed = self._elapsed + passed
            load = WorkerLoad(
                busy=round(min(1.0, self._busy / elapsed), 4) if elapsed else 0.0,
                run_seconds=round(self._busy / self._runs, 6) if self._runs >= 1.0 else None,
                queues={
                    queue: QueueLoad(
                        rate=round(count / elapsed, 4), seconds=round(total / count, 4), share=round(shares / count, 6)
                    )
                    for queue, (count, total, shares) in self._attempts.items()
                    if elapsed
                },
            )
            weight = math.exp(-passed / policy.LOAD_MEMORY_SECONDS)
            self._elapsed, self._busy, self._runs = elapsed * weight, self._busy * weight, self._runs * weight
            self._attempts = {
                queue: (count * weight, total * weight, shares * weight)
                for queue, (count, total, shares) in self._attempts.items()
                if count * weight > policy.LEAST_ATTEMPTS
            }
            return load


def extra_connections() -> int:
    """Return the number of database connections of a worker that are not those of its threads for activities.

    Its turns, its maintenance, LISTEN and its background work have one each, and so does the thread in which its
    ``async`` activities use the database. A Temporal cluster needs ``CLUSTER_CONNECTIONS`` more.
    """
    return _EXTRA_CONNECTIONS + (CLUSTER_CONNECTIONS if uses_cluster() else 0)


def activity_threads() -> int:
    """Return the number of threads for activities: ``ACTIVITY_THREADS``, as far as ``WORKER_CONNECTIONS`` allows."""
    settings = get_settings()
    if settings.WORKER_CONNECTIONS is None:
        return settings.ACTIVITY_THREADS
    return min(settings.ACTIVITY_THREADS, settings.WORKER_CONNECTIONS - extra_connections())
