"""The headers ``ETag`` and ``If-Match``.

A tag contains the version of the run that a client has seen. So an operation can be refused if the run has changed, and
the error can say what has changed.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any
from uuid import UUID

from rest_framework.utils.encoders import JSONEncoder

from temporalex_django.operations.optimistic_lock import RunVersion

_PART_COUNT = 6
_ANY = "*"


def etag_of(version: RunVersion, body: Any) -> str:
    """Return the tag of a response about a run.

    It contains the version of the run, which ``If-Match`` compares, and a digest of ``body``.
    """
    # The digest is for caches only: ``If-Match`` compares the version, and ignores changes of other fields.
    digest = hashlib.sha256(json.dumps(body, cls=JSONEncoder).encode("utf-8", "replace")).hexdigest()[:12]
    paused = "paused" if version.paused else ""
    return f'"{version.run_id.hex}.{version.events}.{version.status}.{version.blocked}.{paused}.{digest}"'


def parse_if_match(header: str) -> list[RunVersion] | None:
    """Return the versions of the run in the tags of an ``If-Match`` header, or None for ``*``, which matches any state.

    Tags that this package has not made are left out.
    """
    if header.strip() == _ANY:
        return None
    # An empty list matches nothing, so a header with foreign tags alone is refused.
    versions = (_parse_etag(tag_text.strip()) for tag_text in header.split(","))
    return [tag_text for tag_text in versions if tag_text is not None]


def _parse_etag(tag: str) -> RunVersion | None:
    """Return the version in a tag, or None if this package has not made it.

    Weak tags are accepted, because proxies that compress responses weaken tags.
    """
    parts = tag.removeprefix("W/").strip('"').split(".")
    if len(parts) != _PART_COUNT:
        return None
    try:
        return RunVersion(
            run_id=UUID(parts[0]), events=int(parts[1]), status=parts[2], blocked=parts[3], paused=bool(parts[4])
        )
    except ValueError:
        return None
