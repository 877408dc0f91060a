"""Slots of a django-q2 cluster that hold a pump: who of them lives, who is to stop.

One small mapped file a slot, shared by the pusher (whose broker hands out tokens) and the pump that answers one. The folder belongs
to the cluster: a pusher that died and was replaced finds the pumps that live.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from temporalex_django.runtime.places import place_of

_LAYOUT = struct.Struct("<?xxxxxxxqd")  # told to stop; pid; monotonic time of the last beat
_STOP, _REST = 0, 8


class PumpSlot:
    """One slot. ``path`` is what a token carries."""

    def __init__(self, path: Path | str) -> None:
        self.path = str(path)
        self._open()

    def _open(self) -> None:
        Path(self.path).parent.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(handle, _LAYOUT.size)
        self._file = os.fstat(handle).st_ino
        self._map = mmap.mmap(handle, _LAYOUT.size)
        os.close(handle)

    def refresh(self) -> None:
        """Whoever cleans up temporary files may have taken ours away: both sides meet again in the new one."""
        try:
            same = os.stat(self.path).st_ino == self._file  # noqa: PTH116 - several times a second
        except FileNotFoundError:
            same = False
        if not same:
            self._map.close()
            self._open()

    def beat(self) -> None:
        """This process holds the slot and lives."""
        self.refresh()
        self._map[_REST:] = struct.pack("<qd", os.getpid(), time.monotonic())

    def vacate(self) -> None:
        """Nobody holds it. The last beat stays: it says that the token that was handed out last was answered."""
        self._map[_REST:] = struct.pack("<qd", 0, self.beaten_at)

    def remove(self) -> None:
        """Nobody needs it any more: delete the file, and with the last one the folder of the cluster."""
        with suppress(OSError):
            Path(self.path).unlink()
            Path(self.path).parent.rmdir()

    @property
    def told_to_stop(self) -> bool:
        return bool(self._map[_STOP])

    def tell(self, *, stop: bool) -> None:
        self._map[_STOP] = int(stop)

    @property
    def pid(self) -> int:
        return int(_LAYOUT.unpack(self._map[:])[1])

    @property
    def beaten_at(self) -> float:
        """Monotonic time of the last beat, 0.0 when there was none."""
        return float(_LAYOUT.unpack(self._map[:])[2])

    def is_held(self, *, stale_after: float) -> bool:
        """Whether a living process holds it: its beat is fresh, and the process is there (a killed one is seen at once)."""
        if not self.pid or time.monotonic() - self.beaten_at > stale_after:
            return False
        return bool(place_of(self.pid)) or not place_of()


def folder_of(cluster_pid: int) -> Path:
    """The folder of the cluster whose sentinel has this pid; private to its user."""
    name = place_of(cluster_pid).replace(":", "-") or str(cluster_pid)
    folder = Path(tempfile.gettempdir()) / f"temporalex-{os.getuid()}-{name}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder
