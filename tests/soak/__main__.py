"""See the package."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tests.soak

if TYPE_CHECKING:
    from scripts.embedded_postgres import EmbeddedPostgres
    from tests.soak.books import Books
    from tests.soak.course import Course

_LONGEST = 7200.0
#: Short, so that what a dead worker had is soon another's.
_TEMPORALEX = {"LEASE_SECONDS": 2.0, "DRAIN_SECONDS": 1.0, "LEAVE_SECONDS": 3.0}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=tests.soak.__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help=f"for how long (at most {_LONGEST:g})")
    parser.add_argument("--host", choices=["worker", "q2"], default="worker")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.seconds = min(options.seconds, _LONGEST)
    options.seed = random.randrange(10**6) if options.seed is None else options.seed
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.soak.settings"
    os.environ["TX_TEST_TEMPORALEX"] = json.dumps(_TEMPORALEX)
    with ExitStack() as stack:
        server = _server(stack)
        said = _soak(options, server, stack)
    text = json.dumps(said, indent=2, default=str)
    print(text)
    if options.json:
        options.json.write_text(text)
    return 1 if said["wrong"] else 0


def _soak(options: argparse.Namespace, server: EmbeddedPostgres | None, stack: ExitStack) -> dict[str, Any]:
    import django

    from tests.settings import FOLDER

    ledgers = [_provider(name, FOLDER, stack) for name in ("SHOP_PROVIDER_URL", "SHOP_ORDERS_PROVIDER_URL")]
    django.setup()
    from django.contrib.auth import get_user_model
    from django.db import connection

    from tests.soak.arms import FOLDER as ARMS
    from tests.soak.arms import Arms
    from tests.soak.books import Books, Ledgers
    from tests.soak.course import Course
    from tests.soak.desk import Desk
    from tests.soak.small import ACCOUNTS
    from tests.soak.tales import stock_the_shelves
    from tests.support.crash_walk import walking

    connection.creation.create_test_db(verbosity=0, autoclobber=True)
    for name in ACCOUNTS:
        get_user_model().objects.create(username=name)
    stock_the_shelves()
    arms = FOLDER / "arms"
    arms.mkdir()
    env = {**os.environ, "TX_TEST_DATABASE": str(connection.settings_dict["NAME"]), "PYTHONPATH": str(Path.cwd())}
    chance = random.Random(options.seed)
    desk = Desk(chance, FOLDER)
    course = Course(
        host=options.host, seconds=options.seconds, chance=chance, env={**env, ARMS: str(arms)}, arms=Arms(arms),
        desk=desk, walk=stack.enter_context(walking(env, FOLDER)), server=server,
    )  # fmt: skip
    try:
        course.run()
    finally:
        course.end_all()
    books = Books(desk, course.tales, Ledgers(ledgers, desk.effects))
    return _report(options, course, books, env)


def _provider(setting: str, folder: Path, stack: ExitStack) -> Path:
    """A payment provider in a thread of this process, its address in the environment; the file of its ledger."""
    from example_project.provider.ledger import Ledger
    from example_project.provider.server import Provider, Weather

    file = folder / f"{setting}.sqlite3"
    ledger = Ledger(file)
    stack.callback(ledger.close)
    provider = stack.enter_context(Provider(0, ledger=ledger, weather=Weather(late_seconds=2.5)))
    threading.Thread(target=provider.serve_forever, daemon=True).start()
    stack.callback(provider.shutdown)
    os.environ[setting] = provider.url
    return file


def _server(stack: ExitStack) -> EmbeddedPostgres | None:
    """A server that this process can stop and start again, unless there is one already."""
    if os.environ.setdefault("TEST_DB", "postgres") != "postgres" or os.environ.get("DATABASE_URL"):
        return None
    from scripts.embedded_postgres import EmbeddedPostgres

    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tx-soak-", ignore_cleanup_errors=True))
    Path(folder).chmod(0o755)
    server = EmbeddedPostgres(Path(folder, "pg"), options={"fsync": "off"}).start()
    stack.callback(server.stop)
    os.environ["DATABASE_URL"] = server.url()
    return server


def _report(options: argparse.Namespace, course: Course, books: Books, env: dict[str, str]) -> dict[str, Any]:
    from django.db import connection

    from temporalex_django.models import HistoryEvent, Instance
    from tests.soak.points import UNREACHABLE

    wrong = [*books.wrong(env)]
    if missing := [point for point in course.points if not course.hits[point]]:
        wrong.append(f"points that were never hit: {', '.join(missing)}")
    desk = course.desk
    return {
        "seconds": options.seconds,
        "host": options.host,
        "database": os.environ["TEST_DB"],
        "seed": options.seed,
        "runs": Instance.objects.count(),
        "events": HistoryEvent.objects.count(),
        "started": dict(sorted(course.started.items())),
        "updates": {name: len(getattr(desk, name)) for name in ("told", "answered", "refused", "failed")},
        "signals": sum(desk.signals.values()),
        "effects": {"at all": books.ledgers.effects.total(), "by their keys": len(books.ledgers.effects)},
        "switches": course.switches,
        "lost with their workers or connections, by policy": dict(books.lost_by_workflow()),
        "kills": dict(sorted(course.kills.items())),
        "points": {point: course.hits[point] for point in course.points},
        "tries": {point: tries for point, tries in course.tries.items() if tries > course.hits[point]},
        "unreachable": UNREACHABLE.get((course.host, connection.vendor), {}),
        "wrong": wrong,
    }


if __name__ == "__main__":
    sys.exit(main())
