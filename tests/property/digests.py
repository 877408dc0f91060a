"""Programs that are kept, with what came of them: the same on every Python, under every hash seed, for ever.

``programs.json`` holds ``[{"program", "schedule", "limits", "digest"}]``. ``python -m tests.property.digests`` prints
the digest of each.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from tests.property.playing import digest, play

FILE = Path(__file__).with_name("programs.json")


def kept() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(FILE.read_text())
    return found


def digests() -> list[str]:
    logging.getLogger("temporalex_django").setLevel(logging.CRITICAL)
    return [digest(play(one["program"], one["schedule"], **one["limits"])) for one in kept()]


if __name__ == "__main__":
    print("\n".join(digests()))
