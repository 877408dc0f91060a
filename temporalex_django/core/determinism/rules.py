"""From what is called to a rule about it.

Which public name a function, class or C function has, and whether that is refused.
"""

from __future__ import annotations

import datetime as dt
import random
import sys
import sysconfig
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from temporalex_django.core.determinism import forbidden

#: Modules that are implementation; their public names are in ``guard_names``.
_PUBLIC_MODULES: Final = {
    "posix": "os",
    "nt": "os",
    "posixpath": "os.path",
    "ntpath": "os.path",
    "genericpath": "os.path",
    "_io": "io",
    "_socket": "socket",
    "_asyncio": "asyncio",
    "_sqlite3": "sqlite3",
    "_posixsubprocess": "subprocess",
}
#: Packages whose functions are public under the package's own name.
_PACKAGES: Final = ("asyncio", "concurrent.futures", "multiprocessing", "pathlib")
READS_CLOCK: Final = frozenset({"now", "utcnow", "today"})
#: Where ``__init__`` of a dataclass says it is; the place that counts is its caller's.
GENERATED: Final = "<string>"
_INTERACTIVE: Final = ("<stdin", "<ipython", "<doctest", "<python-input", "<console")
#: Their callers are logging and the import system: what runs below is not workflow code, though workflow code caused
#: it.
_EXCUSED_MODULES: Final = frozenset({"logging", "importlib._bootstrap"})
#: The generator behind ``random.random`` and its like.
_shared_random: Final = vars(random)["_inst"]
_system_random: Final[Any] = vars(random)["SystemRandom"]
_environ: Final = vars(sys.modules["os"])["environ"]


@dataclass(frozen=True, slots=True)
class Rule:
    """``name`` is refused, for the reason that ``advice`` implies.

    ``when`` looks at the first argument (a method's object).
    """

    name: str
    advice: str
    when: Callable[[Any], bool] | None = None


@cache
def is_project_file(filename: str) -> bool:
    """Whether a file is the project's own: not of the standard library, an installed package, or this package."""
    if filename.startswith("<"):
        return filename.startswith(_INTERACTIVE)
    path = filename.replace("\\", "/")
    return not path.startswith(_foreign_folders()) and "/site-packages/" not in path and "/dist-packages/" not in path


def is_project(function: types.FunctionType) -> bool:
    """The same for a function.

    One that a library generated (``__init__`` of a dataclass) belongs to the module it was made for.
    """
    filename = function.__code__.co_filename
    if filename.startswith("<") and not filename.startswith(_INTERACTIVE):
        made_for = function.__globals__.get("__file__")
        return isinstance(made_for, str) and is_project_file(made_for)
    return is_project_file(filename)


def rule_of_code(code: types.CodeType, module: str) -> Rule | None:
    """The rule for a function that is written in Python, of a module that is not the project's."""
    qualname = code.co_qualname
    if "<locals>" in qualname:  # nobody's name: a callback, such as one that the collector runs
        return None
    owner, _, method = qualname.rpartition(".")
    if method == "__init__":
        return _rule_of_init(f"{_public_module(module)}.{owner}")
    if method.startswith("__") and method != "__call__":
        return None
    if module == "random" and owner:
        return Rule(f"random.{method}", forbidden.CHANCE, _is_random_source)
    if owner in ("Mapping", "MutableMapping", "_Environ") and module in ("collections.abc", "_collections_abc", "os"):
        return Rule(f"os.environ.{method}", forbidden.ENVIRONMENT, is_environment)
    public = _public_module(module)
    return _rule(f"pathlib.Path.{method}" if public == "pathlib" and owner else f"{public}.{qualname}")


def rule_of_builtin(function: types.BuiltinFunctionType) -> Rule | None:
    """The rule for a function or bound method that is written in C."""
    owner, name = function.__self__, function.__name__
    if type(owner) is types.ModuleType:
        module = _public_module(owner.__name__)
        return _rule(name if module == "builtins" or (module == "io" and name == "open") else f"{module}.{name}")
    if isinstance(owner, type):
        if name in READS_CLOCK and issubclass(owner, dt.date):
            kind = "datetime" if issubclass(owner, dt.datetime) else "date"
            return Rule(f"datetime.{kind}.{name}", forbidden.CLOCK)
        return None
    if _is_random_source(owner):
        return Rule(f"random.{name}", forbidden.CHANCE)
    return None


def rule_of_class(cls: type) -> Rule | None:
    """The rule for making an instance."""
    if issubclass(cls, BaseException):
        return None
    return _rule(f"{_public_module(cls.__module__)}.{cls.__qualname__}")


def is_excused(frame: types.FrameType | None) -> bool:
    """Whether a log handler, or a module that is being imported, makes the call, and not the workflow itself."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module in _EXCUSED_MODULES:
            return True
        if module.startswith("temporalex_django.core."):
            return False
        frame = frame.f_back
    return False


def _rule(name: str) -> Rule | None:
    if (advice := forbidden.advice(name)) is not None:
        return Rule(name, advice)
    if (advice := forbidden.advice(name, argument=False)) is not None:
        return Rule(name, advice, _is_missing)
    return None


def _rule_of_init(name: str) -> Rule | None:
    """``__init__`` of a class, where only the running of it is seen (3.11)."""
    return _rule(name) if name in forbidden.WITHOUT_ARGUMENT or forbidden.advice(name) else None


def _is_missing(argument: object) -> bool:
    monitoring = vars(sys).get("monitoring")
    return argument is None or (monitoring is not None and argument is monitoring.MISSING)


def _is_random_source(owner: object) -> bool:
    return owner is _shared_random or issubclass(type(owner), _system_random)


def is_environment(owner: object) -> bool:
    """Whether it is ``os.environ`` or ``os.environb``."""
    return type(owner) is type(_environ)


@cache
def _public_module(module: str) -> str:
    for package in _PACKAGES:
        if module.startswith(f"{package}."):
            return package
    return _PUBLIC_MODULES.get(module, module)


@cache
def _foreign_folders() -> tuple[str, ...]:
    package = __file__.replace("\\", "/").removesuffix("/core/determinism/rules.py")
    folders = {package, *(sysconfig.get_path(name).replace("\\", "/") for name in ("stdlib", "platstdlib"))}
    library = str(types.__file__).replace("\\", "/").rpartition("/")[0]
    return tuple(f"{folder}/" for folder in sorted({*folders, library}))
