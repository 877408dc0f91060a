"""Crash markers: a few bytes that outlive their process and name what it was running when it died.

A marker is a small file that is mapped into memory. Writing to it costs no system call, and it survives SIGKILL. A
process has one marker for each database. The file name contains the process and the database. So other processes on the
machine can find and judge it without the row of a worker, which web processes do not have. Layout: a header, then slots
of a fixed size; a thread or attempt that runs user code holds one slot.

The owner holds a lock on its marker (``flock``) as long as it lives. A marker that can be opened here and whose lock is
free proves two things: its owner ran on this machine, and it has ended. Process namespaces and boot ids prove neither,
since cloned machines share them. The name ends in a random part, so no other machine has a marker of the same name. See
decision 22.
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
_HEADER = struct.Struct("<4sxxxxqd")  # heartbeats, 0: not watched; seconds after which a guardian ended it
_HEARTBEATS, _ENDED_AFTER = 8, 16
_SLOT = struct.Struct("<B16s")  # kind (0: empty), key
_MAX_SLOTS = 1024
# The last slot is for work that finds no free one. Several threads may write to it, so it is never read.
_SIZE = _HEADER.size + _SLOT.size * (_MAX_SLOTS + 1)
_SUFFIX, _FRESH = ".marker", ".marker-new"

Kind = Literal["chain", "run", "task", "trial"]
_KINDS: tuple[Kind, ...] = ("chain", "run", "task", "trial")


class MarkedWork(NamedTuple):
    """Work that a crash marker names as running in its process, by kind and key.

    The kinds are ``chain`` (code of a run; the key is the id of its chain), ``run`` (a query; the key is the id of the
    run), ``task`` (an activity, by the id of its row) and ``trial`` (an activity that the quarantine tries alone, also
    by the id of its row).
    """

    kind: Kind
    key: UUID | int


@dataclass(frozen=True, slots=True)
class MarkerContent:
    """The content of the crash marker of a process: the file that names what the process was running.

    ``marks`` is the work that it names. ``ended_after`` is the number of seconds without a heartbeat after which a
    guardian killed the process, or 0.0 if none did.
    """

    marks: tuple[MarkedWork, ...]
    ended_after: float = 0.0


class MarkerSlot:
    """One record in the crash marker, the file that says what this process runs, for one thread or attempt.

    The slot is empty, or it names the work that runs now. If work is recorded while other work is, the new record hides
    the older one until ``clear`` removes it.
    """

    __slots__ = ("_at", "_marker", "_outer")

    def __init__(self, marker: CrashMarker) -> None:
        self._marker = marker
        self._outer: list[bytes] = []
        self._at = marker.acquire_slot()

    def record(self, kind: Kind, key: UUID | int) -> None:
        """Record in the marker that a run or activity runs from now on, in case its code ends the process.

        ``kind`` and ``key`` are those of ``MarkedWork``.
        """
        at, data = self._at, self._marker.data
        # The kind is cleared first and written last. A process that dies in between leaves an empty slot, never a kind
        # with half a key.
        if data[at]:
            self._outer.append(data[at : at + _SLOT.size])
            data[at] = 0
        data[at + 1 : at + _SLOT.size] = key.bytes if isinstance(key, UUID) else key.to_bytes(16, "little")
        data[at] = _KINDS.index(kind) + 1

    def clear(self) -> None:
        """Remove the newest record, after its code has returned; a record that it hid is visible again."""
        at, data = self._at, self._marker.data
        data[at] = 0
        if self._outer:
            outer = self._outer.pop()
            data[at + 1 : at + _SLOT.size] = outer[1:]
            data[at] = outer[0]

    def release(self) -> None:
        """Clear the slot, so that it records no work, and make it free for another thread or attempt."""
        self._marker.data[self._at] = 0
        self._marker.release_slot(self._at)

    def __del__(self) -> None:
        """Release the slot when its thread has ended."""
        if hasattr(self, "_at"):  # a deadlock may interrupt the thread before it has the slot
            self.release()


class _ThreadSlot(threading.local):
    """The record (slot) in the crash marker in which a thread names the run whose code it runs; None at first."""

    slot: MarkerSlot | None = None


class CrashMarker:
    """The crash marker of this process for one database: a file that names what the process is running.

    The file outlives the process. Use ``open_marker`` to get the marker. ``domain`` identifies the database
    (``DjangoStorage.domain``). ``path`` is empty if the file could not be created; the records then go to memory that
    nobody reads.
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
        """Create and lock the file, and map it. If that fails, return memory without a file."""
        handle, lock, path = None, None, None
        try:
            identity = identity_of().replace(":", ".")
            path = marker_folder() / f"{self.domain}.{identity}.{secrets.token_hex(8)}{_FRESH}"
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            # Write the whole file at once. If the file had holes and the disk were full, the first mark would end the
            # process by SIGBUS.
            if os.pwrite(handle, _HEADER.pack(_MAGIC, 0, 0.0).ljust(_SIZE, b"\0"), 0) < _SIZE:
                raise OSError(errno.ENOSPC, "no space left for a crash marker")
            # The lock needs a handle of its own: a mapping keeps a copy of its handle, and children of a fork inherit
            # that copy.
            lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            data = mmap.mmap(handle, _SIZE)
            # Only now does the file have the name that others look for. So no process sees it without its lock.
            path = path.rename(path.with_suffix(_SUFFIX))
        except OSError:
            if path is not None:
                path.unlink(missing_ok=True)
            if lock is not None:
                os.close(lock)
            # Without a file the process works on, but its deaths cannot be attributed.
            return mmap.mmap(-1, _SIZE)
        finally:
            if handle is not None:
                os.close(handle)
        self.path, self._lock = str(path), lock
        return data

    def unlock(self) -> None:
        """Close the file handle that holds the lock, by which others see that the process of the marker is alive.

        In a forked child this leaves the lock to the parent.
        """
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def acquire_slot(self) -> int:
        """Reserve a free slot (record) of the marker file and return its offset in bytes.

        If no slot is free, return the offset of the overflow slot. Several callers may share that slot, and no process
        reads it, so their work is not recorded. Call this once for each thread or attempt that begins to run code which
        may end the process. Return the slot with ``release_slot``.
        """
        try:
            return self._free.pop()  # in one step: another thread may take the last one
        except IndexError:
            return _SIZE - _SLOT.size

    def release_slot(self, at: int) -> None:
        if at < _SIZE - _SLOT.size:
            self._free.append(at)

    def record_chain(self, chain: UUID | None) -> None:
        """Record in the marker that this thread runs code of the run whose chain has the id ``chain``.

        If the process dies, other processes read it. None clears the record: the code has returned.
        """
        slot = self._own.slot
        if slot is None:
            slot = self._own.slot = MarkerSlot(self)
        if chain is not None:
            slot.record("chain", chain)
        else:
            slot.clear()

    @contextmanager
    def record_work(self, kind: Kind, key: UUID | int) -> Iterator[None]:
        """Record that this process runs a run or activity while the block runs; ``MarkedWork`` lists kinds and keys."""
        slot = MarkerSlot(self)
        slot.record(kind, key)
        try:
            yield
        finally:
            slot.clear()

    def heartbeat(self) -> None:
        """Count a heartbeat in the marker: the watchdog of this process lives, and all code can be interrupted.

        After the first heartbeat a guardian (the parent process) ends this process if no more come.
        """
        (count,) = struct.unpack_from("<q", self.data, _HEARTBEATS)
        struct.pack_into("<q", self.data, _HEARTBEATS, count + 1)

    def stop_heartbeat(self) -> None:
        """Set the number of heartbeats in the marker to 0, so that no guardian watches this process."""
        struct.pack_into("<q", self.data, _HEARTBEATS, 0)

    def close(self) -> None:
        """End the use of this marker by one caller of ``open_marker``. The last one removes the file.

        A thread that still records something then writes into memory that nobody reads.
        """
        with _lock:
            self.holders -= 1
            if not self.holders:
                self._remove()

    def _remove(self) -> None:
        # After a fork both processes run this at exit.
        if self.pid != os.getpid():
            return  # the child of a fork: the marker belongs to its parent
        _markers.pop((self.pid, self.domain), None)
        self.stop_heartbeat()
        if self.path:
            Path(self.path).unlink(missing_ok=True)
        self.unlock()


