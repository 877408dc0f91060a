"""The generated reference pages say what the code says."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import fields
from pathlib import Path

import pytest

from temporalex_django.authoring.activity import ActivityOptions

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
assert _spec is not None
assert _spec.loader is not None
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)


@pytest.mark.parametrize("name", sorted(reference.PAGES))
def test_generated_page_is_up_to_date(name: str) -> None:
    stored = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")

    assert stored == reference.PAGES[name](), "run: .venv/bin/python scripts/reference.py"


def test_every_error_has_a_code_of_its_own_and_a_next_step() -> None:
    from temporalex_django import errors

    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.TemporalexError)]

    assert len({c.code for c in classes}) == len(classes)
    for cls in classes[1:]:
        assert "next_step" in vars(cls), f"{cls.__name__} has no next step"
        assert "a message" in cls("a message").message
        assert str(cls())


def test_each_option_of_an_activity_has_a_row_with_its_unit_and_default() -> None:
    page = (ROOT / "docs" / "reference" / "activities.md").read_text(encoding="utf-8")
    rows = {row.split("`")[1] for row in page.splitlines() if row.startswith("| `")}
    assert rows == {"name", "aliases", "label", *(field.name for field in fields(ActivityOptions))}


@pytest.mark.parametrize(
    "said",
    [
        "leaf: nothing follows …: every path must end with Done",  # of definitions
        "No live workers: runs cannot make progress.",  # of a run, or all of them
        "no activity with that number is open: it has ended, or was cancelled",  # to an operator
        "Enter app.model:key, such as shop.order:42.",  # of a form or a filter
        "Give filters, run ids, or --all.",  # of a command
        "a stored string is not known to be safe HTML: annotate str instead of …, and mark it safe where you know that it is",
        "could not release the work of this worker before its lease expires: …",  # in the log
    ],
)
def test_what_is_no_message_of_an_error_is_found_too(said: str) -> None:
    assert f"- `{said}`\n" in (ROOT / "docs" / "reference" / "messages.md").read_text(encoding="utf-8")


def test_every_command_that_a_text_names_exists() -> None:
    """The next step of a finding once named ``temporalex show``, which nobody can run."""
    known = set(re.findall(r"^## ([\w-]+)$", reference.commands_page(), re.MULTILINE))
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "temporalex_django").rglob("*.py")]
    names = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in [*files, *(ROOT / "temporalex_django").rglob("*.html")]
        for name in re.findall(r"manage\.py temporalex ([a-z][\w-]*)", path.read_text(encoding="utf-8"))
    }
    assert len(names) > len(known) > 20
    assert not {place for place in names if place[1] not in known}
