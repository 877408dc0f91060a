"""The path under which you import the primitives of workflow code: ``from temporalex_django.api import sleep``."""

from __future__ import annotations

import sys

from temporalex_django.authoring import api
from temporalex_django.authoring.api import *  # noqa: F403 - type checkers read the names here

# Both paths are one module, so patching a primitive under one of them patches it under the other.
sys.modules[__name__] = api
