"""The determinism guard: it refuses calls that workflow code may not make, at the place of the call. See decision 18.

*Workflow code* is the project's own code that runs in a unit, a handler, a validator, a predicate, an ``update_state``
closure or a query. The standard library and installed packages do not belong to it. For most names only direct calls
count: what ``json`` does inside is left alone. New connections, name look-ups, processes, files opened for writing, the
ORM, mail and the cache are refused at any depth. Log handlers and modules that are being imported are excused.
Activities, and their replacements in tests, are not workflow code.

The guard sees calls by any name: imported before, in helpers of other project modules, lambdas, comprehensions, nested
functions and methods, through variables and ``functools.partial``. It does not see these calls:

- calls that C code makes (``map(time.time, ...)``); Python 3.11 sees those of functions that are written in Python;
- calls through special methods and properties of classes that no workflow code names;
- on Python 3.12 and later, a module-level name that is rebound after its first call.
"""

from __future__ import annotations

import functools
import logging
import sys
import warnings
from types import FrameType
from typing import Any, Literal

from temporalex_django.core import current
from temporalex_django.core.determinism import auditing, forbidden
from temporalex_django.core.determinism.monitoring import Monitor
from temporalex_django.core.determinism.profiling import Profile
from temporalex_django.core.determinism.rules import GENERATED, Rule, is_excused, is_project_file
from temporalex_django.errors import DeterminismViolation, DeterminismWarning

logger = logging.getLogger("temporalex_django.core")

Mode = Literal["error", "warn", "off"]
ORM = Rule("the ORM", forbidden.DATABASE)
MAIL = Rule("mail", forbidden.MAIL)
CACHE = Rule("the cache", forbidden.CACHE)

_mode: Mode = "error"
_guard: Monitor | Profile | None = None
_warned: set[tuple[str, int, str]] = set()


def configure(mode: Mode) -> None:
    """Set the mode of the guard.

    - ``error`` (the default): refuse the call.
    - ``warn``: a ``DeterminismWarning`` and a line in the log, once for each place.
    - ``off``: do nothing.
    """
    global _mode  # noqa: PLW0603 - one guard per process, like the interpreter's hooks that it uses
    _mode = mode


def mode() -> Mode:
    """Return the mode of the guard: "error", "warn" or "off", as in ``configure``."""
    return _mode


def watch(target: Any) -> None:
    """Watch the calls of ``target`` (a function or class), which may run as workflow code.

    Call this as often as you like: for a target that is watched already it costs little.
    """
    if _mode != "off":
        (_guard or _install()).watch(target)


def refuse(rule: Rule, frame: FrameType) -> None:
    """Refuse an action that matches ``rule``, if ``frame`` runs workflow code; otherwise do nothing.

    In the mode "error" this raises ``DeterminismViolation``. In the mode "warn" it warns once for each place.
    """
    if _mode == "off" or not current.is_guarded() or is_excused(frame):
        return
    # Generated code (``__init__`` of a dataclass) has no file; the place of its caller helps the user.
    while frame.f_back is not None and frame.f_code.co_filename == GENERATED:
        frame = frame.f_back
    code, line = frame.f_code, frame.f_lineno
    message = f"{rule.name} in workflow code ({code.co_qualname}, {code.co_filename}:{line}): its result can differ on replay; {rule.advice}"
    if _mode == "error":
        raise DeterminismViolation(message)
    place = code.co_filename, line, rule.name
    if place not in _warned:
        _warned.add(place)
        logger.warning("%s", message)
        warnings.warn_explicit(message, DeterminismWarning, code.co_filename, line)


def refuse_in_step(rule: Rule) -> None:
    """Refuse what the calling function is about to do, if workflow code called that function, directly or not.

    ``rule`` names the action for the error, which also names the innermost frame of the project. Does nothing outside
    workflow code.
    """
    if current.is_guarded() and _mode != "off":
        _refuse_below(rule, sys._getframe(1))  # noqa: SLF001 - the one way to the caller


def _refuse_below(rule: Rule, caller: FrameType) -> None:
    """Refuse what the code of the frame ``caller`` does now. The error names the innermost frame of the project."""
    if is_excused(caller):
        return
    frame: FrameType | None = caller
    while frame is not None and not is_project_file(frame.f_code.co_filename):
        frame = frame.f_back
    refuse(rule, frame or caller)


def explain(error: BaseException) -> BaseException:
    """Return the error to report for ``error``, which ended a coroutine of workflow code.

    That is a ``DeterminismViolation`` if it awaited code of asyncio, because workflow code has no event loop. The ``a``
    methods of the ORM fail for the same reason: Django runs them in a thread by means of the loop. Any other error is
    returned unchanged.
    """
    if type(error) is not RuntimeError or str(error) != "no running event loop" or _mode == "off":
        return error
    place, orm, traceback = None, False, error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_project_file(code.co_filename):
            place = f"{code.co_qualname}, {code.co_filename}:{traceback.tb_lineno}"
        orm = orm or "/django/db/" in code.co_filename.replace("\\", "/")
        traceback = traceback.tb_next
    rule = ORM if orm else Rule("asyncio", forbidden.LOOP)
    violation = DeterminismViolation(
        f"{rule.name} in workflow code ({place}): its result can differ on replay; {rule.advice}"
    )
    violation.__cause__ = error
    return violation.with_traceback(error.__traceback__)


def _install() -> Monitor | Profile:
    """Install the hooks of the determinism guard that this interpreter offers, and return the part that sees calls."""
    global _guard  # noqa: PLW0603 - see configure
    _guard_environment()
    auditing.install(_refuse_below)
    if sys.version_info < (3, 12):
        profile = Profile(refuse)
        current.switch = lambda on: profile.switch(on and _mode != "off")
        _guard = profile
    else:
        monitor = Monitor(_refuse_caller)
        if not monitor.is_available:
            warnings.warn(
                "the determinism guard sees no calls: all tool ids of sys.monitoring are in use", DeterminismWarning, 3
            )
        _guard = monitor
    return _guard


def _refuse_caller(rule: Rule) -> None:
    refuse(rule, sys._getframe(2))  # noqa: SLF001 - frame 1 is the callback of the monitor, frame 2 makes the call


def _guard_environment() -> None:
    """Guard ``os.environ[...]``, which is not a call: replace the methods behind it by ones that check the caller."""
    environment = type(vars(sys.modules["os"])["environ"])
    for name, expression in (
        ("__getitem__", "os.environ[...]"),
        ("__setitem__", "os.environ[...] = ..."),
        ("__delitem__", "del os.environ[...]"),
        ("__contains__", "... in os.environ"),
        ("__iter__", "iter(os.environ)"),
    ):
        _guard_method(environment, name, Rule(expression, forbidden.ENVIRONMENT))


def _guard_method(cls: Any, name: str, rule: Rule) -> None:
    """Replace the method ``name`` of ``cls`` by one that refuses calls from workflow code, with ``rule``."""
    original = getattr(cls, name)

    @functools.wraps(original)
    def guarded_method(*args: Any) -> Any:
        if current.is_guarded():
            frame = sys._getframe(1)  # noqa: SLF001 - the caller
            if is_project_file(frame.f_code.co_filename):
                refuse(rule, frame)
        return original(*args)

    setattr(cls, name, guarded_method)


# The hook in ``current.switch`` must be there before the first activation begins.
if sys.version_info < (3, 12):
    _install()
