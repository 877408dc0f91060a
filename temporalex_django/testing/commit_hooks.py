"""What follows commits inside of a test's transaction, which never is committed: where a worker would have done it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import connections

from temporalex_django.core.error_text import error_line

logger = logging.getLogger("temporalex_django.testing")

#: Django marks its own with this.
_TEST_MARK = "_from_testcase"


def has_open_transaction(alias: str) -> bool:
    """Whether a transaction is open besides those that a ``TestCase`` puts around a test and its class."""
    return any(not _is_test_block(block) for block in connections[alias].atomic_blocks)


def hide_savepoint(alias: str) -> None:
    """What is done in the savepoint that was opened last is in no transaction, as far as it can tell."""
    blocks = connections[alias].atomic_blocks
    if blocks:
        setattr(blocks[-1], _TEST_MARK, True)


@contextmanager
def commit_point(alias: str) -> Iterator[None]:
    """Behind it what was registered in it for after the commit is called, unless a transaction is open around it.

    What a callback raises goes through, unless it was registered as ``robust``. Whatever else waits for a commit is
    left to wait: ``captureOnCommitCallbacks`` finds it.
    """
    connection = connections[alias]
    if has_open_transaction(alias):
        yield
        return
    hook_count = len(connection.run_on_commit)
    yield
    while len(connection.run_on_commit) > hook_count:
        hook: Sequence[Any] = connection.run_on_commit.pop(hook_count)  # savepoints, callback, whether it is robust
        if hook[2]:
            call_robustly(hook[1])
        else:
            hook[1]()


def call_robustly(callback: Callable[[], object]) -> None:
    """Call it; what it raises is logged."""
    try:
        callback()
    except Exception as exc:  # noqa: BLE001 - what is committed stays so
        logger.error("what was to be done after a commit failed: %s", error_line(exc))


def _is_test_block(block: object) -> bool:
    return bool(getattr(block, _TEST_MARK, False))
