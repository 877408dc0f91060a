"""What a fresh process does before it can import models.

It imports none itself: it is loaded before Django is set up.
"""

from __future__ import annotations

import sys


def set_up_django(path: list[str]) -> None:
    """Look for modules where the parent does, then set Django up."""
    import django  # noqa: PLC0415 - settings are read when this runs

    sys.path[:] = path
    django.setup()
