"""The determinism guard: what workflow code may not call is refused where it calls it.

*Workflow code* is the project's own code (not the standard library's, not an installed package's) that runs in a unit,
a handler, a validator, a predicate, an ``update_state`` closure or a query. Of most calls only its direct ones count:
what ``json`` does inside is its own affair. New connections, name look-ups, processes, files opened for writing, the
ORM, mail and the cache are refused whoever asks below it, but for log handlers and modules that are being imported.
Activities, and stand-ins for them, are not workflow code.

Seen are calls by any name: imported before, in helpers of other project modules, lambdas, comprehensions, nested
functions, methods, through variables and ``functools.partial``. Not seen are calls that C code makes (``map(time.time,
...)``; Python 3.11 sees those of functions that are written in Python), calls through special methods and properties of
classes that no workflow code names, and, on Python 3.12 and later, a module-level name that is bound to something else
after it was called once.
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
    """``error`` (the default): refuse.

    ``warn``: a ``DeterminismWarning`` and a log line, once per place. ``off``: nothing.
    """
    global _mode  # noqa: PLW0603 - one guard per process, like the interpreter's hooks that it is made of
    _mode = mode


def mode() -> Mode:
    """How it is configured."""
    return _mode


def watch(target: Any) -> None:
    """``target`` (a function or class) is about to run as workflow code, or may. Cheap when it is known."""
    if _mode != "off":
        (_guard or _install()).watch(target)


def refuse(rule: Rule, frame: FrameType) -> None:
    """The code of ``frame`` is about to do what ``rule`` is about.

    Raises ``DeterminismViolation`` if workflow code does it.
    """
    if _mode == "off" or not current.is_guarded() or is_excused(frame):
        return
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
    """The same for what is refused whoever asks: the innermost frame of the project is named.

    Called below that frame.
    """
    if current.is_guarded() and _mode != "off":
        _refuse_below(rule, sys._getframe(1))  # noqa: SLF001 - the one way to the caller


def _refuse_below(rule: Rule, caller: FrameType) -> None:
    """``caller`` is about to do it, on behalf of the innermost frame of the project."""
    if is_excused(caller):
        return
    frame: FrameType | None = caller
    while frame is not None and not is_project_file(frame.f_code.co_filename):
        frame = frame.f_back
    refuse(rule, frame or caller)


def explain(error: BaseException) -> BaseException:
    """What ended a unit; in the guard's words where it awaited code of asyncio, for which there is no loop here.

    The ORM's ``a`` methods do: Django runs them in a thread by way of the loop.
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
    """Take what the interpreter offers, once per process."""
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
                "the determinism guard sees no calls: all tool ids of sys.monitoring are taken", DeterminismWarning, 3
            )
        _guard = monitor
    return _guard


def _refuse_caller(rule: Rule) -> None:
    refuse(rule, sys._getframe(2))  # noqa: SLF001 - below: the callback of the monitor, then the code that makes the call


def _guard_environment() -> None:
    """``os.environ[...]`` is no call: the methods behind it look who asks."""
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
    original = getattr(cls, name)

    @functools.wraps(original)
    def guarded_method(*args: Any) -> Any:
        if current.is_guarded():
            frame = sys._getframe(1)  # noqa: SLF001 - who asks
            if is_project_file(frame.f_code.co_filename):
                refuse(rule, frame)
        return original(*args)

    setattr(cls, name, guarded_method)


if sys.version_info < (3, 12):  # its hook in `places` must be there before the first activation begins
    _install()
