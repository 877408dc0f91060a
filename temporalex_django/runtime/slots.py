"""A few bytes that outlive their process: which run a worker was activating when it died.

A small file mapped into memory: writing to it costs no system call, and SIGKILL does not take it away.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from uuid import UUID

_SIZE = 17  # a byte: a run is being activated; sixteen: which one


class Slot:
    """The slot of one worker; its path stands in the worker's row, for whoever buries it."""

    def __init__(self) -> None:
        handle, self.path = tempfile.mkstemp(prefix="temporalex-", suffix=".slot")
        os.ftruncate(handle, _SIZE)
        self._map = mmap.mmap(handle, _SIZE)
        os.close(handle)

    def note(self, chain: UUID | None) -> None:
        """``chain`` is being activated from now on; None: it came through."""
        if chain is not None:
            self._map[1:] = chain.bytes
            self._map[0] = 1
        else:
            self._map[0] = 0

    def close(self) -> None:
        self._map.close()
        remove_slot(self.path)


def chain_in(path: str) -> UUID | None:
    """The run that the owner of this slot was activating when it ended."""
    try:
        data = Path(path).read_bytes()
    except OSError:
        return None
    return UUID(bytes=data[1:]) if len(data) == _SIZE and data[0] else None


def remove_slot(path: str) -> None:
    """Delete the file of a slot, if it is there."""
    with suppress(OSError):
        Path(path).unlink()
