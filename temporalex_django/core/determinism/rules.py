"""The rules of the guard: the calls that workflow code may not make, and how they are recognised."""

from __future__ import annotations

import builtins
import datetime as dt
import dis
import functools
import random
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

# --- rules ------------------------------------------------------------------------------------------------------------
#
# The rules of the determinism guard: the calls that it refuses, by the public name of what is called.


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
        return Rule(f"random.{method}", CHANCE, _is_random_source)
    if owner in ("Mapping", "MutableMapping", "_Environ") and module in ("collections.abc", "_collections_abc", "os"):
        return Rule(f"os.environ.{method}", ENVIRONMENT, is_environment)
    public = _public_module(module)
    return _rule(f"pathlib.Path.{method}" if public == "pathlib" and owner else f"{public}.{qualname}")


@lru_cache(maxsize=1024)
def _rule_of_wrapper(code: types.CodeType) -> Rule | None:
    """Return the rule of the function that ``code`` wraps, as Sentry does. A wrapper of any arguments may be shared."""
    if not code.co_argcount:
        return None
    for name in (*CALLS, *_WRAPPED_METHODS):
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
            return Rule(f"datetime.{kind}.{name}", CLOCK)
        return None
    if _is_random_source(owner):
        return Rule(f"random.{name}", CHANCE)
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
    """Return a rule, which may refuse only calls without an argument."""
    if (text := advice(name)) is not None:
        return Rule(name, text)
    if (text := advice(name, argument=False)) is not None:
        return Rule(name, text, _is_missing)
    return None


def _rule_of_init(name: str) -> Rule | None:
    """Return the rule for the class. On Python 3.11 only the call of its ``__init__`` is visible."""
    return _rule(name) if name in WITHOUT_ARGUMENT or advice(name) else None


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


# --- forbidden --------------------------------------------------------------------------------------------------------
#
# Calls that workflow code may not make, by public dotted name, with the replacement for each.
#
# The module has names only, and imports nothing in order to refuse it. The guard compares the names with actual calls.
# The lint of workflow modules compares them with the source.


CLOCK: Final = "use api.now()"
CHANCE: Final = "use api.random()"
IDS: Final = "use api.uuid4()"
SECRET: Final = "use api.random() or api.uuid4(), or generate secrets in an activity"  # noqa: S105 - advice
SLEEP: Final = "use api.sleep()"
LOOP: Final = (
    "use asyncio only in an activity (to run code side by side: api.parallel; for the first of several: api.race)"
)
THREADS: Final = "move it into an activity (to run code side by side: api.parallel)"
FILES: Final = "read and write files in an activity"
PROCESS: Final = "start processes in an activity"
NETWORK: Final = "use the network in an activity"
ENVIRONMENT: Final = "read it in an activity, or pass it in as an argument"
SYSTEM: Final = "query the operating system in an activity"
DATABASE: Final = "use the ORM in an activity (with atomic=True, in the workflow's own transaction)"
MAIL: Final = "send mail in an activity"
CACHE: Final = "use the cache in an activity"
PERSON: Final = "wait for a signal or an update, or read input in an activity"

