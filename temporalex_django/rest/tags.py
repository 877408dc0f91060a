"""``ETag`` and ``If-Match``: a tag says what somebody saw of a run, so that a refusal can say what changed."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from uuid import UUID

from rest_framework.utils.encoders import JSONEncoder

from temporalex_django.actions.unchanged import RunVersion

_PARTS = 6
_ANY = "*"


def tag_of(run: RunVersion, body: Any) -> str:
    """Of what is shown: the state of the run, by which it is compared, and a digest of all the rest."""
    digest = hashlib.sha256(json.dumps(body, cls=JSONEncoder).encode("utf-8", "replace")).hexdigest()[:12]
    paused = "paused" if run.paused else ""
    return f'"{run.run_id.hex}.{run.events}.{run.status}.{run.blocked}.{paused}.{digest}"'


def seen_in(header: str) -> list[RunVersion] | None:
    """What the tags of an ``If-Match`` say; those that are none of ours say nothing. None for ``*``: any state."""
    if header.strip() == _ANY:
        return None
    found = (_read(one.strip()) for one in header.split(","))
    return [one for one in found if one is not None]


def _read(tag: str) -> RunVersion | None:
    """Also of a weak one: what compresses answers makes them so."""
    parts = tag.removeprefix("W/").strip('"').split(".")
    if len(parts) != _PARTS:
        return None
    try:
        return RunVersion(
            run_id=UUID(parts[0]), events=int(parts[1]), status=parts[2], blocked=parts[3], paused=bool(parts[4])
        )
    except ValueError:
        return None
