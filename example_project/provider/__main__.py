"""Command line of the provider: ``python -m example_project.provider --port 8901 --ledger var/ledger.sqlite3``."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from example_project.provider.ledger import Ledger
from example_project.provider.server import Provider, Weather


def share(text: str) -> float:
    """Read a number from 0 to 1."""
    value = float(text)
    if not 0 <= value <= 1:
        message = f"{text} is not between 0 and 1"
        raise argparse.ArgumentTypeError(message)
    return value


def main() -> int:
    """Serve until SIGTERM or Ctrl-C. The first line on standard output is the address."""
    parser = argparse.ArgumentParser(
        prog="python -m example_project.provider", description="A payment provider for the shop."
    )
    parser.add_argument("--port", type=int, default=8901, help="port to serve on; 0 picks a free one")
    parser.add_argument("--ledger", type=Path, required=True, help="SQLite file of the ledger")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--fail", type=share, default=0.05, help="share of calls that get 503, half of them after booking"
    )
    parser.add_argument("--late", type=share, default=0.02, help="share of calls that are booked and answered late")
    parser.add_argument("--late-seconds", type=float, default=3.0, help="seconds by which they are late")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    options.ledger.parent.mkdir(parents=True, exist_ok=True)
    weather = Weather(seed=options.seed, fail=options.fail, late=options.late, late_seconds=options.late_seconds)
    ledger = Ledger(options.ledger)
    with Provider(options.port, ledger=ledger, weather=weather) as provider:
        sys.stdout.write(f"{provider.url}\n")
        sys.stdout.flush()
        try:
            provider.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            return 0
        finally:
            provider.closing.set()
    return 0


if __name__ == "__main__":
    sys.exit(main())
