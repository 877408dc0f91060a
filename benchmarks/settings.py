"""Django settings of the benchmarks; the database is the one of BENCH_DATABASE_URL."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from typing import Any

from scripts.embedded_postgres import database_settings

_url = os.environ["BENCH_DATABASE_URL"]
_sqlite: dict[str, Any] = {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": _url.removeprefix("sqlite:///"),
    "OPTIONS": {
        "timeout": 20,
        "transaction_mode": "IMMEDIATE",
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    },
}
SECRET_KEY = "benchmarks"
USE_TZ = True
DATABASES = {"default": _sqlite if _url.startswith("sqlite:") else database_settings(_url)}
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django_q",
    "temporalex_django",
    "benchmarks.app",
]
TASKS = {"default": {"BACKEND": "temporalex_django.tasks.DurableBackend"}}
if find_spec("django_tasks_db"):  # an optional peer
    INSTALLED_APPS.append("django_tasks_db")
    TASKS["peer"] = {"BACKEND": "django_tasks_db.DatabaseBackend"}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
Q_CLUSTER = {
    "orm": "default",
    "workers": 1,
    "timeout": 60,
    "retry": 120,
    "poll": 0.1,
    "bulk": 50,  # tasks that are fetched at a time
    "save_limit": 0,
    "log_level": "ERROR",
}
if "BENCH_Q2_BROKER" in os.environ:
    Q_CLUSTER["broker_class"] = os.environ["BENCH_Q2_BROKER"]
#: Settings of a benchmark for the workers that it starts.
TEMPORALEX: dict[str, object] = json.loads(os.environ.get("BENCH_TEMPORALEX", "{}"))
