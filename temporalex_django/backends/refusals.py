"""Operations that a backend does not have, or that it does at once. Pages read them without the client of it."""

from __future__ import annotations

from typing import Final

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django.core.names import TEMPORAL

#: For a Temporal cluster, the operations that it does not have, each with the reason and what to do instead.
CLUSTER_REFUSALS: Final[dict[str, Promise]] = {
    "fork": _("a run on a Temporal cluster cannot be copied: start a new run, or reset this one"),
    "try_again": _(
        "a task that fails on a Temporal cluster is tried again by the server: correct the code and deploy it"
    ),
    "move": _("a run on a Temporal cluster keeps its version: change its code with api.patched, or reset it"),
}
#: Operations that a Temporal cluster does at once, whatever becomes of the caller's transaction.
_AT_ONCE: Final = frozenset(
    {"pause", "unpause", "skip_timer", "retry_activity", "complete_activity", "fail_activity", "reset"}
)


def acts_at_once(backend: str, operation: str) -> bool:
    """Return True if a backend does an operation of this name at once, so that it refuses it inside a transaction."""
    return backend == TEMPORAL and operation in _AT_ONCE


def refusal_of(backend: str, operation: str) -> Promise | None:
    """Return why a backend has no operation of this name, and what to do instead; None if it has it."""
    return CLUSTER_REFUSALS.get(operation) if backend == TEMPORAL else None
