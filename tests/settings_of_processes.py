"""Settings of the tests, with what a test changes for a process that it starts."""

from __future__ import annotations

import json
import os

from tests.settings import *  # noqa: F403

INSTALLED_APPS += [app for app in os.environ.get("TX_TEST_APPS", "").split(",") if app]  # noqa: F405
DEBUG = bool(os.environ.get("TX_TEST_DEBUG"))
TEMPORALEX = json.loads(os.environ.get("TX_TEST_TEMPORALEX", "{}"))
