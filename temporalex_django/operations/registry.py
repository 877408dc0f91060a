"""All operations by name (``ACTIONS``), and those that an operator performs on one run (``STEERING``).

Filters, permissions, routes and commands are built from them. Importing this module imports every module of
``operations``, because an operation registers itself when its class is created.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import MappingProxyType
from typing import Any

from temporalex_django import operations
from temporalex_django.core.names import TEMPORAL
from temporalex_django.models import Instance
from temporalex_django.operations.base import Action, registry
from temporalex_django.operations.runs.operator_action import OperatorRunAction

# An operation registers itself when its class is created, so importing the modules is all that is needed.
for _module in pkgutil.walk_packages(operations.__path__, f"{operations.__name__}."):
    import_module(_module.name)

ACTIONS: MappingProxyType[str, type[Action[Any]]] = MappingProxyType(dict(sorted(registry.items())))
#: Operations that an operator performs on one run.
STEERING: MappingProxyType[str, type[OperatorRunAction[Any]]] = MappingProxyType(
    {name: action for name, action in ACTIONS.items() if issubclass(action, OperatorRunAction)}
)


def acts_at_once(run: Instance, operation: str) -> bool:
    """Return True if the backend of a run does the operation of this name at once, outside of transactions."""
    return run.backend == TEMPORAL and getattr(ACTIONS[operation], "cluster", "") == "at once"