#: Functions and classes that are always refused.
CALLS: Final[dict[str, str]] = {
    **dict.fromkeys(
        (
            *(f"time.{name}{unit}" for name in ("time", "monotonic", "perf_counter") for unit in ("", "_ns")),
            *(
                f"time.{name}{unit}"
                for name in ("process_time", "thread_time", "clock_gettime")
                for unit in ("", "_ns")
            ),
            "datetime.datetime.now",
            "datetime.datetime.utcnow",
            "datetime.datetime.today",
            "datetime.date.today",
            "django.utils.timezone.now",
        ),
        CLOCK,
    ),
    **dict.fromkeys((f"uuid.uuid{version}" for version in (1, 4, 6, 7, 8)), IDS),
    "uuid.getnode": SYSTEM,
    "time.sleep": SLEEP,
    "asyncio.sleep": SLEEP,
    "random.SystemRandom": SECRET,
    "os.urandom": SECRET,
    "os.getrandom": SECRET,
    "django.utils.crypto.get_random_string": SECRET,
    **dict.fromkeys(("os.getenv", "os.getenvb", "os.putenv", "os.unsetenv"), ENVIRONMENT),
    **dict.fromkeys(("os.system", "os.popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.kill"), PROCESS),
    **dict.fromkeys(("os.getpid", "os.getppid", "os.uname", "os.cpu_count", "os.times", "os.getloadavg"), SYSTEM),
    **dict.fromkeys(
        (
            f"os.path.{name}"
            for name in (
                *("exists", "lexists", "isfile", "isdir", "islink", "ismount", "getsize", "getmtime", "getatime"),
                *("getctime", "samefile", "realpath", "abspath", "expanduser", "expandvars"),
            )
        ),
        FILES,
    ),
    **dict.fromkeys(("open", "io.open", "io.open_code", "io.FileIO", "glob.glob", "glob.iglob"), FILES),
    "input": PERSON,
    "threading.Thread.start": THREADS,
    "threading.Timer.start": THREADS,
    "_thread.start_new_thread": THREADS,
    "sqlite3.connect": DATABASE,
    "psycopg.connect": DATABASE,
}
#: Functions that are refused only without an argument. Then they read the clock, or take a seed from the system.
WITHOUT_ARGUMENT: Final[dict[str, str]] = {
    "random.Random": CHANCE,
    **dict.fromkeys(
        (
            *("time.localtime", "time.gmtime", "time.ctime", "time.asctime"),
            *("django.utils.timezone.localtime", "django.utils.timezone.localdate"),
        ),
        CLOCK,
    ),
}
#: Modules whose contents are refused, except for the names in ``HARMLESS`` and exception classes.
MODULES: Final[dict[str, str]] = {
    "random": CHANCE,
    "secrets": SECRET,
    "asyncio": LOOP,
    "os": FILES,
    "os.environ": ENVIRONMENT,
    "os.environb": ENVIRONMENT,
    "shutil": FILES,
    "tempfile": FILES,
    "subprocess": PROCESS,
    "multiprocessing": PROCESS,
    "concurrent.futures": THREADS,
    **dict.fromkeys(
        (
            *("socket", "http.client", "urllib.request", "smtplib", "ftplib", "imaplib", "poplib"),
            *("requests", "httpx", "aiohttp", "urllib3"),
        ),
        NETWORK,
    ),
    "django.core.mail": MAIL,
    "django.core.cache": CACHE,
}
# These names come back out of the modules above: they compute on their arguments alone.
HARMLESS: Final = frozenset(
    {
        *("os.path", "os.fspath", "os.fsencode", "os.fsdecode", "os.strerror", "os.PathLike"),
        *("asyncio.iscoroutine", "asyncio.iscoroutinefunction", "asyncio.isfuture"),
        *("secrets.compare_digest", "subprocess.list2cmdline", "random.Random"),
        "django.core.cache.utils",
    }
)
#: Methods of ``pathlib.Path`` that access the file system.
PATH_METHODS: Final = frozenset(
    [
        "absolute",
        "chmod",
        "copy",
        "copy_into",
        "cwd",
        "exists",
        "expanduser",
        "glob",
        "group",
        "hardlink_to",
        "home",
        "is_block_device",
        "is_char_device",
        "is_dir",
        "is_fifo",
        "is_file",
        "is_junction",
        "is_mount",
        "is_socket",
        "is_symlink",
        "iterdir",
        "lchmod",
        "link_to",
        "lstat",
        "mkdir",
        "move",
        "move_into",
        "open",
        "owner",
        "read_bytes",
        "read_text",
        "readlink",
        "rename",
        "replace",
        "resolve",
        "rglob",
        "rmdir",
        "samefile",
        "stat",
        "symlink_to",
        "touch",
        "unlink",
        "walk",
        "write_bytes",
        "write_text",
    ]
)
_ERRORS = ("Error", "Exception", "Expired", "Warning")


