"""``ETag`` and ``If-Match``: a tag says what somebody saw of a run, so that a refusal can say what changed."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from uuid import UUID

from rest_framework.utils.encoders import JSONEncoder

from temporalex_django.actions.unchanged import RunVersion

_PART_COUNT = 6
_ANY = "*"


def etag_of(version: RunVersion, body: Any) -> str:
    """Of what is shown: the state of the run, by which it is compared, and a digest of all the rest."""
    digest = hashlib.sha256(json.dumps(body, cls=JSONEncoder).encode("utf-8", "replace")).hexdigest()[:12]
    paused = "paused" if version.paused else ""
    return f'"{version.run_id.hex}.{version.events}.{version.status}.{version.blocked}.{paused}.{digest}"'


def parse_if_match(header: str) -> list[RunVersion] | None:
    """What the tags of an ``If-Match`` say; those that are none of ours say nothing. None for ``*``: any state."""
    if header.strip() == _ANY:
        return None
    versions = (_parse_etag(tag_text.strip()) for tag_text in header.split(","))
    return [tag_text for tag_text in versions if tag_text is not None]


def _parse_etag(tag: str) -> RunVersion | None:
    """Also of a weak one: what compresses answers makes them so."""
    parts = tag.removeprefix("W/").strip('"').split(".")
    if len(parts) != _PART_COUNT:
        return None
    try:
        return RunVersion(
            run_id=UUID(parts[0]), events=int(parts[1]), status=parts[2], blocked=parts[3], paused=bool(parts[4])
        )
    except ValueError:
        return None
