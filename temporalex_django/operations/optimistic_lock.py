"""Optimistic locking of runs: an operation is refused if the run has changed since the caller read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from uuid import UUID

from temporalex_django.backends.protocol import RunTarget
from temporalex_django.conf import get_settings
from temporalex_django.errors import RunChanged, UpdateTimeout, WorkflowNotFound
from temporalex_django.models import Instance
from temporalex_django.operations import audit
from temporalex_django.operations.base import storage


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVersion:
    """The version of a run that a reader saw: two equal versions mean that nothing an operation depends on has changed.

    This is not the version of its class. ``run_id`` is the current run of the chain, and ``events`` the length of its
    history. ``blocked`` is the code of the error that blocks it, or empty.
    """

    run_id: UUID
    events: int
    status: str
    blocked: str
    paused: bool


def version_of(run: Instance) -> RunVersion:
    """Return the ``RunVersion`` of a run, by which a later change of the run is noticed.

    Takes a read unless ``chain`` of the run is loaded.
    """
    return RunVersion(
        run_id=run.chain.run_id,
        events=run.chain.length,
        status=run.status,
        blocked=str((run.blocked or {}).get("code", "")),
        paused=run.chain.paused,
    )


@contextmanager
def require_unchanged(
    target: RunTarget, expected: Sequence[RunVersion] | None, *, at_once: bool = False
) -> Iterator[None]:
    """Lock the chain, raise ``RunChanged`` unless the run has one of the ``expected`` versions, and run the block.

    The block and the check are one transaction. With ``at_once``, the block runs after that transaction, for work that
    another system does at once. If ``expected`` is None, nothing is locked or checked. The lock is
    awaited for at most ``UPDATE_LOCK_WAIT`` seconds; then ``UpdateTimeout`` (code ``busy``) is raised. Raises
    ``WorkflowNotFound`` if the run was deleted.
    """
    if expected is None:
        yield
        return
    if at_once:
        with require_unchanged(target, expected):
            pass
        yield
        return
    store, wait = storage(), get_settings().UPDATE_LOCK_WAIT
    with audit.defer_denials(), store.transaction():
        # Compare under the lock: without it the run could change between the comparison and the operation.
        if not store.lock_chain(target.chain_id, wait=wait):
            raise UpdateTimeout(f"{target.workflow} {target.workflow_id} is busy: try again", code="busy")
        run = Instance.objects.using(store.alias).select_related("chain").filter(pk=target.selected_run_id).first()
        if run is None:
            raise WorkflowNotFound(f"{target.workflow} {target.workflow_id} no longer exists")
        if (current := version_of(run)) not in expected:
            raise _change_error(target, expected[-1] if expected else None, current)
        yield


def _change_error(target: RunTarget, expected: RunVersion | None, current: RunVersion) -> RunChanged:
    """Return the ``RunChanged`` error that lists how the ``current`` version of the run differs from ``expected``.

    ``expected`` is None if the caller knew no version.
    """
    changes = {}
    if expected is not None:
        pairs = {
            field.name: (getattr(expected, field.name), getattr(current, field.name)) for field in fields(RunVersion)
        }
        changes = {
            name: {"was": _to_plain(was), "is": _to_plain(value)}
            for name, (was, value) in pairs.items()
            if was != value
        }
    text = "; ".join(f"{name} was {pair['was']!r} and is {pair['is']!r}" for name, pair in changes.items())
    return RunChanged(
        f"{target.workflow} {target.workflow_id} has changed since it was read: "
        f"{text or 'the version that was read is not known'}",
        changes=changes,
    )


def _to_plain(value: object) -> object:
    if isinstance(value, UUID):
        return str(value)
    return value
