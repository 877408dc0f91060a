"""The tests on the how-to pages about tests pass: as Django's runner would run them, and as pytest would."""

from __future__ import annotations

import django
import pytest

from tests.support.pages import passed

#: How many tests there are on a page.
PAGES = {
    "approvals": 2,
    "order-page": 4,
    "payments": 2,
    "reminders": 2,
    "testing-application": 5,
    "testing-permissions": 3,
    "testing-webhooks": 3,
}


@pytest.mark.django_db(transaction=True)  # they have transactions of their own
def test_what_the_pages_test() -> None:
    assert {page: passed(page) for page in PAGES} == PAGES


@pytest.mark.skipif(django.VERSION < (6, 0), reason="the page imports django.tasks")
@pytest.mark.django_db(transaction=True)
def test_what_the_page_about_tasks_tests() -> None:
    assert passed("django-tasks") == 2
