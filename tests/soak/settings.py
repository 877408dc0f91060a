"""The settings of the tests with the apps of the example project, whose workflows the soak runs, too."""

from __future__ import annotations

import os

from tests.settings_of_processes import *  # noqa: F403

INSTALLED_APPS += ["example_project.shop", "example_project.invoices", "tests.soak.apps.SoakConfig"]  # noqa: F405
#: Two workers in a cluster, too: so that they come in each other's way.
TEMPORALEX = {**TEMPORALEX, "Q2_PUMPS": 2}  # noqa: F405

TASKS = {"default": {"BACKEND": "temporalex_django.tasks.DurableBackend"}}

SHOP_PROVIDER_URL = os.environ.get("SHOP_PROVIDER_URL", "http://127.0.0.1:9")
SHOP_ORDERS_PROVIDER_URL = os.environ.get("SHOP_ORDERS_PROVIDER_URL", "http://127.0.0.1:9")
SHOP_CARRIER_SECRET = INVOICES_BANK_SECRET = "only-for-tests"
