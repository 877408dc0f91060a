"""What is committed works on every machine and in every installation."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.structure.source import PACKAGE, ROOT, files_of_the_repository, name

SHIPPED_WITHOUT_PY = [".html", ".js", ".css", ".svg", ".txt", ".typed", ".mo"]
# Written in pieces, so that this file does not contain what it looks for.
MACHINE_PATHS = re.compile(rb"(?<![\w.:/-])/" + rb"(?:work|root|Users|home/(?!\.\.\.)\w+)/" + rb"[\w.]")
REGISTRY_HOSTS = re.compile(
    rb"pypi\." + rb"org/simple|files\.python" + rb"hosted|deb\.debian\." + rb"org|registry\.npmjs\." + rb"org"
)


def test_no_file_names_a_place_on_one_machine() -> None:
    found = {}
    for path in files_of_the_repository():
        content = path.read_bytes()
        if path.suffix not in {".csv", ".png", ".woff2"} and (
            hit := MACHINE_PATHS.search(content) or REGISTRY_HOSTS.search(content)
        ):
            found[name(path)] = hit.group()

    assert found == {}


def test_there_is_one_migration_until_the_first_release() -> None:
    migrations = {path.name for path in (PACKAGE / "migrations").glob("*.py")}

    assert migrations == {"__init__.py", "0001_initial.py"}


def test_scripts_can_be_run() -> None:
    scripts = [ROOT / ".ci" / "run", *(ROOT / "scripts").glob("*.sh")]

    assert [name(path) for path in scripts if not path.stat().st_mode & 0o100] == []


@pytest.mark.slow
def test_the_wheel_holds_everything_the_package_needs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        contained = set(archive.namelist())

    needed = {
        name(path)
        for path in files_of_the_repository()
        if path.is_relative_to(PACKAGE) and (path.suffix == ".py" or path.suffix in SHIPPED_WITHOUT_PY)
    }
    assert "temporalex_django/py.typed" in needed
    assert needed - contained == set()
    top_level = {entry.split("/")[0] for entry in contained}
    assert {entry for entry in top_level if not entry.endswith(".dist-info")} == {"temporalex_django"}


def _pins(file: str) -> dict[str, tuple[str, str]]:
    """The version of each package, and the lines with its hashes."""
    text = (ROOT / "constraints" / file).read_text()
    entries = re.split(r"\n(?=\S)", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    found = {}
    for entry in entries:
        pin, _, hashes = entry.partition(" ")
        package, _, version = pin.partition("==")
        found[package.lower()] = (version, hashes)
    return found


@pytest.mark.parametrize("file", ["py311-django52.txt", "py313-django61.txt"])
def test_each_file_that_is_installed_is_known_by_a_hash(file: str) -> None:
    pins = _pins(file)
    assert len(pins) > 100
    for package, (version, hashes) in pins.items():
        assert version, package
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", hashes), package


def test_the_lower_bounds_that_are_promised_are_the_versions_that_are_run() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = _pins("py311-django52.txt")
    for requirement in [*project["dependencies"], *project["optional-dependencies"]["postgres"]]:
        package, _, bounds = requirement.partition(">=")
        lowest = bounds.partition(",")[0]
        version = pins[package.partition("[")[0]][0]
        assert re.fullmatch(rf"{re.escape(lowest)}(\.0)*", version), requirement
