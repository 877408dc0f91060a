"""All operations by name: what filters, permissions and the audit are made of.

Each module of this package is read for it.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import MappingProxyType
from typing import Any

from temporalex_django import actions
from temporalex_django.actions.base import Action, registry
from temporalex_django.actions.steering import OperatorRunAction

for _module in pkgutil.iter_modules(actions.__path__):
    import_module(f"{actions.__name__}.{_module.name}")

ACTIONS: MappingProxyType[str, type[Action[Any]]] = MappingProxyType(dict(sorted(registry.items())))
#: Those that an operator does to one run.
STEERING: MappingProxyType[str, type[OperatorRunAction[Any]]] = MappingProxyType(
    {name: action for name, action in ACTIONS.items() if issubclass(action, OperatorRunAction)}
)
