"""A few bytes that outlive their process: which runs and activities it was running when it died.

A small file mapped into memory: writing to it costs no system call, and SIGKILL does not take it away. A process has
one a database; its name says which process and which database, so that a neighbour finds and judges it also when no row
of a worker names it (web processes have none). Layout: a header, then marks of a fixed size; whoever runs user code
holds one of those.

The owner holds a lock on its marker (``flock``) as long as it lives. A marker that can be opened here and whose lock is
free is the proof that its owner ran on this machine and has ended, whatever process namespaces and boot ids say: cloned
machines share those. The name ends in a random part, so that no other machine has a marker of the same name.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import mmap
import os
import secrets
import stat
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple
from uuid import UUID

from temporalex_django.liveness.process_identity import identity_of

_MAGIC = b"TXM1"
_HEADER = struct.Struct("<4sxxxxqd")  # beats of the watchdog, 0: not watched; seconds after which a guardian ended it
_HEARTBEATS, _ENDED_AFTER = 8, 16
_SLOT = struct.Struct("<B16s")  # what kind, 0: nothing; which one
_MAX_SLOTS = 1024
_SIZE = _HEADER.size + _SLOT.size * (_MAX_SLOTS + 1)  # the last one is for those that find none free, and is never read
_SUFFIX, _FRESH = ".marker", ".marker-new"

Kind = Literal["chain", "run", "task", "trial"]
_KINDS: tuple[Kind, ...] = ("chain", "run", "task", "trial")


class MarkedWork(NamedTuple):
    """What was being run: code of a chain, a query of a run, an activity (the id of its row); that this is on trial."""

    kind: Kind
    key: UUID | int


@dataclass(frozen=True, slots=True)
class MarkerContent:
    """What a process left in its marker.

    ``ended_after``: seconds after which its guardian ended it, 0.0 when that did not.
    """

    marks: tuple[MarkedWork, ...]
    ended_after: float = 0.0


class MarkerSlot:
    """One place of a marker, for one thread or one attempt at a time.

    What is noted inside of something hides it until it is over.
    """

    __slots__ = ("_at", "_marker", "_outer")

    def __init__(self, marker: CrashMarker) -> None:
        self._marker = marker
        self._outer: list[bytes] = []
        self._at = marker.acquire_slot()

    def record(self, kind: Kind, key: UUID | int) -> None:
        at, data = self._at, self._marker.data
        if data[at]:
            self._outer.append(data[at : at + _SLOT.size])
            data[at] = 0
        data[at + 1 : at + _SLOT.size] = key.bytes if isinstance(key, UUID) else key.to_bytes(16, "little")
        data[at] = _KINDS.index(kind) + 1

    def clear(self) -> None:
        """It came through."""
        at, data = self._at, self._marker.data
        data[at] = 0
        if self._outer:
            outer = self._outer.pop()
            data[at + 1 : at + _SLOT.size] = outer[1:]
            data[at] = outer[0]

    def release(self) -> None:
        self._marker.data[self._at] = 0
        self._marker.release_slot(self._at)

    def __del__(self) -> None:
        """Its thread is gone."""
        self.release()


class _ThreadSlot(threading.local):
    slot: MarkerSlot | None = None


class CrashMarker:
    """The marker of this process for one database; ``open_marker`` gives it.

    ``path`` is empty where no file can be had.
    """

    def __init__(self, domain: str) -> None:
        self.domain = domain
        self.pid = os.getpid()
        self.holders = 0
        self.path = ""
        self._lock: int | None = None
        self.data = self._map_file()
        self._free = [_HEADER.size + number * _SLOT.size for number in reversed(range(_MAX_SLOTS))]
        self._own = _ThreadSlot()

    def _map_file(self) -> mmap.mmap:
        handle, lock, path = None, None, None
        try:
            identity = identity_of().replace(":", ".")
            path = marker_folder() / f"{self.domain}.{identity}.{secrets.token_hex(8)}{_FRESH}"
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            # all of it at once: where the folder is full, the first mark in a file with holes would end the process
            # by SIGBUS
            if os.pwrite(handle, _HEADER.pack(_MAGIC, 0, 0.0).ljust(_SIZE, b"\0"), 0) < _SIZE:
                raise OSError(errno.ENOSPC, "no room for a marker")
            # a handle of its own: a mapping has a copy of its handle, which children of a fork have, too
            lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            data = mmap.mmap(handle, _SIZE)
            path = path.rename(path.with_suffix(_SUFFIX))  # nobody sees it without its lock
        except OSError:
            if path is not None:
                path.unlink(missing_ok=True)
            if lock is not None:
                os.close(lock)
            return mmap.mmap(-1, _SIZE)  # nobody will know what it ran
        finally:
            if handle is not None:
                os.close(handle)
        self.path, self._lock = str(path), lock
        return data

    def unlock(self) -> None:
        """Close the handle that has the lock. In the child of a fork the parent keeps its lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def acquire_slot(self) -> int:
        return self._free.pop() if self._free else _SIZE - _SLOT.size

    def release_slot(self, at: int) -> None:
        if at < _SIZE - _SLOT.size:
            self._free.append(at)

    def record_chain(self, chain: UUID | None) -> None:
        """This thread runs code of that chain from now on; None: it came through."""
        slot = self._own.slot
        if slot is None:
            slot = self._own.slot = MarkerSlot(self)
        if chain is not None:
            slot.record("chain", chain)
        else:
            slot.clear()

    @contextmanager
    def record_work(self, kind: Kind, key: UUID | int) -> Iterator[None]:
        """The same for the length of a block, in a place of its own."""
        slot = MarkerSlot(self)
        slot.record(kind, key)
        try:
            yield
        finally:
            slot.clear()

    def heartbeat(self) -> None:
        """The watchdog of this process lives and nothing holds out against it.

        From the first time on a guardian may end this process.
        """
        (count,) = struct.unpack_from("<q", self.data, _HEARTBEATS)
        struct.pack_into("<q", self.data, _HEARTBEATS, count + 1)

    def stop_heartbeat(self) -> None:
        """Nobody beats any more, and nobody need wonder."""
        struct.pack_into("<q", self.data, _HEARTBEATS, 0)

    def close(self) -> None:
        """One holder less.

        With the last one the file goes; who still notes something writes into memory that nobody reads.
        """
        with _lock:
            self.holders -= 1
            if not self.holders:
                self._remove()

    def _remove(self) -> None:
        if self.pid != os.getpid():
            return  # the child of a fork: it is its parent's
        _markers.pop((self.pid, self.domain), None)
        self.stop_heartbeat()
        if self.path:
            Path(self.path).unlink(missing_ok=True)
        self.unlock()


