"""Parts of ``scripts/release.sh``: what a commit lacks before a release, and the SBOM of what a release depends on.

    python scripts/release.py missing
    python scripts/release.py sbom dist/*.whl dist/*.tar.gz

The SBOM is CycloneDX in JSON. It lists what ``pip install temporalex-django`` brings along, without extras, in the
versions of this environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import distribution, metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent


def missing(pyproject: dict[str, Any], uncommitted: str = "") -> Iterator[str]:
    """Yield what a person has to do before a release. ``uncommitted`` is the output of ``git status``."""
    project = pyproject["project"]
    for name, url in project["urls"].items():
        if (urlsplit(url).hostname or "").endswith(".invalid"):
            yield f"[project.urls] {name} is a placeholder: {url}"
    if ".dev" in project["version"]:
        yield f"version {project['version']} is a development version"
    if uncommitted:
        yield "there are changes that no commit has"


def dependencies(project: dict[str, Any]) -> dict[str, list[str]]:
    """Return what the project depends on, directly or not, and for each package what it depends on itself."""
    found: dict[str, list[str]] = {}
    todo: list[tuple[str, list[str]]] = [(canonicalize_name(project["name"]), project["dependencies"])]
    while todo:
        name, texts = todo.pop()
        requirements = [Requirement(text) for text in texts]
        needed = [item for item in requirements if item.marker is None or item.marker.evaluate({"extra": ""})]
        found[name] = sorted({canonicalize_name(item.name) for item in needed})
        todo += [(each, distribution(each).requires or []) for each in found[name] if each not in found]
    return found


def sbom(project: dict[str, Any], files: list[Path], made: datetime) -> dict[str, Any]:
    """Return the bill of materials of a release with these files. The same input gives the same bill."""
    graph = dependencies(project)
    root = canonicalize_name(project["name"])
    refs = {
        name: f"pkg:pypi/{name}@{project['version'] if name == root else metadata(name)['Version']}" for name in graph
    }
    main = {
        "type": "library",
        "bom-ref": refs[root],
        "name": root,
        "version": project["version"],
        "purl": refs[root],
        "licenses": [{"expression": project["license"]}],
        "externalReferences": [
            {
                "type": "distribution",
                "url": file.name,
                "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(file.read_bytes()).hexdigest()}],
            }
            for file in files
        ],
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([main, graph, refs], sort_keys=True))}",
        "version": 1,
        "metadata": {"timestamp": made.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": main},
        "components": [component(name, refs[name]) for name in sorted(graph) if name != root],
        "dependencies": [
            {"ref": refs[name], "dependsOn": [refs[each] for each in graph[name]]} for name in sorted(graph)
        ],
    }


def component(name: str, ref: str) -> dict[str, Any]:
    """Return the entry of an installed package."""
    about = metadata(name)
    entry: dict[str, Any] = {"type": "library", "bom-ref": ref, "name": name, "version": about["Version"], "purl": ref}
    names = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier", []) if line.startswith("License ::")]
    if "License-Expression" in about:
        entry["licenses"] = [{"expression": about["License-Expression"]}]
    elif names := names or [text for text in about.get_all("License", []) if "\n" not in text]:
        entry["licenses"] = [{"license": {"name": text}} for text in names]
    return entry


def main(command: str, *files: str) -> None:
    """Print what is missing, a line for each, or the SBOM."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if command == "missing":
        status = ["git", "status", "--porcelain"]
        uncommitted = subprocess.run(status, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for line in missing(pyproject, uncommitted):
            print(f"  - {line}")
    else:
        made = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC)
        print(json.dumps(sbom(pyproject["project"], [Path(file) for file in files], made), indent=2))


if __name__ == "__main__":
    main(*sys.argv[1:])
