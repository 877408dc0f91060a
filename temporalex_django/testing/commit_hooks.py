"""Calls of ``on_commit`` callbacks in tests, at the points where a worker would commit.

The transaction around a ``TestCase`` never commits, so Django itself does not call them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import connections

from temporalex_django.backends.host import use_host
from temporalex_django.core.failures import error_line

logger = logging.getLogger("temporalex_django.testing")

#: Django sets this attribute on the ``atomic`` blocks of a ``TestCase``.
_TEST_MARK = "_from_testcase"


def has_open_transaction(alias: str) -> bool:
    """Return True if a transaction is open on the database ``alias``.

    Those that a ``TestCase`` opens around a test and its class do not count.
    """
    return any(not _is_test_block(block) for block in connections[alias].atomic_blocks)


def hide_savepoint(alias: str) -> None:
    """Hide the innermost savepoint on the database ``alias``, so that code inside it sees no open transaction."""
    blocks = connections[alias].atomic_blocks
    if blocks:
        setattr(blocks[-1], _TEST_MARK, True)


@contextmanager
def commit_point(alias: str) -> Iterator[None]:
    """Return a context manager that calls the ``on_commit`` callbacks of its block at the end of the block.

    Does nothing while a transaction is open around the block. An error of a callback is raised, unless the callback was
    registered with ``robust=True``. Callbacks that were registered before the block stay registered:
    ``captureOnCommitCallbacks`` finds them.
    """
    connection = connections[alias]
    if has_open_transaction(alias):
        yield
        return
    hook_count = len(connection.run_on_commit)
    yield
    # Callbacks are code of the application, whatever operation has registered them.
    with use_host(None):
        while len(connection.run_on_commit) > hook_count:
            # An entry is (savepoint ids, callback, robust). Read the list each time: a callback may register others.
            hook: Sequence[Any] = connection.run_on_commit.pop(hook_count)
            if hook[2]:
                call_robustly(hook[1])
            else:
                hook[1]()


def call_robustly(callback: Callable[[], object]) -> None:
    """Call the callback, and log an error that it raises."""
    try:
        callback()
    except Exception as exc:  # noqa: BLE001 - the data is committed already
        logger.error("a callback after a commit failed: %s", error_line(exc))


def _is_test_block(block: object) -> bool:
    return bool(getattr(block, _TEST_MARK, False))
