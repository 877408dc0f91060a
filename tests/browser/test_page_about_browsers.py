"""The test on the how-to page about browsers passes: a live server, the worker of an environment, a browser."""

from __future__ import annotations

import pytest

from tests.conftest import CHROMIUM_ARGUMENTS
from tests.support.pages import passed


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_what_the_page_tests(chromium: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from playwright.sync_api import BrowserType

    launch = BrowserType.launch
    monkeypatch.setattr(
        BrowserType, "launch", lambda self: launch(self, executable_path=chromium, args=CHROMIUM_ARGUMENTS)
    )
    assert passed("testing-browser") == 1
