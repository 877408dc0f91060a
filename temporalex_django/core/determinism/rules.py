"""The rules of the determinism guard: the calls that it refuses, by the public name of what is called."""

from __future__ import annotations

import datetime as dt
import random
import sys
import sysconfig
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

from temporalex_django.core.determinism import forbidden

#: Private modules of the standard library, with the public modules whose names ``forbidden`` uses.
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
#: Packages whose functions are public under the name of the package.
_PACKAGES: Final = ("asyncio", "concurrent.futures", "multiprocessing", "pathlib")
#: Methods, of modules whose contents are refused, that libraries wrap.
_WRAPPED_METHODS: Final = ("concurrent.futures.ThreadPoolExecutor.submit",)
READS_CLOCK: Final = frozenset({"now", "utcnow", "today"})
#: File name of generated code such as ``__init__`` of a dataclass. Messages name the place of its caller.
GENERATED: Final = "<string>"
_INTERACTIVE: Final = ("<stdin", "<ipython", "<doctest", "<python-input", "<console")
#: Modules of logging and the import system. Code below them is not workflow code, although workflow code caused it.
_EXCUSED_MODULES: Final = frozenset({"logging", "importlib._bootstrap"})
#: The shared generator behind ``random.random`` and similar functions.
_shared_random: Final = vars(random)["_inst"]
_system_random: Final[Any] = vars(random)["SystemRandom"]
_environ: Final = vars(sys.modules["os"])["environ"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A refused call: the ``name`` of what is called, and the ``advice`` that the error message gives.

    ``when`` tests the first argument of the call (for a method, its object). None means that every call is refused.
    """

    name: str
    advice: str
    when: Callable[[Any], bool] | None = None


@cache
def is_project_file(filename: str) -> bool:
    """Return True for a file of the user's project.

    Files of the standard library, of installed packages and of this package do not belong to it.
    """
    if filename.startswith("<"):
        return filename.startswith(_INTERACTIVE)
    path = filename.replace("\\", "/")
    return not path.startswith(_foreign_folders()) and "/site-packages/" not in path and "/dist-packages/" not in path


def is_project(function: types.FunctionType) -> bool:
    """Return True for a function of the user's project.

    A function that a library generated (``__init__`` of a dataclass) belongs to the module for which it was generated.
    """
    filename = function.__code__.co_filename
    if filename.startswith("<") and not filename.startswith(_INTERACTIVE):
        made_for = function.__globals__.get("__file__")
        return isinstance(made_for, str) and is_project_file(made_for)
    return is_project_file(filename)


def rule_of_code(code: types.CodeType, module: str) -> Rule | None:
    """Return the rule for a function that is written in Python, in a module outside the project.

    ``code`` is the code of the function, and ``module`` the ``__name__`` in its globals. Returns None if calls of the
    function are allowed.
    """
    qualname = code.co_qualname
    if "<locals>" in qualname:  # no public name: a callback, or a wrapper
        return _rule_of_wrapper(code)
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


@lru_cache(maxsize=1024)
def _rule_of_wrapper(code: types.CodeType) -> Rule | None:
    """Return the rule of the public function that a library has replaced by one with ``code``, or None.

    Sentry, for example, wraps ``threading.Thread.start`` when it is initialized. A wrapper that takes any arguments
    (``*args, **kwargs``) may be shared by many functions, so its code says nothing about one of them.
    """
    if not code.co_argcount:
        return None
    for name in (*forbidden.CALLS, *_WRAPPED_METHODS):
        module, _, attribute = name.rpartition(".")
        owner: Any = sys.modules.get(module)
        if owner is None:  # a method: the name before it is that of a class
            module, _, cls = module.rpartition(".")
            owner = getattr(sys.modules.get(module), cls, None)
        target = vars(owner).get(attribute) if owner is not None else None
        if isinstance(target, types.FunctionType) and target.__code__ is code:
            return _rule(name)
    return None


def rule_of_builtin(function: types.BuiltinFunctionType) -> Rule | None:
    """Return the rule for a function or bound method that is written in C; None if calls of it are allowed."""
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
    """Return the rule for a call of a class, which creates an instance; None if the call is allowed."""
    if issubclass(cls, BaseException):
        return None
    return _rule(f"{_public_module(cls.__module__)}.{cls.__qualname__}")


def is_excused(frame: types.FrameType | None) -> bool:
    """Return True if a log handler or an import makes the call of ``frame``.

    Workflow code is not to blame for those.
    """
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module in _EXCUSED_MODULES:
            return True
        # The frames below this one are workflow code; frames of the host further out must not excuse it.
        if module.startswith("temporalex_django.core."):
            return False
        frame = frame.f_back
    return False


def _rule(name: str) -> Rule | None:
    """Return the rule for the public dotted ``name``, or None. A rule may refuse only calls without an argument."""
    if (advice := forbidden.advice(name)) is not None:
        return Rule(name, advice)
    if (advice := forbidden.advice(name, argument=False)) is not None:
        return Rule(name, advice, _is_missing)
    return None


def _rule_of_init(name: str) -> Rule | None:
    """Return the rule for ``__init__`` of the class with the dotted ``name``; None if calls of it are allowed.

    On Python 3.11 only the call of ``__init__`` is visible, and not the call of the class.
    """
    return _rule(name) if name in forbidden.WITHOUT_ARGUMENT or forbidden.advice(name) else None


def _is_missing(argument: object) -> bool:
    """Return True if the call has no first argument, or None in its place."""
    monitoring = vars(sys).get("monitoring")
    return argument is None or (monitoring is not None and argument is monitoring.MISSING)


def _is_random_source(owner: object) -> bool:
    return owner is _shared_random or issubclass(type(owner), _system_random)


def is_environment(owner: object) -> bool:
    """Return True for ``os.environ`` and ``os.environb``."""
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
