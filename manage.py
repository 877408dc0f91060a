#!/usr/bin/env python
"""Run the example project's commands."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Hand the command line to Django."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    from django.core.management import execute_from_command_line  # noqa: PLC0415 - the setting above comes first

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
