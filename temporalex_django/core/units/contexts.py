"""Context variables of workflow code. Each unit has a context of its own, isolated from other runs. See decision 30.

``run`` begins in an empty context, every other unit in a copy of its parent's. Predicates and validators are evaluated
for a unit but are no part of it. They get a copy that is discarded.
"""

from __future__ import annotations

import decimal
from contextvars import Context, ContextVar
from typing import Any


def _decimal_variable() -> ContextVar[Any]:
    """Return the context variable in which ``decimal`` keeps its context. The module has no name for it."""
    # In an empty context, ``getcontext`` creates the variable, and it is the only one there.
    context = Context()
    context.run(decimal.getcontext)
    (variable,) = context
    return variable


_DECIMAL = _decimal_variable()


def inherit_context(context: Context) -> Context:
    """Return a copy of the context, with a copy of the mutable context object of ``decimal``."""
    own = context.copy()
    # A plain copy would share that object: a precision set in one branch would change the results of another one.
    if _DECIMAL in own:
        own.run(_DECIMAL.set, own[_DECIMAL].copy())
    return own
