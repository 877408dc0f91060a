"""A canary for new versions of psycopg: it says which of the internals that the wire uses has changed.

Where it fails with a newer psycopg: correct ``db/dialects/libpq.py``, run ``test_postgres_wire.py`` and the tests of
``each_wire`` on the new version, then raise ``TESTED_VERSIONS`` and the bound in ``pyproject.toml``.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import connection
from psycopg import generators, pq, waiting
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result

from temporalex_django.db.dialects.base import get_dialect
from temporalex_django.db.dialects.libpq import TESTED_VERSIONS, LibpqWire, PlainWire, choose_wire
from tests.conftest import ROOT
from tests.support.wires import use_wire

pytestmark = pytest.mark.postgres
_CONNECTION = (
    "command_status", "consume_input", "enter_pipeline_mode", "exit_pipeline_mode", "finish", "flush", "get_result", "is_busy",
    "notifies", "notify_handler", "pipeline_sync", "send_prepare", "send_query_params", "send_query_prepared", "status",
    "transaction_status",
)  # fmt: skip
MOMENT = datetime(2026, 3, 1, 12, 30, 5, 678901, tzinfo=UTC)
#: By type: values of which each wire must make the same array.
VALUES: dict[str, list[Any]] = {
    "uuid": [UUID(int=0), UUID(int=2**128 - 1), None],
    "int4": [0, -1, 2**31 - 1, None],
    "int8": [0, -(2**63), 2**63 - 1, None],
    "float8": [0.5, 3, -1e300, None],
    "bool": [True, False, None],
    "bytea": [b"", b"\x00\xff", None],
    "text": ["", "ä", 'a,b"{}\\', None],
    "jsonb": ['{"a": [1, null]}', "null", None],
    "timestamptz": [MOMENT, MOMENT - timedelta(days=20_000), None],
}


def parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def internals() -> dict[str, bool]:
    """What ``LibpqWire`` uses of psycopg beyond its documentation, and whether it is as it was."""
    protocol = connection.connection.pgconn
    return {
        "Transformer(connection)": parameters(Transformer.__init__)[:2] == ["self", "context"] if pq.__impl__ == "python" else True,
        **{f"Transformer.{name}": hasattr(Transformer, name) for name in ("dump_sequence", "load_rows", "set_pgresult", "types", "formats")},
        "Connection.wait(generator)": parameters(psycopg.Connection.wait)[:2] == ["self", "gen"],
        "error_from_result(result, encoding)": parameters(error_from_result) == ["result", "encoding"],
        "waiting.Wait and Ready": {"R", "RW"} <= {*dir(waiting.Wait)} and {"R", "W"} <= {*dir(waiting.Ready)},
        "generators that yield Wait": hasattr(generators, "fetch_many"),
        **{f"pgconn.{name}": hasattr(protocol, name) for name in _CONNECTION if name != "command_status"},
    }  # fmt: skip


@pytest.mark.django_db
def test_the_internals_that_the_wire_uses_are_there() -> None:
    connection.ensure_connection()
    changed = [what for what, unchanged in internals().items() if not unchanged]

    assert changed == [], f"psycopg {psycopg.__version__} has changed what db/dialects/libpq.py uses"


def test_this_psycopg_was_tested() -> None:
    """Otherwise all statements go by plain psycopg, which is right and slower."""
    assert choose_wire(psycopg.__version__, pq.__impl__) is LibpqWire, (
        f"psycopg {psycopg.__version__} ({pq.__impl__}) is not one of {TESTED_VERSIONS}: see the top of this file"
    )


@pytest.mark.parametrize(
    ("version", "implementation", "wire"),
    [
        ("3.2.2", "c", LibpqWire),
        ("3.3.9", "binary", LibpqWire),
        ("3.3.0.dev1", "binary", LibpqWire),
        ("3.4.0", "binary", PlainWire),
        ("4.0", "c", PlainWire),
        ("3.1.20", "c", PlainWire),
        ("3.3.9", "python", PlainWire),
    ],
)
def test_the_wire_depends_on_version_and_implementation(version: str, implementation: str, wire: type) -> None:
    assert choose_wire(version, implementation) is wire


def test_the_bounds_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (requirement,) = project["optional-dependencies"]["postgres"]
    bounds = [tuple(map(int, found.split(".")[:2])) for found in re.findall(r"[<>]=?([\d.]+)", requirement)]

    assert tuple(bounds) == TESTED_VERSIONS


@pytest.mark.django_db
@pytest.mark.parametrize("kind", VALUES)
def test_both_wires_make_the_same_of_values(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = {}
    for name in ("libpq", "plain"):
        with monkeypatch.context() as patch:
            use_wire(name, patch)
            sql = get_dialect("default")
            array = sql.write_returning((("value", kind),), "select value from v", [[v] for v in VALUES[kind]], (kind,))
            member, parameter = sql.in_array([value for value in VALUES[kind] if value is not None], kind)
            found = sql.select(
                f"select count(*) from (values (%s::{kind})) x(y) where y {member}",
                [VALUES[kind][0], parameter],
                ("int8",),
            )
            read[name] = [value for (value,) in array], found

    assert read["libpq"] == read["plain"]
    assert read["plain"][1] == [(1,)]
    if kind != "jsonb":
        assert read["plain"][0] == VALUES[kind]
