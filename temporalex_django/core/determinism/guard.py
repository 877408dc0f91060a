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

import datetime as dt
import decimal
import functools
import logging
import sys
import warnings
from collections.abc import Callable, Iterable
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, Final, Literal

from temporalex_django.core import current
from temporalex_django.core.determinism import rules as forbidden
from temporalex_django.core.determinism.rules import (
    GENERATED,
    MISSING,
    READS_CLOCK,
    Rule,
    find_call_sites,
    is_environment,
    is_excused,
    is_project,
    is_project_file,
    reachable_code,
    resolve,
    rule_of_builtin,
    rule_of_class,
    rule_of_code,
)
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
    global _guard  # noqa: PLW0603 - see configure
    _guard_environment()
    install(_refuse_below)
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
    original = getattr(cls, name)

    @functools.wraps(original)
    def guarded_method(*args: Any) -> Any:
        if current.is_guarded():
            frame = sys._getframe(1)  # noqa: SLF001 - the caller
            if is_project_file(frame.f_code.co_filename):
                refuse(rule, frame)
        return original(*args)

    setattr(cls, name, guarded_method)


# --- needs watching ---------------------------------------------------------------------------------------------------
#
# The test whether code of the project needs the determinism guard at all.
#
# It exists for Python 3.11, where the guard is slow. Code that calls only functions that are known to be harmless does
# not need the guard. Code is suspect in these cases:
#
# - it names something that the guard refuses;
# - it calls a value that could be anything (``fn()``);
# - it calls a method whose name belongs neither to a built-in type nor to a function that is tested with it.


_PLAIN: Final = (str, bytes, int, float, list, dict, tuple, set, frozenset, decimal.Decimal)
_PLAIN_METHODS: Final = (
    frozenset(name for kind in (*_PLAIN, dt.datetime, dt.timedelta) for name in dir(kind) if not name.startswith("_"))
    - READS_CLOCK
)


def needs_watching(codes: Iterable[tuple[CodeType, dict[str, Any]]]) -> bool:
    """Return True if one of the code objects is suspect, so that the guard must watch them.

    ``codes`` are pairs of a code object and its globals. Pass all code that one function or class reaches. A call of a
    method that is defined in this code is then known to be harmless by its name.
    """
    codes = list(codes)
    # A method of the project's own classes is safe by its name, because its code is tested in the same call.
    methods = _PLAIN_METHODS | {code.co_name for code, _ in codes} - READS_CLOCK
    return any(_is_suspect(code, names, methods) for code, names in codes)


def _is_suspect(code: CodeType, names: dict[str, Any], methods: frozenset[str]) -> bool:
    """Return True if ``code`` names something refused, or calls something that is not known to be harmless."""
    call_sites = find_call_sites(code)
    if any(_is_refused(resolve(chain, names)) for chain in call_sites.names):
        return True
    for site in call_sites.calls.values():
        if site.is_inline_function or (site.chain and resolve(site.chain, names) is not MISSING):
            continue
        if site.method is None or site.method not in methods:
            return True
    return False


def _is_refused(value: Any) -> bool:
    kind = type(value)
    if kind is MethodType:
        value, kind = value.__func__, type(value.__func__)
    if kind is FunctionType:
        return not is_project(value) and rule_of_code(value.__code__, value.__globals__.get("__name__", "")) is not None
    if kind is BuiltinFunctionType:
        return rule_of_builtin(value) is not None
    if issubclass(kind, type):
        return rule_of_class(value) is not None or value.__module__.partition(".")[0] == "pathlib"
    return is_environment(value)


# --- monitoring -------------------------------------------------------------------------------------------------------
#
# The guard on Python 3.12 and later: ``sys.monitoring`` reports the calls of workflow code before they happen.
#
# Only code that workflow code can reach (``reachable_code``) is instrumented, when it is first seen. That is at the
# start of a run, where the engine calls a handler, predicate or branch, and where instrumented code calls another
# function.
#
# A call site is switched off after a harmless call if its callee cannot change. Its callee is then a global name,
# perhaps with attributes of modules and classes, that refers to the called object. Every other site (a variable, a
# method) continues to report, because ``fn()`` may be ``len`` now and ``time.time`` next.


