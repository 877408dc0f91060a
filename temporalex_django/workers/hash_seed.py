"""One hash seed for all processes of a project, so that a set of strings has one order in all of them.

It is derived from ``SECRET_KEY``. A seed (``PYTHONHASHSEED``) takes effect only when the interpreter starts. So the
entry point of ``manage.py temporalex worker`` starts its process again with the seed, once. No other process does:
where you start those, set the variable yourself. ``manage.py check`` names the value.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.crypto import salted_hmac

VARIABLE = "PYTHONHASHSEED"
#: Set in the process that was started again.
MARK = "TEMPORALEX_HASH_SEED_SET"
#: Largest value of ``PYTHONHASHSEED``.
_LARGEST = 2**32 - 1


def project_seed() -> int:
    """Return the hash seed (``PYTHONHASHSEED``) for all processes of the project, from 1 to 4294967295.

    It is not 0, which would turn the randomization of hashes off.
    """
    try:
        secret = settings.SECRET_KEY
    except ImproperlyConfigured:  # it has none: one seed is as good as another
        secret = ""
    digest = salted_hmac("temporalex_django.hash_seed", "", secret, algorithm="sha256").digest()
    return int.from_bytes(digest[:8], "big") % _LARGEST + 1


def different_seed() -> int:
    """Return a hash seed that is neither that of the project nor, if known, that of this process."""
    current_seed = os.environ.get(VARIABLE, "")
    used_seeds = {project_seed(), int(current_seed) if current_seed.isdecimal() else 0}
    return next(seed for seed in (1, 2, 3) if seed not in used_seeds)


def is_set() -> bool:
    """Return True if somebody set the hash seed of this process, so that it is not random."""
    return os.environ.get(VARIABLE, "random") not in ("", "random") and not sys.flags.ignore_environment


def restart(ends_with: Sequence[str]) -> None:
    """Start this process again, in its place, with the hash seed of the project, if possible.

    ``ends_with`` are the last words of the command line by which the command is started; nothing happens for another
    command line. Call it before any thread starts; the process keeps its id. Nothing happens, too, if a seed is set
    already, under ``-E`` and ``-I``, and if the command line cannot be run again.
    """
    if sys.orig_argv[-len(ends_with) :] != [*ends_with]:
        return
    arguments = restart_command(sys.orig_argv, os.environ)
    if arguments is None:
        return
    connections.close_all()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execve(sys.executable, arguments, {**os.environ, VARIABLE: str(project_seed()), MARK: "1"})  # noqa: S606 - no shell


def restart_command(command_line: Sequence[str], environment: Mapping[str, str]) -> list[str] | None:
    """Return the command line that starts this process again with a hash seed; None if there is none or no need.

    There is no need if ``environment`` sets ``PYTHONHASHSEED``, or if the process was started again already. There is
    none outside POSIX, under ``-E`` and ``-I``, for a script on standard input, for an embedded interpreter, and if the
    path of the script no longer exists.
    """
    if os.name != "posix" or not sys.executable or getattr(sys, "frozen", False):
        return None
    if MARK in environment or VARIABLE in environment or sys.flags.ignore_environment:
        return None
    rest = [*command_line[1:]]
    script = _script_path(rest)
    if script is None or (script and not Path(script).exists()):
        return None
    return [sys.executable, *rest]


def _script_path(rest: Sequence[str]) -> str | None:
    """Return the path of the script of a command line; empty for ``-m`` and ``-c``, None if it cannot be run again.

    ``rest`` are the words behind the interpreter.
    """
    options = iter(rest)
    for option in options:
        if option in ("-m", "-c"):
            return ""
        if option in ("-W", "-X", "--check-hash-based-pycs"):
            next(options, None)
        elif option == "-" or not option:
            return None
        elif not option.startswith("-"):
            return option
        elif not option.startswith("--") and option[-1] in "mc" and option[1] not in "WX":  # -Im, -bc
            return ""
    return None
