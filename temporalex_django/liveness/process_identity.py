"""The identity of a process and its machine, for the names of files and, in rows of workers, for people."""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path


def host() -> str:
    """Return the name of this machine, for people."""
    return socket.gethostname()[:255]


def identity_of(pid: int | None = None) -> str:
    """Return a text with boot, process namespace, pid and start time of a process (None: this one).

    Empty if the system does not provide them (not Linux).
    """
    namespace = _process_namespace()
    started = _start_time(pid or os.getpid())
    if namespace and started:
        return f"{namespace}:{pid or os.getpid()}:{started}"
    return ""


def has_ended(identity: str) -> bool:
    """Return True if the process with this identity no longer exists here.

    False if it lives, or if its namespace is another one. Cloned machines share namespaces and boot ids, so use this
    for files of this machine only. The row of a worker is judged by its crash marker.
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
        if _boot_id():
            return f"{_boot_id()}:{Path('/proc/self/ns/pid').stat().st_ino}"
        return ""
    except OSError:
        return ""


def process_state(pid: int) -> str:
    """Return the state of a process as the system names it (``T``: stopped).

    Empty if the system does not provide it.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """Return ticks since boot; empty for no process, and for a zombie, since none of its code runs."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    # The start time distinguishes a process from a later one that the system gave the same pid.
    if fields[0] in {"Z", "X"}:
        return ""
    return fields[19]
