"""The command ``manage.py replay_day``: play a supermarket's day over HTTP, then check every figure."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from example_project.replay.day import Day, read_day
from example_project.replay.flows import FLOWS, Scene
from example_project.replay.options import add_play_options
from example_project.replay.play import Pace
from example_project.replay.processes import NotStarted, Shop
from example_project.replay.report import Report, worst
from example_project.shop.preparation import load_products, make_clerk, make_login, make_manager, migrate, take_over

if TYPE_CHECKING:
    from collections.abc import Iterator


class Command(BaseCommand):
    """Play a day. Exit code: 0 reconciled, 1 a difference (or fewer kills than asked), 2 malformed lines."""

    help = "Play a day of a supermarket against the running shop, as its customers would, and reconcile."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options of the play."""
        add_play_options(parser, flow="cart")
        parser.add_argument("file", type=Path, help="path of basket_lines.csv; a products.csv in its folder is loaded")
        parser.add_argument(
            "--base-url", help="address of a running shop; without it, one is started, and stopped afterwards"
        )
        parser.add_argument(
            "--provider-url", default=settings.SHOP_PROVIDER_URL, help="with --base-url: its payment provider for carts"
        )
        parser.add_argument(
            "--orders-provider-url",
            default=settings.SHOP_ORDERS_PROVIDER_URL,
            help="with --base-url: its payment provider for orders",
        )
        parser.add_argument(
            "--cluster-pid", type=int, help="with --base-url and --chaos: the cluster whose workers may be killed"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Play, print the report, exit with its code."""
        if options["base_url"] and options["chaos"] and not options["cluster_pid"]:
            message = "--chaos kills only workers of a known cluster: pass --cluster-pid, or omit --base-url"
            raise CommandError(message)
        # The report counts the clerk's decisions; a log line for each would hide it.
        logging.getLogger("temporalex_django.operations").setLevel(logging.WARNING)
        try:
            day = read_day(options["file"])
        except OSError as error:
            raise CommandError(str(error)) from error
        reports = []
        for report in self._play(day, options=options):
            reports.append(report)
            self.stdout.write(report.text())
        code = worst(report.code for report in reports)
        if options["json"]:
            facts = [report.as_dict() for report in reports]
            written = facts[0] if len(facts) == 1 else {"code": code, "flows": {one["flow"]: one for one in facts}}
            options["json"].write_text(json.dumps(written, indent=2) + "\n")
        if code:
            sys.exit(code)

    def _play(self, day: Day, *, options: dict[str, Any]) -> Iterator[Report]:
        """Play one flow after the other, so that each has the machine for itself and its kills hit its own work."""
        names = [*FLOWS] if options["flow"] == "both" else [options["flow"]]
        if not day.baskets:
            yield from (FLOWS[name].report(day=day) for name in names)
            return
        pace = Pace(speed=options["speed"], confirm_within=options["confirm_within"], patience=options["patience"])
        with ExitStack() as stack:
            if options["base_url"]:
                providers = {"cart": options["provider_url"], "graph": options["orders_provider_url"]}
                base_url, cluster = options["base_url"], options["cluster_pid"] or 0
            else:
                shop = self._open_shop(stack, day=day, options=options)
                providers, base_url, cluster = shop.providers, shop.base_url, shop.cluster_pid
            scene = Scene(
                base_url=base_url,
                token=make_login().token,
                providers=providers,
                cluster=cluster,
                clerk=make_clerk(),
                manager=make_manager(),
            )
            for name in names:
                yield FLOWS[name](day, scene=scene, pace=pace).play(kills=options["chaos"])

    @staticmethod
    def _open_shop(stack: ExitStack, *, day: Day, options: dict[str, Any]) -> Shop:
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
            return stack.enter_context(shop)
        except NotStarted as error:
            raise CommandError(str(error)) from error