def advice(name: str, *, argument: bool = True) -> str | None:
    """Return what to use instead of a call of ``name``, a public dotted name, or None if the call is harmless.

    ``argument`` is True if the call has an argument.
    """
    if (advice_text := CALLS.get(name)) is not None:
        return advice_text
    if not argument and (advice_text := WITHOUT_ARGUMENT.get(name)) is not None:
        return advice_text
    last = name.rpartition(".")[2]
    if name.startswith("pathlib.") and last in PATH_METHODS:
        return FILES
    if last.endswith(_ERRORS):
        return None
    prefix = name
    while prefix and prefix not in HARMLESS:
        if prefix in MODULES:
            return MODULES[prefix]
        prefix = prefix.rpartition(".")[0]
    return None


# --- call sites -------------------------------------------------------------------------------------------------------
#
# The calls in a code object, and the expression that is called at each of them.
#
# A callee is a dotted global name, a method, or a value that could be anything.
#
# The parts of ``a.b(c)`` that make the callee begin at the same position as the call. That distinguishes them from the
# arguments. Without positions (``-X no_debug_ranges``) nothing is known about any call.


_CALLS: Final = frozenset({"CALL", "CALL_KW", "CALL_FUNCTION_EX"})
_NAMES: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_ATTRIBUTES: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
#: Instructions between a callee and its call, at the position of the call. ``GET_ITER`` is there for comprehensions,
#: which Python 3.11 calls with their iterator.
_IGNORED_OPCODES: Final = (
    *("GET_ITER", "GET_AITER"),
    *("PUSH_NULL", "KW_NAMES", "LOAD_CONST", "BUILD_", "LIST_", "DICT_", "COPY_FREE_VARS", "CACHE"),
    *("EXTENDED_ARG", "NOP", "PRECALL", "CALL_INTRINSIC"),
)
MISSING: Final = object()


@dataclass(slots=True)
class CallSite:
    """The callee of one call, as far as the code object tells it.

    ``chain`` is a dotted global name, split at the dots. ``method`` is the name of an attribute of some object. Both
    are None for a value that could be anything. ``is_inline_function`` is True for a function that is defined in place.
    """

    chain: tuple[str, ...] | None = None
    method: str | None = None
    is_inline_function: bool = False


@dataclass(slots=True)
class CallSites:
    """The calls of a code object, by the offset of the instruction, and all dotted global names that it reads."""

    calls: dict[int, CallSite] = field(default_factory=dict)
    names: set[tuple[str, ...]] = field(default_factory=set)


def find_call_sites(code: CodeType) -> CallSites:
    """Return the calls and global names of one code object, not those of functions that are defined in it."""
    call_sites = CallSites()
    # The callee that is under construction, by its position. Each instruction there replaces it.
    open_sites: dict[tuple[int, int], CallSite] = {}
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        start = _start_of(instruction)
        site = open_sites.get(start)
        if name in _NAMES:
            site = CallSite(chain=(str(instruction.argval),))
            call_sites.names.add(site.chain or ())
        elif name in _CALLS:
            call_sites.calls[instruction.offset] = site or CallSite()
            site = CallSite()
        elif name in _ATTRIBUTES:
            chain = (*site.chain, str(instruction.argval)) if site is not None and site.chain else None
            site = CallSite(chain=chain, method=str(instruction.argval))
            if chain:
                call_sites.names.add(chain)
        elif name == "MAKE_FUNCTION":
            site = CallSite(is_inline_function=True)
        elif name.startswith(_IGNORED_OPCODES):
            continue
        else:
            site = CallSite()
        open_sites[start] = site
    return call_sites


def _start_of(instruction: dis.Instruction) -> tuple[int, int]:
    """Return line and column, or a pair that no other instruction has if the position is unknown."""
    position = instruction.positions
    if position is None or position.lineno is None or position.col_offset is None:
        return (-1, instruction.offset)
    return position.lineno, position.col_offset


