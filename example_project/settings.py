"""Settings of the example project. Everything that differs between machines comes from the environment."""

from __future__ import annotations

import os
import secrets
from hashlib import sha256
from pathlib import Path

import django

from example_project.database import database, private_folder

BASE_DIR = Path(__file__).resolve().parent.parent
# Everything that a run of the example leaves behind: database, logs, ledger, key.
VAR_DIR = Path(os.environ.get("SHOP_VAR") or BASE_DIR / "var")


def _secret_key() -> str:
    """Return the key from the environment, or one that is drawn once and kept beside the database."""
    if key := os.environ.get("SECRET_KEY"):
        return key
    file = private_folder(VAR_DIR) / "secret-key"
    draft = VAR_DIR / f"secret-key.{os.getpid()}"
    draft.touch(mode=0o600)
    draft.write_text(secrets.token_urlsafe(48))
    try:
        # Several processes may start at once. Exactly one of them creates the link, and a link is never half written.
        os.link(draft, file)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    return file.read_text()


DEBUG = os.environ.get("DEBUG", "1") == "1"
SECRET_KEY = _secret_key()
ALLOWED_HOSTS = os.environ.get("ALLOWED_HOSTS", "127.0.0.1,localhost,[::1],testserver").split(",")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "rest_framework.authtoken",
    "django_q",
    "temporalex_django",
    "example_project.shop",
    "example_project.invoices",
    "example_project.billing",
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

if django.VERSION >= (6, 0):
    MIDDLEWARE.insert(1, "django.middleware.csp.ContentSecurityPolicyMiddleware")
    # No page of the shop, the admin or the package has inline scripts or styles.
    SECURE_CSP = {
        "default-src": ["'none'"],
        "script-src": ["'self'"],
        "style-src": ["'self'"],
        "img-src": ["'self'", "data:"],
        "font-src": ["'self'"],
        "connect-src": ["'self'"],
        "form-action": ["'self'"],
        "base-uri": ["'none'"],
        "frame-ancestors": ["'none'"],
    }

ROOT_URLCONF = "example_project.urls"
WSGI_APPLICATION = "example_project.wsgi.application"
ASGI_APPLICATION = "example_project.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
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

DATABASES = {"default": database(os.environ.get("DATABASE_URL", ""), default=VAR_DIR / "demo.sqlite3")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# The cluster's processes and the web server share one cache, which django-q2's monitor needs.
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.filebased.FileBasedCache",
        "LOCATION": str(VAR_DIR / "cache"),
    },
}

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("UserAttributeSimilarityValidator", "MinimumLengthValidator", "CommonPasswordValidator")
]
# Mails go to the terminal; tests find them in django.core.mail.outbox.
MAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": MAIL_BACKEND}}
else:
    EMAIL_BACKEND = MAIL_BACKEND

LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "shop:products"
LOGOUT_REDIRECT_URL = "shop:products"

LANGUAGE_CODE = "en-gb"
TIME_ZONE = "UTC"
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = VAR_DIR / "static"

SESSION_COOKIE_HTTPONLY = True
CSRF_COOKIE_HTTPONLY = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "rest_framework.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
}

# One cluster for both: the project's own django-q2 tasks, and the workers that advance workflows.
Q_CLUSTER = {
    "name": "shop",
    "orm": "default",
    "broker_class": "temporalex_django.workers.q2.Broker",
    "workers": int(os.environ.get("SHOP_WORKERS", "2")),
    "timeout": 60,
    "retry": 120,
    "poll": 1,
    "save_limit": 0,
    "max_attempts": 3,
    "catch_up": False,
    "log_level": "INFO",
}

# A bug in a workflow blocks its run until the code is corrected: orders live for weeks and must not be lost.
TEMPORALEX: dict[str, object] = {"UNEXPECTED_ERROR": "block"}
# All processes of the shop share the folder of their metrics. A scraper needs the token.
if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
    TEMPORALEX["METRICS"] = ["prometheus"]
TEMPORALEX["METRICS_TOKEN"] = sha256(f"metrics:{SECRET_KEY}".encode()).hexdigest()

# Background tasks run on the same workers as the workflows.
TASKS = {"default": {"BACKEND": "temporalex_django.tasks.DurableBackend"}}

# With the address of a Temporal cluster, new runs live there, except those of classes that name the tables.
if cluster := os.environ.get("SHOP_CLUSTER"):
    TEMPORALEX |= {"BACKEND": "temporal", "CLUSTER": {"ADDRESS": cluster, "PREFIX": "shop:"}}

# The payment provider is a separate process: `python -m example_project.provider`. Carts and orders have an account
# each.
SHOP_PROVIDER_URL = os.environ.get("SHOP_PROVIDER_URL", "http://127.0.0.1:8901")
SHOP_ORDERS_PROVIDER_URL = os.environ.get("SHOP_ORDERS_PROVIDER_URL", "http://127.0.0.1:8902")
# The carrier signs its reports with this secret.
SHOP_CARRIER_SECRET = os.environ.get("SHOP_CARRIER_SECRET") or sha256(f"carrier:{SECRET_KEY}".encode()).hexdigest()
# The bank signs its reports of payments with this one.
INVOICES_BANK_SECRET = os.environ.get("INVOICES_BANK_SECRET") or sha256(f"bank:{SECRET_KEY}".encode()).hexdigest()
# The payment provider of the subscriptions signs its events with this one.
BILLING_PROVIDER_SECRET = (
    os.environ.get("BILLING_PROVIDER_SECRET") or sha256(f"billing:{SECRET_KEY}".encode()).hexdigest()
)

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname} {process} {name} {message}", "style": "{"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": os.environ.get("LOG_LEVEL", "INFO")},
    "loggers": {
        # A line for each request is too much while a day is played; errors are still logged.
        "django.server": {"handlers": ["stderr"], "level": "INFO" if DEBUG else "ERROR", "propagate": False},
        # Refusals (422, 409) are answers, not incidents.
        "django.request": {"level": "ERROR"},
    },
}
