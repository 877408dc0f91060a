"""Start many runs at once."""

from __future__ import annotations

from collections.abc import Sequence

from temporalex_django.authoring.requests import StartRequest
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.db.inserts import NewStart
from temporalex_django.errors import AlreadyRunning
from temporalex_django.operations.base import CODE, Actor
from temporalex_django.operations.runs.start import Start


def start_many(requests: Sequence[StartRequest], *, by: Actor = CODE) -> list[Start | AlreadyRunning]:
    """Start these runs in one transaction, the caller's if one is open; the result is in the order of the requests.

    For each request, the result has the operation ``Start``, with its ``target`` and its ``outcome``, or
    ``AlreadyRunning`` if an open run has the id. All other errors are raised before anything is written, and are those
    of ``Start``.

    Requests that set ``on_conflict``, ``on_closed``, a throttle or a debounce are started one by one. The others take
    one statement per thousand. Each start of a user is audited.
    """
    starts = [Start(request, by=by) for request in requests]
    for start in {start.request.workflow: start for start in starts}.values():
        with start.audit_denials():
            start.check()
    new_starts = []
    for start in starts:
        with start.client_call():
            new_starts.append(start.build())
    results: list[Start | AlreadyRunning] = [*starts]
    if not starts:
        return results
    storage = starts[0].storage
    with storage.transaction():
        _insert_plain(starts, new_starts, results)
        for number, start in enumerate(starts):
            if start.request.has_policy:
                try:
                    start.perform()
                except AlreadyRunning as exc:
                    results[number] = exc
    for start in starts:
        start.flush()
    return results


def _insert_plain(
    starts: Sequence[Start], new_starts: Sequence[NewStart], results: list[Start | AlreadyRunning]
) -> None:
    """Insert the runs of the starts that have no policy (``on_conflict``, ``on_closed``, a throttle or a debounce).

    The three lists correspond: ``new_starts[i]`` is what ``starts[i]`` inserts, and ``results[i]`` is its result. The
    result becomes an ``AlreadyRunning`` if an open run has the id. Takes few statements for each backend.
    """
    for backend in {start.backend.name: start.backend for start in starts}.values():
        numbers = [
            number
            for number, start in enumerate(starts)
            if start.backend.name == backend.name and not start.request.has_policy
        ]
        inserted = backend.start_many([new_starts[number] for number in numbers], storage=starts[0].storage)
        for number, ids in zip(numbers, inserted, strict=True):
            if isinstance(ids, AlreadyRunning):
                results[number] = ids
            else:
                starts[number].note_started(new_starts[number], ids)


def target_of(start: Start) -> RunTarget:
    """Return the ``RunTarget`` of an operation that ``start_many`` returned: the run that it started or used."""
    assert start.target is not None
    return start.target
