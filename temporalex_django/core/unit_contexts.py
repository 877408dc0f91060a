"""Context variables of workflow code: each unit has a context of its own, and nothing goes in or out of a run by them.

``run`` begins in an empty one, every other unit in a copy of its parent's. What is evaluated for a unit and is no part
of it (predicates, validators) sees a copy that is thrown away.
"""

from __future__ import annotations

import decimal
from contextvars import Context, ContextVar
from typing import Any


def _decimal_variable() -> ContextVar[Any]:
    """Where ``decimal`` keeps its context; the module does not name it."""
    context = Context()
    context.run(decimal.getcontext)
    (variable,) = context
    return variable


_DECIMAL = _decimal_variable()


def inherit_context(context: Context) -> Context:
    """A copy, in which the context of ``decimal`` is another one too: that is an object which its users change."""
    own = context.copy()
    if _DECIMAL in own:
        own.run(_DECIMAL.set, own[_DECIMAL].copy())
    return own
