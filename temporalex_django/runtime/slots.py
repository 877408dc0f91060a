"""A few bytes that outlive their process: which run a worker was activating when it died, and whether a pump is alive."""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from uuid import UUID

_LAYOUT = struct.Struct("<B16sdq")  # is a run being activated, which one, monotonic time of the last beat, pid


class Slot:
    """A small file mapped into memory: writing to it costs no system call, and SIGKILL does not take it away."""

    def __init__(self, path: Path | str | None = None) -> None:
        if path is None:
            handle, name = tempfile.mkstemp(prefix="temporalex-", suffix=".slot")
            self.path = name
        else:
            handle, self.path = os.open(path, os.O_RDWR | os.O_CREAT, 0o600), str(path)
        os.ftruncate(handle, _LAYOUT.size)
        self._map = mmap.mmap(handle, _LAYOUT.size)
        os.close(handle)

    def note(self, chain: UUID | None) -> None:
        """``chain`` is being activated from now on; None: it came through."""
        if chain is not None:
            self._map[1:17] = chain.bytes
            self._map[0] = 1
        else:
            self._map[0] = 0

    def beat(self) -> None:
        self._map[17:] = _LAYOUT.pack(0, b"", time.monotonic(), os.getpid())[17:]

    def age(self) -> float:
        """Seconds since the last beat; infinite when there was none since the machine started."""
        beaten = _LAYOUT.unpack(self._map[:])[2]
        return time.monotonic() - beaten if 0 < beaten <= time.monotonic() else float("inf")

    def clear(self) -> None:
        self._map[:] = bytes(_LAYOUT.size)

    def close(self, *, remove: bool = False) -> None:
        self._map.close()
        if remove:
            remove_slot(self.path)


def chain_in(path: str) -> UUID | None:
    """The run that the owner of this slot was activating when it ended."""
    try:
        busy, chain, _, _ = _LAYOUT.unpack(Path(path).read_bytes())
    except (OSError, struct.error):
        return None
    return UUID(bytes=chain) if busy else None


def remove_slot(path: str) -> None:
    with suppress(OSError):
        Path(path).unlink()
