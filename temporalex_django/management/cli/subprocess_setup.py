"""The setup of a new process before it can import models.

This module imports no models itself, because it is loaded before Django is set up.
"""

from __future__ import annotations

import sys


def set_up_django(path: list[str]) -> None:
    """Use the module search path of the parent, then set Django up."""
    import django  # noqa: PLC0415 - settings are read when this runs

    # A spawned interpreter has not run manage.py, which may have extended the path.
    sys.path[:] = path
    django.setup()
