"""The headers ``ETag`` and ``If-Match``.

A tag contains the version of the run or schedule that a client has seen. So an operation can be refused if it has
changed. For a run, the error says what has changed.
"""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import Any
from uuid import UUID

from rest_framework.utils.encoders import JSONEncoder

from temporalex_django.operations.idempotency import RunVersion

_PART_COUNT = 6
_ANY = "*"


def etag_of(version: RunVersion, body: Any) -> str:
    """Return the ``ETag`` of a response about a run.

    It contains the version of the run, with which ``If-Match`` is compared, and a digest of ``body``.
    """
    digest = _digest(body)
    paused = "paused" if version.paused else ""
    return f'"{version.run_id.hex}.{version.events}.{version.status}.{version.blocked}.{paused}.{digest}"'


def _digest(body: Any) -> str:
    # The digest is for caches only: ``If-Match`` compares the version, and ignores changes of other fields.
    return hashlib.sha256(json.dumps(body, cls=JSONEncoder).encode("utf-8", "replace")).hexdigest()[:12]


def schedule_etag(changed_at: datetime, body: Any) -> str:
    """Return the ``ETag`` of a response about a schedule.

    It contains the time at which the definition was changed, with which ``If-Match`` is compared, and a digest of
    ``body``.
    """
    return f'"{changed_at.isoformat()}.{_digest(body)}"'


def parse_schedule_if_match(header: str) -> list[datetime] | None:
    """Return the times of the last change that a header ``If-Match`` about a schedule accepts; None for ``*``.

    None means that any state of the schedule is accepted. Tags that this package has not made are left out.
    """
    if header.strip() == _ANY:
        return None
    times = []
    for tag_text in header.split(","):
        try:
            times.append(datetime.fromisoformat(_tag_content(tag_text).rpartition(".")[0]))
        except ValueError:
            continue
    return times


def _tag_content(tag: str) -> str:
    """Return an entity tag without its quotes and without the prefix ``W/`` of a weak tag.

    Weak tags are accepted because proxies that compress responses weaken tags.
    """
    return tag.strip().removeprefix("W/").strip('"')


def parse_if_match(header: str) -> list[RunVersion] | None:
    """Return the versions of a run that a header ``If-Match`` accepts, or None for ``*``, which accepts any.

    Tags that this package has not made are left out.
    """
    if header.strip() == _ANY:
        return None
    # An empty list matches nothing, so a header with foreign tags alone is refused.
    versions = (_parse_etag(tag_text.strip()) for tag_text in header.split(","))
    return [tag_text for tag_text in versions if tag_text is not None]


def _parse_etag(tag: str) -> RunVersion | None:
    """Return the version of a run that the tag contains, or None if this package has not made the tag."""
    parts = _tag_content(tag).split(".")
    if len(parts) != _PART_COUNT:
        return None
    try:
        return RunVersion(
            run_id=UUID(parts[0]), events=int(parts[1]), status=parts[2], blocked=parts[3], paused=bool(parts[4])
        )
    except ValueError:
        return None