_lock = threading.Lock()
_markers: dict[tuple[int, str], CrashMarker] = {}


def open_marker(domain: str) -> CrashMarker:
    """The marker of this process for a database (``DjangoStorage.domain``).

    Each ``open_marker`` is ended by a ``close``, or the process.
    """
    key = (os.getpid(), domain)
    with _lock:
        if key not in _markers:
            _markers[key] = CrashMarker(domain)
        _markers[key].holders += 1
        return _markers[key]


@atexit.register
def _remove_all() -> None:
    for marker in list(_markers.values()):
        with suppress(OSError):
            marker._remove()  # noqa: SLF001 - the same module


def _unlock_in_child() -> None:
    """The lock ends with the process that took it, also where children of its forks live on."""
    for marker in _markers.values():
        if marker.pid != os.getpid():
            marker.unlock()


os.register_at_fork(after_in_child=_unlock_in_child)


# --- what others left -------------------------------------------------------------------------------------------------


def marker_folder() -> Path:
    """Where the markers of this user are. Raises ``PermissionError`` when somebody else made it."""
    path = Path(tempfile.gettempdir()) / f"temporalex-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PermissionError(f"{path} is no folder of ours")
    return path


Owner = Literal["alive", "ended", "unknown"]


def owner_state(path: str) -> Owner:
    """Whether the process that made this marker lives. ``unknown``: the marker cannot be opened here."""
    if _read_content(path) is None:
        return "unknown"
    with suppress(OSError), _open_file(path, os.O_RDONLY) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # judges do not exclude each other
        except BlockingIOError:
            return "alive"
        return "ended"
    return "unknown"


