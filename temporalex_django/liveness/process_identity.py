"""Which process on which machine: so that a neighbour sees at once that a worker is gone."""

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
    """Whether that process has certainly ended. False when it lives, is elsewhere, or cannot be judged from here."""
    if not is_neighbour(identity):
        return False
    _, pid, started = identity.rsplit(":", 2)
    return pid.isdecimal() and _started(int(pid)) != started


def is_neighbour(identity: str) -> bool:
    """Whether it is on this machine, so that its files can be read."""
    return bool(identity) and identity.rsplit(":", 2)[0] == _space()


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