def resolve(chain: tuple[str, ...], names: dict[str, Any]) -> Any:
    """Return the object that a dotted global name (``chain``, split at the dots) refers to, or ``MISSING``.

    ``names`` are the globals of the code. Only attributes of modules and classes are followed.
    """
    first, *rest = chain
    target = names.get(first, vars(builtins).get(first, MISSING))
    for name in rest:
        # ``getattr`` on other objects may run user code.
        if not isinstance(target, (ModuleType, type)):
            return MISSING
        target = getattr(target, name, MISSING)
    return target


# --- reachable code ---------------------------------------------------------------------------------------------------
#
# The code that workflow code can reach, from a function or class to everything that it names.
#
# The search follows global names (and attributes of project modules under such names), closures, defaults, nested
# functions, members of classes with their bases, wrappers, and functions in plain collections. It decides by the exact
# type of an object and never reads its attributes. So no user code runs, and lazy objects stay lazy.


_COLLECTIONS: Final = frozenset({dict, list, tuple, set, frozenset})
_LARGEST: Final = 200  # a larger collection is data
_CACHED: Final = type(functools.cache(len))


def reachable_code(root: Any, excluded_ids: Any) -> Iterator[tuple[CodeType, dict[str, Any]]]:
    """Yield ``(code object, its globals)`` for all project code that a function or class ``root`` reaches.

    ``excluded_ids`` has the ``id`` of code objects to leave out, together with the code that only they lead to.
    """
    waiting: list[Any] = [root]
    # The values keep the objects alive, so that no id is reused during the search.
    seen: dict[int, Any] = {}
    while waiting:
        target = waiting.pop()
        if id(target) in seen:
            continue
        seen[id(target)] = target
        if type(target) is FunctionType and is_project(target):
            if id(target.__code__) not in excluded_ids:
                codes = list(nested_code(target.__code__))
                yield from ((code, target.__globals__) for code in codes)
                waiting.extend(_named_objects(target, codes))
            waiting.extend(_captured_objects(target))
        else:
            waiting.extend(_parts(target))


def nested_code(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function and of all functions, comprehensions and classes inside it."""
    yield code
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from nested_code(constant)


def _parts(target: Any) -> Iterable[Any]:  # noqa: PLR0911 - one for each kind of thing
    kind = type(target)
    if kind is FunctionType:  # of a library: it may wrap one of the project
        return _captured_objects(target)
    if kind is MethodType:
        return (target.__func__,)
    if kind is functools.partial:
        return (target.func, *target.args, *target.keywords.values())
    if kind is _CACHED or kind is staticmethod or kind is classmethod:
        return (target.__wrapped__,)
    if kind is property:
        return (target.fget, target.fset, target.fdel)
    if kind is functools.cached_property:
        return (target.func,)
    if issubclass(kind, type):
        return _members(target)
    if kind in _COLLECTIONS:
        if len(target) > _LARGEST:
            return ()
        return list(target.values()) if kind is dict else list(target)
    return (kind,) if _is_project_class(kind) else ()


def _members(cls: type) -> Iterator[Any]:
    for base in cls.__mro__:
        if _is_project_class(base):
            yield from tuple(vars(base).values())


def _is_project_class(cls: type) -> bool:
    """Judge ``cls`` by its functions: a class of a module that is not imported (``exec``) has no file."""
    for value in tuple(vars(cls).values()):
        function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if type(function) is FunctionType and is_project(function):
            return True
    return False


def _captured_objects(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


def _named_objects(function: FunctionType, codes: Iterable[CodeType]) -> Iterator[Any]:
    """Yield the globals that the names refer to, and attributes of those globals that are project modules."""
    # Sorted below, so that the order of the search does not depend on the hash seed.
    names = {name for code in codes for name in code.co_names}
    for name in sorted(names):
        value = function.__globals__.get(name)
        if type(value) is ModuleType:
            if is_project_file(value.__dict__.get("__file__") or "<builtin>"):
                yield from (value.__dict__[attribute] for attribute in sorted(names) if attribute in value.__dict__)
        elif value is not None:
            yield value
