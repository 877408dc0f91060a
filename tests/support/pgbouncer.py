"""A PgBouncer in transaction mode, in front of the lane's PostgreSQL."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from scripts.embedded_postgres import _unprivileged_account
from tests.support.waiting import wait_for

PORT = 6432
#: Fewer sessions of the server than clients, so that these share them.
SESSIONS = 4

CONFIGURATION = """\
[databases]
* = host={host} port={port}

[pgbouncer]
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 300
listen_addr =
listen_port = {listen}
unix_socket_dir = {folder}
unix_socket_mode = 0777
auth_type = trust
auth_file = {folder}/users
ignore_startup_parameters = extra_float_digits,options
logfile = {folder}/log
"""


def program() -> str | None:
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def pgbouncer(executable: str, server: dict[str, Any]) -> Iterator[dict[str, str]]:
    """What changes in the settings of a database whose clients go through it: HOST and PORT.

    It refuses to run as root, so its folder belongs to whom PostgreSQL runs as.
    """
    folder = Path(tempfile.mkdtemp(prefix="tx-pgb-"))
    account = _unprivileged_account()
    configuration = folder / "pgbouncer.ini"
    configuration.write_text(
        CONFIGURATION.format(
            host=server["HOST"] or "127.0.0.1",
            port=server["PORT"] or 5432,
            sessions=SESSIONS,
            listen=PORT,
            folder=folder,
        )
    )
    users = folder / "users"
    users.write_text(f'"{server["USER"]}" "{server["PASSWORD"]}"\n')
    options: dict[str, Any] = {}
    if account is not None:
        for path in (folder, configuration, users):
            os.chown(path, account.pw_uid, account.pw_gid)
        options = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    process = subprocess.Popen([executable, "-q", str(configuration)], cwd=folder, stdin=subprocess.DEVNULL, **options)
    try:
        wait_for(lambda: process.poll() is not None or _answers(folder), what="PgBouncer")
        assert process.poll() is None, (folder / "log").read_text()
        yield {"HOST": str(folder), "PORT": str(PORT)}
    finally:
        process.terminate()
        process.wait(20)
        shutil.rmtree(folder, ignore_errors=True)


def url(through: dict[str, str], server: dict[str, Any]) -> str:
    """The address in the form of DATABASE_URL."""
    return f"postgresql://{quote(server['USER'])}@{quote(through['HOST'], safe='')}:{through['PORT']}/postgres"


def _answers(folder: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(folder / f".s.PGSQL.{PORT}")) == 0
