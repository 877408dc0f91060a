"""The guard on Python 3.12 and later: ``sys.monitoring`` reports the calls of workflow code before they happen.

Only code that workflow code can reach (``reachable_code``) is instrumented, when it is first seen. That is at the start
of a run, where the engine calls a handler, predicate or branch, and where instrumented code calls another function.

A call site is switched off after a harmless call if its callee cannot change. Its callee is then a global name, perhaps
with attributes of modules and classes, that refers to the called object. Every other site (a variable, a method)
continues to report, because ``fn()`` may be ``len`` now and ``time.time`` next.
"""

from __future__ import annotations

import functools
import sys
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, Final

from temporalex_django.core.determinism.call_sites import find_call_sites, resolve
from temporalex_django.core.determinism.reachable_code import reachable_code
from temporalex_django.core.determinism.rules import Rule, is_project, rule_of_builtin, rule_of_class, rule_of_code

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
        """Return the callback for ``sys.monitoring``.

        It refuses a forbidden call, and switches a call site off if it may.
        """
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
        """Return the rule that forbids a call of ``callee``, or None if the call is allowed.

        The result is cached for most kinds of callees, so this runs only for the first call of each. Code of the
        project that ``callee`` leads to is watched from now on.
        """
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
