"""Tests of the admin under django-unfold: ``pytest --ds=tests.settings_unfold tests/unfold``.

Tests/browser/test_unfold.py does so.
"""

from __future__ import annotations

import os

#: Elsewhere the admin site is that of Django.
collect_ignore_glob = [] if os.environ.get("DJANGO_SETTINGS_MODULE") == "tests.settings_unfold" else ["test_*.py"]