def read_marker(path: str) -> MarkerContent | None:
    """What the owner of this marker was running when it ended.

    None: it cannot be known, or the file is no crash marker of this user's.
    """
    data = _read_content(path)
    if data is None:
        return None
    marks = []
    for at in range(_HEADER.size, _SIZE - _SLOT.size, _SLOT.size):
        if data[at]:
            kind, key = _SLOT.unpack_from(data, at)
            if kind <= len(_KINDS):
                name = _KINDS[kind - 1]
                marks.append(
                    MarkedWork(name, int.from_bytes(key, "little") if name in ("task", "trial") else UUID(bytes=key))
                )
    return MarkerContent(tuple(dict.fromkeys(marks)), _HEADER.unpack_from(data)[2])


def remove_marker(path: str) -> None:
    """Delete a marker; nothing that is not one of this user's, whatever a row of a worker says."""
    if _read_content(path) is not None:
        with suppress(OSError):
            Path(path).unlink()


def clear_marker(path: str) -> None:
    """Erase what stands in a marker of a process that has ended: inside the transaction that judges it, as its end.

    So a death counts once, also when its judge is killed behind his commit; one who is killed just before it takes the
    knowledge with him, and one more death has to tell.
    """
    with suppress(OSError), _open_file(path, os.O_RDWR) as handle:
        os.pwrite(handle, bytes(_SIZE - _HEADER.size), _HEADER.size)


def read_heartbeats(pid: int, domain: str) -> tuple[str, int]:
    """Path of the marker of a process and how often its watchdog has beaten.

    0: it is not watched (yet, or any more).
    """
    identity = identity_of(pid)
    with suppress(OSError, struct.error):
        if identity:
            for marker_path in marker_folder().glob(f"{domain}.{identity.replace(':', '.')}.*{_SUFFIX}"):
                with _open_file(str(marker_path), os.O_RDONLY) as handle:
                    return str(marker_path), _HEADER.unpack(os.read(handle, _HEADER.size))[1]
    return "", 0


def record_end(path: str, seconds: float) -> None:
    """The guardian ends the owner of this marker, which has not beaten for so long."""
    with suppress(OSError), _open_file(path, os.O_RDWR) as handle:
        os.pwrite(handle, struct.pack("<d", seconds), _ENDED_AFTER)


@contextmanager
def abandoned_markers(domain: str) -> Iterator[list[str]]:
    """Crash markers for this database whose processes have ended. While inside nobody else gets the same ones."""
    paths: list[str] = []
    handles: list[int] = []
    try:
        with suppress(OSError):
            for entry in os.scandir(marker_folder()):
                if entry.name.partition(".")[0] != domain or not entry.name.endswith(_SUFFIX):
                    continue
                with suppress(OSError):
                    handle = os.open(entry.path, os.O_RDWR | os.O_NOFOLLOW)
                    handles.append(handle)
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.fstat(handle).st_nlink:
                        paths.append(entry.path)
        yield paths
    finally:
        for handle in handles:
            os.close(handle)


def _read_content(path: str) -> bytes | None:
    with suppress(OSError), _open_file(path, os.O_RDONLY) as handle:
        data = os.read(handle, _SIZE + 1)
        return data if len(data) == _SIZE and data[:4] == _MAGIC else None
    return None


@contextmanager
def _open_file(path: str, flags: int) -> Iterator[int]:
    """A marker of this user's. Raises ``OSError`` for anything else."""
    if Path(path).parent != marker_folder() or not path.endswith(_SUFFIX):
        raise PermissionError(f"{path} is no marker of ours")
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            raise PermissionError(f"{path} is no marker of ours")
        yield handle
    finally:
        os.close(handle)
