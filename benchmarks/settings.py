"""Django settings of the benchmarks: the server of BENCH_DATABASE_URL."""

from __future__ import annotations

import os

from scripts.embedded_postgres import database_settings

SECRET_KEY = "benchmarks"
USE_TZ = True
DATABASES = {"default": database_settings(os.environ["BENCH_DATABASE_URL"])}
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django_q",
    "temporalex_django",
    "benchmarks.app",
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
Q_CLUSTER = {
    "orm": "default",
    "workers": 1,
    "timeout": 60,
    "retry": 120,
    "poll": 0.1,
    "save_limit": 0,
    "log_level": "ERROR",
}
TEMPORALEX: dict[str, object] = {}
