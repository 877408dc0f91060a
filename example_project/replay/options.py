"""Options that `replay_day` and `demo` share."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.core.management.base import CommandParser

PLAY_OPTIONS = ("flow", "speed", "chaos", "json", "confirm_within", "patience")


def positive(text: str) -> float:
    """Read a number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        message = f"{text} is not above 0"
        raise ArgumentTypeError(message)
    return value


def count(text: str) -> int:
    """Read a whole number of 0 or more."""
    value = int(text)
    if value < 0:
        message = f"{text} is below 0"
        raise ArgumentTypeError(message)
    return value


def positive_count(text: str) -> int:
    """Read a whole number of 1 or more."""
    value = count(text)
    if not value:
        message = "0 is not above 0"
        raise ArgumentTypeError(message)
    return value


def add_play_options(parser: CommandParser, *, flow: str) -> None:
    """Add the options of a play and of its workers; ``flow`` is the default of ``--flow``."""
    flows = ("cart", "graph", "both")
    parser.add_argument(
        "--flow", choices=flows, default=flow, help="play carts, orders (graphs), or one after the other"
    )
    parser.add_argument(
        "--workers", type=count, default=2, metavar="N", help="number of worker processes in the cluster"
    )
    parser.add_argument(
        "--speed",
        type=positive,
        help="seconds of the day per real second (default: carts arrive over 60 s, orders over 30 s)",
    )
    parser.add_argument(
        "--chaos",
        type=count,
        default=0,
        metavar="N",
        help="SIGKILL N busy workers in each flow; a demo on a cluster kills the Temporal server as often as well",
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the report to this file")
    parser.add_argument(
        "--confirm-within", type=positive, default=10.0, help="seconds until the timeout confirms an order"
    )
    parser.add_argument("--patience", type=positive, default=120.0, help="seconds until a customer gives up")
    parser.add_argument("--seed", type=int, default=0, help="seed of the payment provider")


def forwarded(options: dict[str, Any]) -> Iterator[str]:
    """Yield the options of the play as arguments for another command."""
    for name in PLAY_OPTIONS:
        if (value := options[name]) is not None:
            # The other command may run in another folder.
            text = str(value.resolve()) if isinstance(value, Path) else str(value)
            yield from (f"--{name.replace('_', '-')}", text)
