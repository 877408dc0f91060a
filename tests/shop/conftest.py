"""Tests inside the example project: ``pytest --ds=example_project.settings tests/shop``.

Tests/integration/project/test_shop.py does so.
"""

from __future__ import annotations

import os

#: Elsewhere the shop's tables are not there.
collect_ignore_glob = [] if os.environ.get("DJANGO_SETTINGS_MODULE") == "example_project.settings" else ["test_*.py"]
