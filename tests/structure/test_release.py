"""What strangers read before they install it, and what ``make release`` makes of the checkout."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tomllib
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from scripts.release import dependencies, missing, sbom
from temporalex_django.core.history.events import ENGINE_VERSION
from tests.structure.source import ROOT, files_of_the_repository, name

MADE = datetime(2026, 11, 29, tzinfo=UTC)
PLACEHOLDER = "example." + "invalid"


@pytest.fixture
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_addresses_stand_in_one_place(pyproject: dict[str, Any]) -> None:
    urls = pyproject["project"]["urls"]
    known = [path for path in files_of_the_repository() if path.suffix in {".md", ".toml", ".py", ".sh", ".txt"}]
    holding = {name(path) for path in known if PLACEHOLDER in path.read_text(encoding="utf-8")}

    assert set(urls) == {"Documentation", "Source", "Changelog", "Issues"}
    assert holding <= {"pyproject.toml"}


def test_a_placeholder_a_development_version_and_changes_stop_a_release(pyproject: dict[str, Any]) -> None:
    project = pyproject["project"]
    urls = dict.fromkeys(project["urls"], "https://docs.example.com/")
    ready = {"project": {**project, "urls": urls, "version": "0.1.0"}}
    with_placeholder = {**urls, "Source": f"https://code.{PLACEHOLDER}/"}

    assert list(missing(ready)) == []
    (placeholder,) = missing({"project": {**ready["project"], "urls": with_placeholder}})
    assert "Source is a placeholder" in placeholder
    (development,) = missing({"project": {**ready["project"], "version": "0.1.0.dev0"}})
    assert "0.1.0.dev0" in development
    assert list(missing(ready, " M README.md")) == ["there are changes that no commit has"]


def test_classifiers_name_the_versions_that_were_run(pyproject: dict[str, Any]) -> None:
    lanes = [re.fullmatch(r"py3(\d+)-django(\d)(\d)", file.stem) for file in (ROOT / "constraints").glob("*.txt")]
    run = {f"Programming Language :: Python :: 3.{lane[1]}" for lane in lanes if lane}
    run |= {f"Framework :: Django :: {lane[2]}.{lane[3]}" for lane in lanes if lane}
    page = (ROOT / "docs/explanation/versions.md").read_text(encoding="utf-8")
    for language, prefix in (("Python", "Programming Language :: Python"), ("Django", "Framework :: Django")):
        row = re.search(rf"^\| {language} \| [^|]+ \| ([^|]+) \|", page, flags=re.MULTILINE)
        assert row
        run |= {f"{prefix} :: {version}" for version in re.findall(r"\d+\.\d+", row[1])}
    classifiers = pyproject["project"]["classifiers"]

    assert {line for line in classifiers if re.search(r":: (Python|Django) :: \d+\.\d+$", line)} == run


def test_the_bill_of_materials_names_each_package_and_file(pyproject: dict[str, Any], tmp_path: Path) -> None:
    wheel = tmp_path / "temporalex_django.whl"
    wheel.write_bytes(b"wheel")

    bill = sbom(pyproject["project"], [wheel], MADE)

    names = {each["name"]: each["version"] for each in bill["components"]}
    assert names["asgiref"] == version("asgiref"), "an indirect one"
    assert names.keys() >= {"cronsim", "django", "django-filter", "djangorestframework", "django-q2", "msgspec"}
    assert "psycopg" not in names, "an extra"
    assert all("licenses" in each for each in bill["components"])
    (file,) = bill["metadata"]["component"]["externalReferences"]
    assert file["url"] == wheel.name
    assert len(file["hashes"][0]["content"]) == 64
    refs = {each["bom-ref"] for each in (bill["metadata"]["component"], *bill["components"])}
    assert {each["ref"] for each in bill["dependencies"]} == refs
    assert {ref for each in bill["dependencies"] for ref in each["dependsOn"]} < refs
    assert sbom(pyproject["project"], [wheel], MADE) == bill


def test_pages_for_strangers_name_no_address_that_nobody_reads() -> None:
    address = re.compile(r"[\w.+-]+@[\w-]+\.[\w.]+|https?://\S*\.(?:invalid|example)\b")
    pages = {page: (ROOT / page).read_text(encoding="utf-8") for page in ("SECURITY.md", "CODE_OF_CONDUCT.md")}

    assert {page: hits for page, text in pages.items() if (hits := address.findall(text))} == {}
    assert "[project.urls]" in pages["SECURITY.md"]


@pytest.fixture
def versions() -> str:
    return (ROOT / "docs" / "explanation" / "versions.md").read_text(encoding="utf-8")


def test_the_page_of_versions_names_what_the_lanes_run_and_the_engine_number(versions: str) -> None:
    pins = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "constraints").glob("*.txt"))
    table = versions.partition("## Databases")[0]
    row = {line.split(" | ")[0].strip("| "): line.split(" | ")[1] for line in table.splitlines() if "| " in line}
    run = {package: set(re.findall(rf"^{package}==(\S+)", pins, re.MULTILINE)) for package in ("django", "psycopg")}

    assert set(row["Django"].split(", ")) == run["django"]
    assert set(row["psycopg"].split(", ")) == run["psycopg"]
    assert f"and is {ENGINE_VERSION} today" in versions


def test_the_page_of_versions_lists_what_pip_installs(pyproject: dict[str, Any], versions: str) -> None:
    listed = versions.partition("## Installed packages")[2]
    rows = {each.lower() for line in re.findall(r"^\| ([^|]+) \|", listed, re.MULTILINE) for each in line.split(", ")}
    installed = set(dependencies(pyproject["project"])) - {"temporalex-django"}

    assert installed <= rows
    assert {f"`{extra}`" for extra in pyproject["project"]["optional-dependencies"]} <= rows


@pytest.mark.slow
def test_a_rehearsal_builds_equal_files_and_publishes_nothing() -> None:
    done = subprocess.run(["scripts/release.sh", "--dry"], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "Built twice and equal" in done.stdout
    assert "Nothing is published" in done.stdout
    made = {path.name: path.read_bytes() for path in (ROOT / "var" / "release").iterdir()}
    bill = json.loads(made.pop("sbom.cdx.json"))
    listed = bill["metadata"]["component"]["externalReferences"]
    assert {file["url"]: file["hashes"][0]["content"] for file in listed} == {
        name: hashlib.sha256(content).hexdigest() for name, content in made.items()
    }
    assert sorted(name.rpartition(".")[2] for name in made) == ["gz", "whl"]


def test_an_unknown_option_builds_nothing() -> None:
    done = subprocess.run(["scripts/release.sh", "--upload"], cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    assert "usage" in done.stderr
