"""The setup of a worker process of a pool, before it can import models.

This module imports no models, because a new process loads it before Django is set up.
"""

from __future__ import annotations

import sys


def set_up_django(path: list[str]) -> None:
    """Set Django up in a new process; ``path`` is the ``sys.path`` of its parent."""
    import django  # noqa: PLC0415 - settings are read when this runs

    # A spawned interpreter has not run manage.py, which may have extended the path.
    sys.path[:] = path
    django.setup()
