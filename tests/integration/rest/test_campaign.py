"""No request breaks the REST face, whatever is sent to it in whatever order."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import schemathesis
from django.apps import apps
from django.contrib.auth import get_user_model
from django.core.wsgi import get_wsgi_application
from django.db import connection, transaction
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error

from temporalex_django.operations.bulk import StartBulk
from tests.integration.rest.test_openapi import described
from tests.support.campaign import REPEATED, scaled
from tests.support.client_flows import Basket, drain

BASIC = "Basic " + base64.b64encode(b"ann:secret").decode()

pytestmark = [pytest.mark.slow, pytest.mark.once]


@pytest.fixture
def ann(transactional_db: None) -> Any:
    return get_user_model().objects.create_superuser("ann", password="secret")


def begun() -> dict[str, Any]:
    """Two runs and a bulk job, and nothing else in the tables; what addresses name of them."""
    with transaction.atomic(), connection.cursor() as cursor:
        for model in apps.get_app_config("temporalex_django").get_models():
            cursor.execute(f"delete from {model._meta.db_table}")
    runs = [Basket.start(id=f"b-{n}") for n in range(2)]
    drain()
    job = StartBulk("signal", runs=[runs[1].run_id], signal="note").execute()
    return {"id": runs[0].id, "job": str(job.pk), "name": "add", "seq": 1}


def test_no_request_that_fits_the_description_or_does_not_breaks_the_server(
    ann: Any, record_property: Callable[[str, object], None]
) -> None:
    """Stateful: what an answer names is asked for next."""
    found = described()
    found["paths"] = {f"/api{path}": methods for path, methods in found["paths"].items()}
    schema = schemathesis.openapi.from_dict(found)
    schema.app = get_wsgi_application()
    seen: Counter[int] = Counter()

    class Campaign(schema.as_state_machine()):  # type: ignore[misc] # made of the description
        def setup(self) -> None:
            """All examples begin alike: what answers say decides what is asked next, and must be the same again."""
            self.there = begun()

        def before_call(self, case: Any) -> None:
            case.headers = {**(case.headers or {}), "Authorization": BASIC}
            if case.query and "wait" in case.query:
                case.query["wait"] = 0
            for name, value in (case.path_parameters or {}).items():
                if name in self.there and len(str(value)) % 3:
                    case.path_parameters[name] = self.there[name]

        def validate_response(self, response: Any, case: Any, *args: Any, **kwargs: Any) -> None:
            seen[response.status_code] += 1
            if response.status_code != 503:
                case.validate_response(response, checks=[not_a_server_error])

    Campaign.TestCase.settings = settings(
        max_examples=scaled(20),
        stateful_step_count=6,
        deadline=None,
        derandomize=REPEATED,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    Campaign.run(settings=Campaign.TestCase.settings)

    record_property("answers", dict(sorted(seen.items())))
    assert REPEATED or seen[200] + seen[201]  # of so few requests perhaps none fits
    assert seen[400] + seen[404]
