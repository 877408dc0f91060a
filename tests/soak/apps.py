"""Has the workers of a soak look whether they are to die."""

from __future__ import annotations

import os
from pathlib import Path

from django.apps import AppConfig

from tests.soak.arms import FOLDER, Arms


class SoakConfig(AppConfig):
    name = "tests.soak"
    label = "tests_soak"

    def ready(self) -> None:
        if folder := os.environ.get(FOLDER):
            from temporalex_django.core import process

            process.reached = Arms(Path(folder)).reached
