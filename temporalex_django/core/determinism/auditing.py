"""The guard for effects at any depth below a step of workflow code.

Such effects are new connections, name look-ups, new processes and files opened for writing. The interpreter reports
these events to an audit hook before they happen, whether workflow code or a library causes them. The hook is called for
every audit event of the process, so it tests the name of the event first. It sees neither data on an open socket nor
what C code does by itself (libpq, gRPC). See decision 18.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from temporalex_django.core import current
from temporalex_django.core.determinism import forbidden
from temporalex_django.core.determinism.rules import Rule

Refuse = Callable[[Rule, FrameType], None]

_CONNECTION: Final = Rule("a network connection", forbidden.NETWORK)
_LOOKUP: Final = Rule("a lookup of a network name", forbidden.NETWORK)
_PROCESS: Final = Rule("another process", forbidden.PROCESS)
_DATABASE: Final = Rule("a database connection", forbidden.DATABASE)
_FILE: Final = Rule("a file opened for writing", forbidden.FILES)
_RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg"), _CONNECTION),
    **dict.fromkeys(
        (
            *("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo"),
            "socket.getservbyname",
        ),
        _LOOKUP,
    ),
    **dict.fromkeys(
        (
            *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile"),
            *("os.fork", "os.forkpty", "pty.spawn"),
        ),
        _PROCESS,
    ),
    "sqlite3.connect": _DATABASE,
    "open": _FILE,
}
# From ``sys.modules``, because a test refuses ``import os`` in the core.
_os: Final = vars(sys.modules["os"])
_WRITES: Final[int] = _os["O_WRONLY"] | _os["O_RDWR"] | _os["O_CREAT"] | _os["O_TRUNC"] | _os["O_APPEND"]


def install(refuse: Refuse) -> None:
    """Install the audit hook. It calls ``refuse(rule, frame)`` before workflow code causes a forbidden effect.

    ``frame`` is the frame that causes the effect. Call this once in a process: a hook cannot be removed.
    """
    rules, is_guarded, frame_of = _RULES, current.is_guarded, sys._getframe  # noqa: SLF001 - the one way to the caller

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        rule = rules.get(event)
        if rule is None or not is_guarded():
            return
        if rule is _FILE and not _is_for_writing(arguments):
            return
        if event == "socket.sendmsg" and arguments[1] is None:  # no address: the socket is connected already
            return
        refuse(rule, frame_of(1))

    # This is the default. The interpreter looks the attribute up for each event, and finding it is faster.
    audit.__cantrace__ = False  # type: ignore[attr-defined]
    sys.addaudithook(audit)


def _is_for_writing(arguments: tuple[Any, ...]) -> bool:
    """Return True if the audit event ``open`` reports that a file is opened for writing.

    ``arguments`` are the path, the mode or None, and the flags of the operating system.
    """
    # By the flags and not by the mode: ``os.open`` reports no mode.
    return isinstance(arguments[2], int) and bool(arguments[2] & _WRITES)