_monitoring: Final[Any] = vars(sys).get("monitoring")
#: Tool ids to try. 0, 1 and 2 are reserved for debuggers, coverage and profilers, and 5 is for optimizers.
_TOOL_IDS: Final = (4, 3, 5)
_NAME: Final = "temporalex_django"
_UNSEEN: Final = Rule("", "")


class _InstrumentedCode:
    """A code object whose calls ``sys.monitoring`` reports, with its globals.

    ``chains`` has the dotted names of callees that cannot change, by the offset of the call. It is None until the first
    call is judged.
    """

    __slots__ = ("chains", "code", "globals")

    def __init__(self, code: CodeType, names: dict[str, Any]) -> None:
        self.code = code
        self.globals = names
        self.chains: dict[int, tuple[str, ...]] | None = None


class Monitor:
    """The guard as a tool of ``sys.monitoring``.

    It calls ``refuse(rule)`` in the frame that is about to make a forbidden call.
    """

    def __init__(self, refuse: Any) -> None:
        self._refuse = refuse
        self._instrumented: dict[int, _InstrumentedCode] = {}
        self._rules: dict[int, Rule | None] = {}  # by the id of a code object or class
        self._references: list[Any] = []  # keeps these objects alive, so that no id is reused
        self._builtins: dict[Any, Rule | None] = {}
        self._tool = next((number for number in _TOOL_IDS if _monitoring.get_tool(number) is None), None)
        if self._tool is not None:
            _monitoring.use_tool_id(self._tool, _NAME)
            _monitoring.register_callback(self._tool, _monitoring.events.CALL, self._make_callback())

    @property
    def is_available(self) -> bool:
        """True if ``sys.monitoring`` had a tool id that no other tool uses. Without one, the guard sees no calls."""
        return self._tool is not None

    def watch(self, target: Any) -> None:
        """Report the calls of ``target`` and of all project code that it reaches. A second call does nothing.

        ``target`` is a function, a class or a callable object.
        """
        kind = type(target)
        while kind is functools.partial or kind is MethodType:
            target = target.func if kind is functools.partial else target.__func__
            kind = type(target)
        if kind is FunctionType:
            code_id = id(target.__code__)
            # Functions with free variables share a code object, but each may hold other functions: look at each one.
            if code_id in self._rules and (code_id in self._instrumented or not target.__code__.co_freevars):
                return
        else:
            if not issubclass(kind, type):
                target = kind
            if id(target) in self._rules:
                return
            self._store_rule(target, rule_of_class(target))
        self._instrument(target)

    def _instrument(self, target: Any) -> None:
        if self._tool is None:
            return
        for code, names in reachable_code(target, self._instrumented):
            if id(code) not in self._instrumented:
                # Events are local to this code object, so code outside of workflows pays nothing.
                self._instrumented[id(code)] = _InstrumentedCode(code, names)
                self._store_rule(code, None)
                _monitoring.set_local_events(self._tool, code, _monitoring.events.CALL)

    def _store_rule(self, target: Any, rule: Rule | None) -> Rule | None:
        self._references.append(target)
        self._rules[id(target)] = rule
        return rule

    def _make_callback(self) -> Any:
        """Return the callback. It refuses a forbidden call, and switches a call site off if it may."""
        rules, c_rules, instrumented = self._rules, self._builtins, self._instrumented
        judge, is_constant_site, refuse = self._judge, self._is_constant_site, self._refuse
        # Local names: this callback runs for every reported call.
        disable, unseen = _monitoring.DISABLE, _UNSEEN

        def on_call(code: CodeType, offset: int, callee: Any, argument: Any) -> Any:
            kind = type(callee)
            if kind is MethodDescriptorType:  # a method of a C type on an existing object: harmless
                return None
            if kind is FunctionType:
                rule = rules.get(id(callee.__code__), unseen)
            elif kind is BuiltinFunctionType:
                rule = c_rules.get(callee, unseen)
            else:
                rule = rules.get(id(callee), unseen)
            if rule is unseen:
                if kind is MethodType:
                    argument = callee.__self__
                rule = judge(callee)
            if rule is None:
                chains = instrumented[id(code)].chains
                if (chains is None or offset in chains) and is_constant_site(code, offset, callee):
                    return disable
            elif rule.when is None or rule.when(argument):
                refuse(rule)
            return None

        return on_call

    def _judge(self, callee: Any) -> Rule | None:
        """Return None for an allowed call. It caches most rules, and watches project code that ``callee`` leads to."""
        kind = type(callee)
        if kind is MethodType:
            bound = callee.__func__
            return self._judge(bound) if type(bound) is FunctionType else None
        if kind is functools.partial:
            return self._judge(callee.func)
        if kind is FunctionType:
            return self._judge_function(callee)
        if kind is BuiltinFunctionType:
            rule = rule_of_builtin(callee)
            if isinstance(callee.__self__, (ModuleType, type)):
                self._builtins[callee] = rule
            return rule
        if issubclass(kind, type):
            if id(callee) not in self._rules:
                self.watch(callee)
            return self._rules[id(callee)]
        call = kind.__dict__.get("__call__")
        if type(call) is FunctionType:
            return self._judge_function(call)
        return None

    def _judge_function(self, function: FunctionType) -> Rule | None:
        code = function.__code__
        if id(code) in self._rules:
            return self._rules[id(code)]
        if is_project(function):
            self._instrument(function)
            return None
        rule = rule_of_code(code, str(function.__globals__.get("__name__", "")))
        if rule is None and code.co_freevars:  # a wrapper, whose code is shared by many functions
            self._instrument(function)
            return None
        return self._store_rule(code, rule)

    def _is_constant_site(self, code: CodeType, offset: int, callee: Any) -> bool:
        """Return True if the call at ``offset``, which has just called ``callee``, can call no other object."""
        instrumented = self._instrumented[id(code)]
        if instrumented.chains is None:
            calls = find_call_sites(code).calls
            instrumented.chains = {place: site.chain for place, site in calls.items() if site.chain}
        chain = instrumented.chains.get(offset)
        if chain is None:
            return False
        target = resolve(chain, instrumented.globals)
        if target is callee or (type(callee) is BuiltinFunctionType and target == callee):
            return True
        # The name refers to something else than the callee, so this site may change again. It reports from now on.
        del instrumented.chains[offset]
        return False


