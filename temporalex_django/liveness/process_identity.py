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
    namespace = _process_namespace()
    started = _start_time(pid or os.getpid())
    return f"{namespace}:{pid or os.getpid()}:{started}" if namespace and started else ""


def has_ended(identity: str) -> bool:
    """Whether that process is not here (any more). False when it lives, or its namespace is another one.

    Cloned machines share namespaces and boot ids: for files of this machine only. A row of the database is judged by
    its crash marker.
    """
    namespace, _, rest = identity.rpartition(":")[0].rpartition(":")
    started = identity.rpartition(":")[2]
    return (
        bool(identity) and namespace == _process_namespace() and rest.isdecimal() and _start_time(int(rest)) != started
    )


@cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _process_namespace() -> str:
    try:
        return f"{_boot_id()}:{Path('/proc/self/ns/pid').stat().st_ino}" if _boot_id() else ""
    except OSError:
        return ""


def process_state(pid: int) -> str:
    """The state of a process as the system names it (``T``: stopped); empty where it does not tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """Start time of a process in ticks since boot; empty when there is none, also for a zombie: nothing of it runs."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in {"Z", "X"} else fields[19]
