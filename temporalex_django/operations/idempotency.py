"""Requests that are repeated or outdated: idempotency keys and versions of rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from uuid import UUID

from django.utils import timezone

from temporalex_django.authoring import authorization
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.conf import get_settings
from temporalex_django.engine.ids import uuid7
from temporalex_django.errors import IdempotencyKeyReused, OutcomeUnknown, RunChanged, UpdateTimeout, WorkflowNotFound
from temporalex_django.models import Instance, KeptAnswer
from temporalex_django.operations import audit
from temporalex_django.operations.base import Actor, storage

# --- idempotency ------------------------------------------------------------------------------------------------------
#
# Idempotent requests: a request that is sent again with its key is not executed again and gets the same answer.


class DuplicateRequest(Exception):
    """Raised instead of executing a request that was executed before.

    ``object_id`` is the id of the run, job or task that the first answer showed. ``is_new`` is True if the first
    request created it.
    """

    def __init__(self, object_id: UUID, *, is_new: bool) -> None:
        super().__init__(str(object_id))
        self.object_id = object_id
        self.is_new = is_new


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotentRequest:
    """A request with an idempotency key, which its sender chose; another sender may use the same key.

    ``by`` is the sender. ``request`` is the complete content of the request as bytes, by which a repetition is
    recognized.
    """

    by: Actor
    key: str
    request: bytes

    def check_duplicate(self) -> None:
        """Raise ``DuplicateRequest`` if this request was executed before. One read.

        Raises ``IdempotencyKeyReused`` if the sender has used the key for another request, and ``OutcomeUnknown`` if
        this request has begun and not ended.
        """
        stored_answer = KeptAnswer.objects.using(storage().alias).filter(key=self._key_digest).first()
        if stored_answer is not None:
            self._raise_duplicate(stored_answer)

    @contextmanager
    def run_once(self) -> Iterator[KeptAnswer]:
        """Store the key in one transaction with the work of the block; the block runs only for the first request.

        The block sets two columns of the yielded row: ``made``, the id of the object that the answer shows, and
        ``new``, True if it created the object. A concurrent request with the same key waits for this transaction.

        Raises ``DuplicateRequest`` and ``IdempotencyKeyReused`` before the block runs. A block that raises leaves no
        key behind.
        """
        store = storage()
        answers = KeptAnswer.objects.using(store.alias)
        answer = KeptAnswer(id=uuid7(), key=self._key_digest, request=self._request_digest, at=timezone.now())
        with audit.defer_denials(), store.transaction():
            # The unique key makes a concurrent request wait here for our commit or rollback.
            answers.bulk_create([answer], ignore_conflicts=True)
            stored_answer = answers.get(key=self._key_digest)
            if stored_answer.pk != answer.pk:
                self._raise_duplicate(stored_answer)
            yield answer
            answer.save(using=store.alias, update_fields=["made", "new"], force_update=True)

    @contextmanager
    def run_once_at_once(self) -> Iterator[KeptAnswer]:
        """Store the key, and run the block outside of transactions, for work that another system does at once.

        The block runs only for the first request, and sets the columns that ``run_once`` names. A block that raises
        leaves no key behind. If the process dies in the block, or the block raises ``UpdateTimeout`` with the code
        ``unknown``, the work may have been done: the key stays without an object, and a repeated request raises
        ``OutcomeUnknown``. Raises the errors of ``run_once``.
        """
        store = storage()
        answers = KeptAnswer.objects.using(store.alias)
        answer = KeptAnswer(id=uuid7(), key=self._key_digest, request=self._request_digest, at=timezone.now())
        answers.bulk_create([answer], ignore_conflicts=True)
        stored_answer = answers.get(key=self._key_digest)
        if stored_answer.pk != answer.pk:
            self._raise_duplicate(stored_answer)
        try:
            yield answer
        except Exception as exc:
            if not (isinstance(exc, UpdateTimeout) and exc.code == "unknown"):
                answers.filter(pk=answer.pk).delete()
            raise
        answer.save(using=store.alias, update_fields=["made", "new"], force_update=True)

    def _raise_duplicate(self, stored_answer: KeptAnswer) -> None:
        if stored_answer.request != self._request_digest:
            raise IdempotencyKeyReused(f"another request has already used the key {self.key}")
        if stored_answer.made is None:
            raise OutcomeUnknown(f"the first request with the key {self.key} has begun, and its outcome is not known")
        raise DuplicateRequest(stored_answer.made, is_new=stored_answer.new)

    @property
    def _key_digest(self) -> str:
        # Keys are private to their sender: the same key of another person is another request.
        return hashlib.sha256(f"{authorization.sender_key(self.by.user)}\0{self.key}".encode()).hexdigest()

    @property
    def _request_digest(self) -> str:
        return hashlib.sha256(self.request).hexdigest()


# --- optimistic lock --------------------------------------------------------------------------------------------------
#
# Optimistic locking of runs: an operation is refused if the run has changed since the caller read it.


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
    """List the differences between the versions; ``expected`` is None if the caller knew none."""
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
