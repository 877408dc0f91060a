"""The example's database: the one of DATABASE_URL, or a SQLite file without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


def private_folder(path: Path, *, ignored: bool = True) -> Path:
    """Create a folder for run-time files that git does not see, and return it."""
    path.mkdir(parents=True, exist_ok=True)
    marker = path / ".gitignore"
    if ignored and not marker.exists():
        marker.write_text("*\n")
    return path


def sqlite(file: Path | str) -> dict[str, Any]:
    """Return Django's settings for a SQLite file that web requests and workers share."""
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(file),
        # A reused connection keeps its page cache, and needs no WAL handshake for every request.
        "CONN_MAX_AGE": 600,
        "OPTIONS": {
            # A transaction that begins as a reader and writes later fails at once if another one wrote in between.
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }


def postgresql(url: str) -> dict[str, Any]:
    """Return Django's settings for postgresql://user:password@host:port/name?host=/folder/of/socket."""
    parts = urlsplit(url)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    # Not `parts.hostname`: it lowers the case, and a socket's folder may have capitals.
    host, _, port = parts.netloc.rpartition("@")[2].partition(":")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")) or "postgres",
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": options.pop("host", "") or unquote(host),
        "PORT": options.pop("port", "") or port,
        "CONN_MAX_AGE": 600,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": options,
    }


def database(url: str, *, default: Path) -> dict[str, Any]:
    """Return Django's settings for a DATABASE_URL; if it is empty, for the SQLite file ``default``.

    Raises ``ValueError`` for other schemes.
    """
    if not url:
        private_folder(default.parent)
        return sqlite(default)
    scheme = url.partition(":")[0]
    if scheme in {"postgres", "postgresql"}:
        return postgresql(url)
    if scheme == "sqlite":
        return sqlite(unquote(urlsplit(url).path))
    message = f"DATABASE_URL begins with {scheme!r}; the example supports postgresql:// and sqlite:///path"
    raise ValueError(message)
