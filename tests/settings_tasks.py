"""The settings of the suite with backends for Django tasks."""

from __future__ import annotations

from tests.settings import *  # noqa: F403 - all of them

BACKEND = "temporalex_django.tasks.DurableBackend"
TASKS = {
    "default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"]},
    "patient": {"BACKEND": BACKEND, "OPTIONS": {"retry": {"max_attempts": 2, "initial_interval": 0}, "retention": 0}},
}
