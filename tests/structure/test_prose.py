"""``make lint`` checks prose; this shows that the check finds what it is for."""

from __future__ import annotations

import pytest

from scripts.prose import LONGEST, findings

LONG = " ".join(["word"] * (LONGEST + 1))


@pytest.mark.parametrize(
    ("name", "source", "finding"),
    [
        ("a.py", '"""What it does."""', "begins with 'What'"),
        ("a.py", 'def f():\n    """Of a run."""', "a.py:2"),
        ("a.py", '"""Return it."""\n# he waits', "'he'"),
        ("a.py", f'"""Return it.\n\n{LONG}.\n"""', f"{LONGEST + 1} words"),
        ("a.md", "Whoever reads this.", "'Whoever'"),
        ("a.html", "<p>{% if a %}It is a lone task.{% endif %}</p>", "'lone task'"),
    ],
)
def test_a_finding_names_its_place(name: str, source: str, finding: str) -> None:
    (found,) = findings(name, source)

    assert finding in found


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a.py", '"""Return what is due."""\n# What follows is ordered: see decision 9.'),
        ("a.md", f"Code is no prose: `he` ```{LONG}```. [A link](whoever.md) is.\n\n| {'word | ' * (LONGEST + 1)}"),
        ("a.html", "<p>You</p>" * (LONGEST + 1)),
    ],
)
def test_code_tables_and_comments_are_not_sentences(name: str, source: str) -> None:
    assert [*findings(name, source)] == []
