"""The command ``manage.py demo``: start the whole shop on this machine, play a day, and keep the shop running."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from example_project.database import private_folder
from example_project.replay.day import read_day
from example_project.replay.options import add_play_options, forwarded
from example_project.replay.play import Pace
from example_project.replay.processes import NotStarted, Restarts, Shop, TemporalServer
from example_project.replay.report import DIFFERENT
from example_project.shop.preparation import DEMO_DAY, DEMO_USER

if TYPE_CHECKING:
    from collections.abc import Callable

BACKENDS = ("tables", "temporal")


class Command(BaseCommand):
    """Start provider, web server and worker cluster, play the day, print the report, stay until Ctrl-C.

    This process uses no database: it chooses one and passes it to its children as DATABASE_URL.
    Environment: DATABASE_URL, or DEMO_DB=postgres for an embedded server, otherwise SQLite; DAY for another file;
    DEMO_BACKEND=temporal for carts and reports on a Temporal cluster, whose server it starts.
    """

    help = "Start the shop, play a day on it, print the report, and keep running."
    requires_system_checks = ()
    _code = 0  # of the play

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options of the demo and of its play."""
        parser.add_argument("--check", action="store_true", help="do not keep running; exit with the code of the play")
        parser.add_argument("--port", type=int, default=0, help="port of the web server (default: a free one)")
        add_play_options(parser, flow="both")
        parser.add_argument(
            "--day", type=Path, default=Path(os.environ.get("DAY") or DEMO_DAY), help="path of a basket_lines.csv"
        )
        parser.add_argument(
            "--backend",
            choices=BACKENDS,
            default=os.environ.get("DEMO_BACKEND") or BACKENDS[0],
            help="where carts and reports live: in the tables, or on a Temporal cluster; orders live in the tables",
        )
        parser.add_argument("--no-play", action="store_true", help="only start the shop")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the demo; SIGTERM ends it like Ctrl-C, and no process that it started remains."""
        signal.signal(signal.SIGTERM, _interrupt)
        day = options["day"].resolve()
        if not day.is_file():
            message = f"{day}: no such file"
            raise CommandError(message)
        if options["backend"] not in BACKENDS:  # a default is not checked by the parser
            message = f"DEMO_BACKEND must be temporal or tables, not {options['backend']}"
            raise CommandError(message)
        code = 0
        try:
            with ExitStack() as stack:
                code = self._run(stack, day=day, options=options)
        except NotStarted as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            code = 130 if options["check"] else 0
            self.stderr.write("Stopped.")
        if code:
            sys.exit(code)

    def _run(self, stack: ExitStack, *, day: Path, options: dict[str, Any]) -> int:
        on_cluster = options["backend"] == "temporal"
        var = self._folder(stack, check=options["check"], on_cluster=on_cluster)
        database = self._database(stack, var=var, keep=not options["check"])
        env = {"DATABASE_URL": database, "SHOP_VAR": str(var), "SHOP_CLUSTER": ""}
        temporal = None
        if on_cluster:
            temporal = stack.enter_context(TemporalServer(var=var))
            env["SHOP_CLUSTER"] = temporal.address
        password = secrets.token_urlsafe(9)
        self._manage("prepare_demo", "--day", str(day), env={**env, "DEMO_PASSWORD": password}, quiet=True)
        shop = Shop(
            root=settings.BASE_DIR,
            var=var,
            env=env,
            workers=options["workers"],
            port=options["port"],
            provider_options=("--seed", str(options["seed"])),
        )
        stack.enter_context(shop)
        self.stdout.write(self._welcome(shop, temporal, password=password))
        if not options["no_play"]:
            running = (
                "--base-url",
                shop.base_url,
                "--provider-url",
                shop.providers["cart"],
                "--orders-provider-url",
                shop.providers["graph"],
                "--cluster-pid",
                str(shop.cluster_pid),
            )
            restarts = self._restarts(temporal, day=day, options=options)
            self._code = self._manage("replay_day", str(day), *running, *forwarded(options), env=env, during=restarts)
            if restarts is not None:
                self.stdout.write(f"The Temporal server was killed and started again {restarts.made} times.")
                if restarts.made < restarts.wanted:
                    self._code = max(self._code, DIFFERENT)
            self.stdout.write(self._welcome(shop, temporal, password=password))
        if not options["check"]:
            self.stdout.write("The shop keeps running. Press Ctrl-C to stop it.")
            shop.wait()
        return self._code

    @staticmethod
    def _restarts(temporal: TemporalServer | None, *, day: Path, options: dict[str, Any]) -> Restarts | None:
        """Return the restarts of the server in the play: as many as workers are killed in each flow."""
        if temporal is None or not options["chaos"] or options["flow"] == "graph":  # orders live in the tables
            return None
        played = read_day(day)
        seconds = (played.ends - played.begins).total_seconds() / Pace(speed=options["speed"]).factor(played)
        return Restarts(temporal, wanted=options["chaos"], seconds=seconds)

    def _folder(self, stack: ExitStack, *, check: bool, on_cluster: bool) -> Path:
        """Return the folder of the demo's files; a check has its own, so that it does not disturb a running demo.

        That of a check stays if its play failed or could not be started, because it has the logs. A demo on a cluster
        has its own folder as well: without its server, nobody could reach the runs in its database.
        """
        var: Path = private_folder(settings.VAR_DIR)
        if not check:
            return private_folder(var / "temporal", ignored=False) if on_cluster else var
        fresh = Path(tempfile.mkdtemp(prefix="check-", dir=var))

        def clean_up(error: type[BaseException] | None, *_: object) -> None:
            is_failure = self._code == DIFFERENT if error is None else error is not KeyboardInterrupt
            if is_failure:
                self.stderr.write(f"The logs of the processes are in {fresh}")
            else:
                shutil.rmtree(fresh, ignore_errors=True)

        stack.push(clean_up)
        return fresh

    def _database(self, stack: ExitStack, *, var: Path, keep: bool) -> str:
        if url := os.environ.get("DATABASE_URL"):
            return url
        kind = os.environ.get("DEMO_DB", "")
        if kind in {"", "sqlite"}:
            return f"sqlite://{var / 'demo.sqlite3'}"
        if kind != "postgres":
            message = f"DEMO_DB must be postgres or sqlite, not {kind}"
            raise CommandError(message)
        from scripts.embedded_postgres import EmbeddedPostgres, EmbeddedPostgresError  # noqa: PLC0415 - an extra, by choice

        try:
            server = EmbeddedPostgres(var / "postgres").start()
        except EmbeddedPostgresError as error:
            raise CommandError(str(error)) from error
        stack.callback(server.stop if keep else server.remove)
        return server.url()

    def _manage(
        self, *command: str, env: dict[str, str], quiet: bool = False, during: Callable[[], None] | None = None
    ) -> int:
        """Run another command on the database of the demo, and return its exit code. It calls ``during`` meanwhile."""
        output = subprocess.PIPE if quiet else None
        process = subprocess.Popen(
            [sys.executable, "manage.py", *command],
            cwd=settings.BASE_DIR,
            env={**os.environ, "DEBUG": "0", **env},
            stdout=output,
            text=True,
            start_new_session=True,  # Ctrl-C goes to this process, which ends all others in order
        )
        try:
            while during is not None and process.poll() is None:
                during()
                time.sleep(0.2)
            said, _ = process.communicate()
        except BaseException:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
        if quiet and process.returncode:
            message = f"{command[0]} failed with code {process.returncode}"
            raise CommandError(message)
        if quiet and (ended := json.loads(said.splitlines()[-1])["ended"]):
            self.stdout.write(f"Ended {ended} baskets that an interrupted play had left open.")
        return process.returncode

    @staticmethod
    def _welcome(shop: Shop, temporal: TemporalServer | None, *, password: str) -> str:
        rows = [
            ("shop", f"{shop.base_url}/"),
            ("admin", f"{shop.base_url}/admin/"),
            ("REST", f"{shop.base_url}/api/instances/"),
            ("review", f"{shop.base_url}/review/"),
            ("providers", f"{shop.providers['cart']}/report, {shop.providers['graph']}/report"),
            *([("Temporal", f"{temporal.page}, {temporal.address} for clients")] if temporal else []),
            ("login", f"{DEMO_USER} / {password}"),
        ]
        return "\n".join(f"  {name:<9} {text}" for name, text in rows)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
