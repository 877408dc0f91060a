"""The guard on Python 3.11: ``sys.setprofile`` while workflow code runs.

A profile function is called for every call in its thread, those of the engine included. So it is set only for runs
whose code is suspect (``needs_watching``). It is set when such code is about to run, and then in every activation until
its end. A call is refused if project code makes it. If another profiler is active, the guard leaves it alone and is
off. Arguments of C functions are not visible, so ``time.localtime()`` passes.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from temporalex_django.core import current
from temporalex_django.core.determinism.needs_watching import needs_watching
from temporalex_django.core.determinism.reachable_code import reachable_code
from temporalex_django.core.determinism.rules import GENERATED, Rule, is_project_file, rule_of_builtin, rule_of_code
from temporalex_django.errors import DeterminismWarning

_UNSEEN: Final = Rule("", "")
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
        """Return the rule for calls of ``code``, or None, and remember it. ``frame`` is a frame that runs the code."""
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

        ``frame`` is the frame that gets the exception. If the profile function were set here, the interpreter would
        remove it. So a trace function in that frame sets it at the next event, and then removes itself.
        """
        tracer, local = sys.gettrace(), frame.f_trace

        def trace(traced: FrameType, event: str, argument: Any) -> None:
            sys.settrace(tracer)
            traced.f_trace = local
            sys.setprofile(self._profile_function)

        frame.f_trace = trace
        sys.settrace(trace)