# --- profiling --------------------------------------------------------------------------------------------------------
#
# The guard on Python 3.11: ``sys.setprofile`` while workflow code runs.
#
# A profile function is called for every call in its thread, those of the engine included. So it is set only for runs
# whose code is suspect (``needs_watching``). It is set when such code is about to run, and then in every activation
# until its end. A call is refused if project code makes it. If another profiler is active, the guard leaves it alone
# and is off. Arguments of C functions are not visible, so ``time.localtime()`` passes.


_C: Final = frozenset({ModuleType, type})


class Profile:
    """The profile function (``sys.setprofile``) of the guard, with its state.

    It calls ``refuse(rule, frame)``, which may raise, when the code of ``frame`` is about to make a forbidden call.
    """

    def __init__(self, refuse: Callable[[Rule, FrameType], None]) -> None:
        self._refuse = refuse
        self._rules: dict[int, Rule | None] = {}
        self._suspects: dict[int, bool] = {}  # by the id of a code object or class
        self._references: list[Any] = []
        self._builtins: dict[BuiltinFunctionType, Rule | None] = {}
        self._profile_function = self._make_profile_function()
        self._warned = False

    def switch(self, on: bool) -> Callable[[], None] | None:  # noqa: FBT001 - a hook of one argument
        """Set (``on``) or remove the profile function of this thread.

        Returns a function that restores the previous state, unless another profiler was set meanwhile.
        """
        before = sys.getprofile()
        if on:
            self._install_profile()
        elif before is self._profile_function:
            sys.setprofile(None)

        def undo() -> None:
            present = sys.getprofile()
            # A profiler that started inside the block stays: only our own changes are undone.
            if present is not before and (present is None or present is self._profile_function):
                sys.setprofile(before)

        return undo

    def watch(self, target: Any) -> None:
        """Set the profile function for the current activation if ``target``, which is about to run, needs the guard.

        ``target`` is a function or class. The activation is the one that runs in this thread.
        """
        runtime = current.current_runtime()
        if runtime is not None and not runtime.is_suspect and self._is_suspect(target):
            runtime.mark_suspect()
            self._install_profile()

    def _is_suspect(self, target: Any) -> bool:
        kind = type(target)
        while kind is functools.partial or kind is MethodType:
            target = target.func if kind is functools.partial else target.__func__
            kind = type(target)
        key = target if kind is not FunctionType and issubclass(kind, type) else kind
        key = target.__code__ if kind is FunctionType else key
        suspect = self._suspects.get(id(key))
        if suspect is None:
            self._references.append(key)
            suspect = self._suspects[id(key)] = needs_watching(reachable_code(target, ()))
        return suspect

    def _install_profile(self) -> None:
        present = sys.getprofile()
        if present is None:
            sys.setprofile(self._profile_function)
        elif present is not self._profile_function and not self._warned:
            self._warned = True
            warnings.warn("the determinism guard is off while a profiler is running", DeterminismWarning, 2)

    def _make_profile_function(self) -> Callable[[FrameType, str, Any], None]:
        rules, c_rules, judge, refuse_call = self._rules, self._builtins, self._judge, self._refuse_call

        def profile(frame: FrameType, event: str, called: Any) -> None:
            if event == "c_call":
                if type(called.__self__) not in _C:
                    rule = rule_of_builtin(called)
                else:
                    rule = c_rules.get(called, _UNSEEN)
                    if rule is _UNSEEN:
                        rule = c_rules[called] = rule_of_builtin(called)
                if rule is not None and rule.when is None:
                    refuse_call(rule, frame)
            elif event == "call":
                code = frame.f_code
                rule = rules.get(id(code), _UNSEEN)
                if rule is _UNSEEN:
                    rule = judge(code, frame)
                if rule is not None and frame.f_back is not None:
                    names = code.co_varnames
                    # The first argument decides for some rules; for ``__init__`` that is the one after ``self``.
                    first = names[1] if code.co_name == "__init__" and len(names) > 1 else names[0] if names else ""
                    if rule.when is None or rule.when(frame.f_locals.get(first)):
                        refuse_call(rule, frame.f_back)

        return profile

    def _judge(self, code: CodeType, frame: FrameType) -> Rule | None:
        rule = None
        if not is_project_file(code.co_filename):
            rule = rule_of_code(code, str(frame.f_globals.get("__name__", "")))
        self._references.append(code)
        self._rules[id(code)] = rule
        return rule

    def _refuse_call(self, rule: Rule, frame: FrameType) -> None:
        """Refuse a call that the code of ``frame`` makes, if that is code of the project."""
        caller: FrameType | None = frame
        while caller is not None and caller.f_code.co_filename == GENERATED:
            caller = caller.f_back
        if caller is None or not is_project_file(caller.f_code.co_filename):
            return
        try:
            self._refuse(rule, frame)
        except BaseException:
            self._restore_profile(frame)
            raise

    def _restore_profile(self, frame: FrameType) -> None:
        """Set the profile function again after it has raised, because the interpreter removes it then.

        The interpreter would remove one set here, too. So a trace function in ``frame`` sets it at the next event.
        """
        tracer, local = sys.gettrace(), frame.f_trace

        def trace(traced: FrameType, event: str, argument: Any) -> None:
            sys.settrace(tracer)
            traced.f_trace = local
            sys.setprofile(self._profile_function)

        frame.f_trace = trace
        sys.settrace(trace)


# --- auditing ---------------------------------------------------------------------------------------------------------
#
# The guard for effects at any depth below a step of workflow code.
#
# Such effects are new connections, name look-ups, new processes and files opened for writing. The interpreter reports
# these events to an audit hook before they happen, whether workflow code or a library causes them. The hook is called
# for every audit event of the process, so it tests the name of the event first. It sees neither data on an open socket
# nor what C code does by itself (libpq, gRPC). See decision 18.


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
    """Judge the audit event ``open``, whose arguments are the path, the mode or None, and the flags."""
    # By the flags and not by the mode: ``os.open`` reports no mode.
    return isinstance(arguments[2], int) and bool(arguments[2] & _WRITES)


# The hook in ``current.switch`` must be there before the first activation begins.
if sys.version_info < (3, 12):
    _install()
