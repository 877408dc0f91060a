"""What ``make docs`` refuses: public names that nobody documented, and links that lead nowhere."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from temporalex_django import testing

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def conf() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_conf", ROOT / "docs" / "conf.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def everything(conf: ModuleType) -> set[str]:
    """The names on the pages, when all that is public is there."""
    return {name for name, _ in conf.public()}


def test_nothing_is_undocumented(conf: ModuleType, everything: set[str]) -> None:
    assert {"temporalex_django.Workflow", "temporalex_django.api.sleep"} <= everything
    assert conf.undocumented(everything) == []


def test_a_name_on_no_page_is_found(conf: ModuleType, everything: set[str]) -> None:
    found = conf.undocumented(everything - {"temporalex_django.testing.drain"})

    assert found == ["temporalex_django.testing.drain is public and on no page of the reference"]


def test_a_name_without_docstring_is_found(
    conf: ModuleType, everything: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Planted:
        """Has one."""

        def method(self) -> None:
            pass

        @property
        def value(self) -> None:
            """Has one."""

    def planted() -> None: ...

    monkeypatch.setattr(testing, "__all__", [*testing.__all__, "Planted", "planted"])
    monkeypatch.setattr(testing, "Planted", Planted, raising=False)
    monkeypatch.setattr(testing, "planted", planted, raising=False)
    Planted.method.__module__ = "temporalex_django.testing"

    found = conf.undocumented({*everything, "temporalex_django.testing.Planted", "temporalex_django.testing.planted"})

    assert [finding.rpartition(".")[2] for finding in found] == ["method has no docstring", "planted has no docstring"]


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("# Page\n\n[nowhere](missing.md)\n", "missing.md"),
        ("# Page\n\n[nowhere](#no-such-part)\n", "no-such-part"),
        ("# Page\n\n```{eval-rst}\n.. autofunction:: temporalex_django.nothing\n```\n", "nothing"),
        ("# Page\n\n```{eval-rst}\n:py:class:`temporalex_django.Nobody`\n```\n", "Nobody"),
    ],
)
def test_what_leads_nowhere_stops_the_build(tmp_path: Path, page: str, said: str) -> None:
    (tmp_path / "index.md").write_text(page, encoding="utf-8")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "-c", str(ROOT / "docs"), "-b", "dummy"]

    done = subprocess.run(
        [*command, str(tmp_path), str(tmp_path / "out")], capture_output=True, text=True, check=False, cwd=ROOT
    )

    assert done.returncode != 0
    assert said in done.stderr
