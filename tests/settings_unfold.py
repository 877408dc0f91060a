"""The settings of the suite with django-unfold, as the page about it describes them."""

from __future__ import annotations

from typing import Any

from django.templatetags.static import static

from tests.settings import *  # noqa: F403 - all of them
from tests.settings import INSTALLED_APPS as APPS
from tests.settings_tasks import TASKS  # noqa: F401 - the setting

INSTALLED_APPS = ["unfold", *APPS]


def _stylesheet(request: Any) -> str:
    return static("temporalex_django/unfold.css")


UNFOLD = {"STYLES": [_stylesheet]}
