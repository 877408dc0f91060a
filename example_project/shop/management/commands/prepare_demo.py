"""The command ``manage.py prepare_demo``: create tables, products and a login."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from example_project.replay.day import read_day
from example_project.shop.preparation import DEMO_DAY, load_products, make_clerk, make_login, migrate, take_over


class Command(BaseCommand):
    """Prepare the database. Safe to repeat."""

    help = "Migrate the database, load the products, create the demo login, and print it as JSON."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the option of the file of the day."""
        parser.add_argument("--day", type=Path, default=DEMO_DAY)

    def handle(self, *args: Any, day: Path, **options: Any) -> None:
        """Prepare. The environment has the password, so that nobody reads it from the list of processes."""
        migrate()
        read = read_day(day)
        load_products(read)
        ended = take_over(read)
        make_clerk()
        login = make_login(password=os.environ.get("DEMO_PASSWORD"))
        self.stdout.write(json.dumps({"user": login.user, "password": login.password, "ended": ended}))