_lock = threading.Lock()
_markers: dict[tuple[int, str], CrashMarker] = {}


def open_marker(domain: str) -> CrashMarker:
    """Return the crash marker of this process for a database (``DjangoStorage.domain``).

    Call ``close`` once for each ``open_marker``. The end of the process closes it, too.
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
    """Close inherited lock handles: the lock ends with the process that took it, even if children live on."""
    for marker in _markers.values():
        if marker.pid != os.getpid():
            marker.unlock()


os.register_at_fork(after_in_child=_unlock_in_child)


# --- markers of other processes ---------------------------------------------------------------------------------------


def marker_folder() -> Path:
    """Return the folder for the crash markers and health files of this user, and create it if needed.

    Raises ``PermissionError`` if another user made it.
    """
    path = Path(tempfile.gettempdir()) / f"temporalex-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PermissionError(f"{path} is not a folder of this user")
    return path


Owner = Literal["alive", "ended", "unknown"]


def owner_state(path: str) -> Owner:
    """Return the state of the process that made the crash marker at ``path``, by the lock that it holds on the file.

    ``unknown`` means that this process cannot open the marker.
    """
    if _read_content(path) is None:
        return "unknown"
    with suppress(OSError), _open_file(path, os.O_RDONLY) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two judges do not exclude each other
        except BlockingIOError:
            return "alive"
        return "ended"
    return "unknown"


def read_marker(path: str) -> MarkerContent | None:
    """Return the content of the crash marker at ``path``: the runs and activities that its process ran when it ended.

    Returns None if that cannot be known, or if the file is no crash marker of this user.
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
    """Delete the crash marker at ``path``, if it is one of this user.

    Any other file stays, even if the row of a worker names its path.
    """
    if _read_content(path) is not None:
        with suppress(OSError):
            Path(path).unlink()


