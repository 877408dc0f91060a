"""Which process on which machine: names of files say so, and rows of workers say it to people."""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path


def host() -> str:
    """The name of this machine, for people."""
    return socket.gethostname()[:255]


def identity_of(pid: int | None = None) -> str:
    """Boot, process namespace, pid and its start time; empty where the system does not tell (not Linux)."""
    space = _space()
    started = _started(pid or os.getpid())
    return f"{space}:{pid or os.getpid()}:{started}" if space and started else ""


def is_gone(identity: str) -> bool:
    """Whether that process is not here (any more). False when it lives, or its namespace is another one.

    Cloned machines share namespaces and boot ids: for files of this machine only. A row of the database is judged by
    its crash marker.
    """
    space, _, rest = identity.rpartition(":")[0].rpartition(":")
    started = identity.rpartition(":")[2]
    return bool(identity) and space == _space() and rest.isdecimal() and _started(int(rest)) != started


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _space() -> str:
    try:
        return f"{_boot()}:{Path('/proc/self/ns/pid').stat().st_ino}" if _boot() else ""
    except OSError:
        return ""


def state_of(pid: int) -> str:
    """The state of a process as the system names it (``T``: stopped); empty where it does not tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Start time of a process in ticks since boot; empty when there is none, also for a zombie: nothing of it runs."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in {"Z", "X"} else fields[19]
