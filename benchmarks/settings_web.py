"""Django settings of the benchmarks over HTTP: those of the others, with the admin and the REST API."""

from __future__ import annotations

import os

from benchmarks import settings
from benchmarks.settings import *  # noqa: F403 - all settings but those below are the same

DATABASES["default"] |= {"CONN_MAX_AGE": int(os.environ.get("BENCH_CONN_MAX_AGE", "0"))}  # noqa: F405 - as above
if "BENCH_POOL" in os.environ:
    DATABASES["default"]["OPTIONS"] |= {"pool": {"min_size": 1, "max_size": 8}}  # noqa: F405
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = [
    *settings.INSTALLED_APPS,
    "django.contrib.admin",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
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
            ]
        },
    }
]
ROOT_URLCONF = "benchmarks.urls"
STATIC_URL = "static/"
WSGI_APPLICATION = "benchmarks.served.wsgi"
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "rest_framework.authentication.SessionAuthentication",
        "benchmarks.tenants.Somebody",
    ],
}
TEMPORALEX["ACCESS_POLICY"] = "benchmarks.tenants.Tenants"  # noqa: F405
