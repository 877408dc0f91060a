"""manage.py replay_day: play a supermarket's day over HTTP, then check every figure."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from example_project.replay.books import Books
from example_project.replay.chaos import Chaos
from example_project.replay.day import Day, read_day
from example_project.replay.options import add_play_options
from example_project.replay.play import Pace, Play
from example_project.replay.processes import NotStarted, Shop
from example_project.replay.report import Report
from example_project.replay.rest import Shop as RestApi
from example_project.shop.preparation import load_products, make_login, migrate, take_over


class Command(BaseCommand):
    """Play a day. Exit code: 0 reconciled, 1 a difference (or fewer kills than asked), 2 malformed lines."""

    help = "Play a day of a supermarket against the running shop, as its customers would, and reconcile."

    def add_arguments(self, parser: CommandParser) -> None:
        """Read what and how."""
        add_play_options(parser)
        parser.add_argument("file", type=Path, help="basket_lines.csv; a products.csv beside it is loaded")
        parser.add_argument(
            "--base-url", help="a shop that runs already; without it one is started, and ended afterwards"
        )
        parser.add_argument("--provider-url", default=settings.SHOP_PROVIDER_URL, help="with --base-url: its provider")
        parser.add_argument(
            "--cluster-pid", type=int, help="with --base-url and --chaos: the cluster whose workers may die"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Play, print the report, exit with its code."""
        if options["base_url"] and options["chaos"] and not options["cluster_pid"]:
            message = (
                "--chaos kills only workers of a cluster that is named: give --cluster-pid, or leave out --base-url"
            )
            raise CommandError(message)
        try:
            day = read_day(options["file"])
        except OSError as error:
            raise CommandError(str(error)) from error
        report = self._play(day, options=options) if day.baskets else Report(day=day)
        self.stdout.write(report.text())
        if options["json"]:
            options["json"].write_text(json.dumps(report.as_dict(), indent=2) + "\n")
        if report.code:
            sys.exit(report.code)

    def _play(self, day: Day, *, options: dict[str, Any]) -> Report:
        pace = Pace(speed=options["speed"], confirm_within=options["confirm_within"], patience=options["patience"])
        base_url, provider_url, cluster = options["base_url"], options["provider_url"], options["cluster_pid"]
        with ExitStack() as stack:
            if not base_url:
                migrate()
                load_products(day)
                take_over(day)
                shop = Shop(
                    root=settings.BASE_DIR,
                    var=settings.VAR_DIR,
                    workers=options["workers"],
                    provider_options=("--seed", str(options["seed"])),
                )
                try:
                    stack.enter_context(shop)
                except NotStarted as error:
                    raise CommandError(str(error)) from error
                base_url, provider_url, cluster = shop.base_url, shop.provider_url, shop.cluster_pid
            books = Books(day, provider_url=provider_url)
            play = Play(day, shop=RestApi(base_url, token=make_login().token), pace=pace)
            chaos = Chaos(
                wanted=options["chaos"], clock=play.clock, seconds=play.expected_seconds, cluster=cluster or 0
            )
            chaos.start()
            try:
                play.run()
            finally:
                chaos.finish()
            provider = books.provider()
            return Report(
                day=day,
                visits=play.visits,
                checks=books.checks(play.visits, provider=provider),
                provider=provider,
                seconds=play.seconds,
                speed=play.clock.speed,
                kills=chaos.kills,
                kills_wanted=options["chaos"],
                chaos_problem=chaos.problem,
            )
