"""The console: the pages on which operators see what is wrong, find runs and repair them.

An admin site serves it below its list of runs. Without the admin:
``path("workflows/", include("temporalex_django.console.urls"))``.
"""

from __future__ import annotations
