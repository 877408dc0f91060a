"""Settings of the test suite: TEST_DB=sqlite (default) or TEST_DB=postgres.

PostgreSQL is the server of DATABASE_URL, or an embedded one that lives as long as the test run: pytest imports this
module before it starts test processes of its own (``-n 2``), which find the server in the environment. Each of them has
a folder and a database to itself. Processes that tests start use the same settings; the fixture ``subprocess_env``
tells them where the test database is.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import django

from scripts.embedded_postgres import EmbeddedPostgres, database_settings

BASE_DIR = Path(__file__).resolve().parent.parent
#: No test cuts the power: what a server that is killed has committed is in the system's cache.
FORGETFUL = {"fsync": "off", "full_page_writes": "off"}


def _run_folder() -> Path:
    """Return the folder of this test process.

    Whoever creates that of the whole run removes it; children are given it.
    """
    if inherited := os.environ.get("TX_TEST_FOLDER"):
        folder = Path(inherited, os.environ.get("PYTEST_XDIST_WORKER", ""))
        folder.mkdir(exist_ok=True)
        return folder
    folder = Path(tempfile.mkdtemp(prefix="tx-test-"))
    folder.chmod(0o755)
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    os.environ["TX_TEST_FOLDER"] = str(folder)
    return folder


def _database() -> dict[str, Any]:
    name = os.environ.get("TX_TEST_DATABASE")  # set for processes that tests start
    match os.environ.setdefault("TEST_DB", "sqlite"):
        case "sqlite":
            return {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": name or str(FOLDER / "unused.sqlite3"),
                "TEST": {"NAME": str(FOLDER / "test.sqlite3")},
                "OPTIONS": {
                    "timeout": 20,
                    "transaction_mode": "IMMEDIATE",
                    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
                },
            }
        case "postgres":
            if not os.environ.get("DATABASE_URL"):
                os.environ["DATABASE_URL"] = EmbeddedPostgres(FOLDER / "pg", options=FORGETFUL).start().url()
            settings = database_settings(os.environ["DATABASE_URL"])
            return {**settings, "NAME": name or settings["NAME"], "TEST": {"NAME": "test_temporalex"}}
        case other:
            message = f"TEST_DB is sqlite or postgres, not {other!r}"
            raise ValueError(message)


FOLDER = _run_folder()
DATABASES = {"default": _database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

SECRET_KEY = "only-for-tests-and-not-a-secret-of-anybody-anywhere"
DEBUG = False
ALLOWED_HOSTS = ["*"]
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-us"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_q",
    "rest_framework",
    "temporalex_django",
    "tests.app",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

ROOT_URLCONF = "tests.urls"
STATIC_URL = "static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
# django-q2's monitor and the processes that tests start share it.
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.filebased.FileBasedCache",
        "LOCATION": str(FOLDER / "cache"),
    },
}

if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "rest_framework.authentication.SessionAuthentication",
        "rest_framework.authentication.BasicAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
}

Q_CLUSTER = {
    "name": "tests",
    "orm": "default",
    "broker_class": "temporalex_django.workers.q2.Broker",
    "workers": 2,
    "timeout": 60,
    "retry": 120,
    "poll": 0.2,
    "save_limit": 0,
    "catch_up": False,
}

TEMPORALEX: dict[str, object] = {}
if _cluster := os.environ.get("TX_TEST_CLUSTER"):  # set for processes that tests start
    TEMPORALEX["CLUSTER"] = json.loads(_cluster)
