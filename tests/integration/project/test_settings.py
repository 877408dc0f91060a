"""Wrong settings stop the process: a misspelt name must never mean that payloads are stored as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings

from temporalex_django import WorkflowHandle, conf, errors
from temporalex_django.models import Instance
from tests.conftest import ROOT
from tests.support.client_flows import Basket

SECRET = "4111 1111 1111 1111"


class Turned:
    """A codec that "encrypts": what is stored does not hold the text."""

    def encode(self, value: Any) -> bytes:
        import json

        return bytes(byte ^ 0x55 for byte in json.dumps(value).encode())

    def decode(self, data: bytes) -> Any:
        import json

        return json.loads(bytes(byte ^ 0x55 for byte in data))


class Unwilling(Turned):
    """Raises what codecs raise."""

    def encode(self, value: Any) -> bytes:
        raise RuntimeError(f"no key for {value}")


CODEC = f"{__name__}.Turned"
WRONG: list[tuple[Any, str]] = [
    ({"PAYLOAD_CODECS": CODEC}, "did you mean 'PAYLOAD_CODEC'?"),
    ({"payload_codec": CODEC}, "did you mean 'PAYLOAD_CODEC'?"),
    ({"PAYLOAD_CODEC": Turned}, f"Write the path of the class: '{CODEC}'."),
    ({"PAYLOAD_CODEC": Turned()}, f"Write the path of the class: '{CODEC}'."),
    ({"PAYLOAD_CODEC": "no.such.Codec"}, "cannot be used: ModuleNotFoundError"),
    ({"PAYLOAD_CODEC": f"{__name__}.Missing"}, "cannot be used: AttributeError"),
    ({"PAYLOAD_CODEC": CODEC, "CACHE_SIZE": "many"}, "a whole number"),
    ({"PAYLOAD_CODEC": CODEC, "UPDATE_LOCK_WAIT": float("inf")}, "a number"),
    ({"LEASE_SECONDS": 0}, "a number above 0"),
    ({"HEALTH_SECONDS": 0.0}, "a number above 0"),
    ({"CLUSTER": {"ADDRESS": "localhost:7233"}, "WORKER_CONNECTIONS": 9}, "must be at least 10 with a CLUSTER"),
    ([("PAYLOAD_CODEC", CODEC)], "must be a dict"),
]


@pytest.mark.django_db
@pytest.mark.parametrize(("setting", "says"), WRONG)
def test_nothing_is_stored_under_a_wrong_setting(setting: Any, says: str) -> None:
    with override_settings(TEMPORALEX=setting), pytest.raises(errors.NotConfigured) as refused:
        Basket.start({"card": SECRET}, id="b-1")

    assert says in str(refused.value)
    assert Instance.objects.count() == 0


@pytest.mark.django_db
def test_messages_are_refused_too() -> None:
    handle = Basket.start(id="b-1")

    with override_settings(TEMPORALEX={"PAYLOAD_CODECS": CODEC}):
        for call in (
            lambda: handle.signal("note", SECRET),
            lambda: handle.update("add", 1),
            lambda: handle.query("items"),
            handle.history,
        ):
            with pytest.raises(errors.NotConfigured):
                call()


@pytest.mark.django_db
def test_the_codec_that_is_named_is_used() -> None:
    with override_settings(TEMPORALEX={"PAYLOAD_CODEC": CODEC}):
        run = WorkflowHandle(Basket.start({"card": SECRET}, id="b-1").id)
        assert run.describe().status == "pending"
        assert Instance.objects.get().input == {"card": SECRET}
    with connection.cursor() as cursor:
        cursor.execute("select args from temporalex_instance")
        assert SECRET.encode() not in bytes(cursor.fetchone()[0])


@pytest.mark.django_db
def test_what_a_codec_raises_is_a_payload_error_without_the_payload() -> None:
    with (
        override_settings(TEMPORALEX={"PAYLOAD_CODEC": f"{__name__}.Unwilling"}),
        pytest.raises(errors.PayloadError) as refused,
    ):
        Basket.start({"card": SECRET}, id="b-1")

    assert "RuntimeError" in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_dict_under_a_misspelt_name_is_meant_for_ours() -> None:
    from django.conf import settings

    with override_settings(TEMPORALEX_={"PAYLOAD_CODEC": CODEC}):
        del settings.TEMPORALEX
        assert [text for text in conf.problems() if "did you mean 'TEMPORALEX'?" in text] != []
    with override_settings(TEMPORAL={"HOST": "localhost"}):
        del settings.TEMPORALEX
        assert conf.problems() == []


def python(*arguments: str, setting: str) -> subprocess.CompletedProcess[str]:
    """A process with these settings (the source of a dict)."""
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings_of_processes", "TX_TEST_TEMPORALEX": setting}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(("setting", "says"), [('{"PAYLOAD_CODECS": "x.Y"}', "'PAYLOAD_CODEC'"), ("[1]", "a dict")])
def test_no_process_starts(setting: str, says: str) -> None:
    web = python("-c", "import django.core.wsgi as wsgi; wsgi.get_wsgi_application()", setting=setting)

    assert web.returncode == 1
    last = web.stderr.strip().splitlines()[-1]
    assert last.startswith("temporalex_django.errors.NotConfigured: TEMPORALEX")
    assert says in last


def test_the_checks_list_all_that_is_wrong() -> None:
    done = python("manage.py", "check", setting='{"PAYLOAD_CODECS": "x.Y", "CACHE_SIZE": "many"}')

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.count("temporalex_django.E001") == 2