def clear_marker(path: str) -> None:
    """Erase the records of running work in the crash marker of a process that has ended.

    Call it at the end of the transaction that attributes the death, before the commit. A death then counts once, even
    if the process that attributes it is killed after its commit. If that process is killed between this call and the
    commit, the records are lost and the next death has to explain it.
    """
    with suppress(OSError), _open_file(path, os.O_RDWR) as handle:
        os.pwrite(handle, bytes(_SIZE - _HEADER.size), _HEADER.size)


def read_heartbeats(pid: int, domain: str) -> tuple[str, int]:
    """Return ``(path of the crash marker, number of heartbeats that the watchdog has sent)`` of a process.

    ``domain`` identifies the database of the process (``DjangoStorage.domain``). The number is 0 if the process is not
    watched (yet, or any more), and the path is empty if it has no marker.
    """
    identity = identity_of(pid)
    with suppress(OSError, struct.error):
        if identity:
            for marker_path in marker_folder().glob(f"{domain}.{identity.replace(':', '.')}.*{_SUFFIX}"):
                with _open_file(str(marker_path), os.O_RDONLY) as handle:
                    return str(marker_path), _HEADER.unpack(os.read(handle, _HEADER.size))[1]
    return "", 0


def record_end(path: str, seconds: float) -> None:
    """Record in a crash marker that a guardian is about to kill its owner, after ``seconds`` without a heartbeat."""
    with suppress(OSError), _open_file(path, os.O_RDWR) as handle:
        os.pwrite(handle, struct.pack("<d", seconds), _ENDED_AFTER)


@contextmanager
def abandoned_markers(domain: str) -> Iterator[list[str]]:
    """Yield the paths of the crash markers whose processes have ended, for the database that ``domain`` identifies.

    The markers are locked inside the block, so no other process gets the same ones.
    """
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
                    # A judge that had the lock before may have deleted the file after it was listed here.
                    if os.fstat(handle).st_nlink:
                        paths.append(entry.path)
        yield paths
    finally:
        for handle in handles:
            os.close(handle)


def _read_content(path: str) -> bytes | None:
    """Return the bytes of a marker, or None if the file cannot be read or is not a marker."""
    with suppress(OSError), _open_file(path, os.O_RDONLY) as handle:
        data = os.read(handle, _SIZE + 1)
        if len(data) == _SIZE and data[:4] == _MAGIC:
            return data
        return None
    return None


@contextmanager
def _open_file(path: str, flags: int) -> Iterator[int]:
    """Yield a file descriptor. Raises ``OSError`` unless ``path`` is a regular file in the user's marker folder."""
    if Path(path).parent != marker_folder() or not path.endswith(_SUFFIX):
        raise PermissionError(f"{path} is not a crash marker of this user")
    # The path comes from the row of a worker, so it is not trusted: no links, no blocking on a pipe, no other user's
    # file.
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            raise PermissionError(f"{path} is not a crash marker of this user")
        yield handle
    finally:
        os.close(handle)
