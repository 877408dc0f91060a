"""Crash markers: what outlives a process, and that nothing else is touched whatever a row says."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from uuid import UUID

import pytest

from temporalex_django.liveness.crash_markers import MarkedWork, marker_folder, open_marker, read_marker, remove_marker

CHAIN, INNER = UUID(int=7), UUID(int=8)


@pytest.fixture
def marker(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    marker = open_marker("test-domain")
    yield marker
    marker.close()


def test_what_is_noted_can_be_read_by_others(marker):
    marker.record_chain(CHAIN)
    with marker.record_work("task", 12):
        left = read_marker(marker.path)
        assert left is not None
        assert set(left.marks) == {MarkedWork("chain", CHAIN), MarkedWork("task", 12)}
    marker.record_chain(INNER)
    assert read_marker(marker.path).marks == (MarkedWork("chain", INNER),)
    marker.record_chain(None)
    assert read_marker(marker.path).marks == (MarkedWork("chain", CHAIN),)
    marker.record_chain(None)
    assert read_marker(marker.path).marks == ()


def test_nothing_but_a_marker_of_this_user_is_read_or_deleted(marker, tmp_path):
    content = Path(marker.path).read_bytes()
    elsewhere, strange = tmp_path / "other.marker", marker_folder() / "strange.marker"
    elsewhere.write_bytes(content)
    strange.write_bytes(b"not one of ours")
    link = marker_folder() / "link.marker"
    link.symlink_to(elsewhere)
    for path in (elsewhere, strange, link, tmp_path / "missing.marker"):
        assert read_marker(str(path)) is None
        remove_marker(str(path))
    assert elsewhere.exists()
    assert strange.exists()
    assert link.is_symlink()
    remove_marker(marker.path)
    assert not Path(marker.path).exists()


_NO_ROOM = """
import resource, sys, tempfile
from uuid import UUID
from temporalex_django.liveness.crash_markers import marker_folder, open_marker
tempfile.tempdir = sys.argv[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
marker = open_marker("test-domain")
marker.record_chain(UUID(int=7))
for number in range(700):
    marker.record_work("task", number).__enter__()
print([marker.path, list(marker_folder().iterdir())])
"""


def test_where_a_marker_finds_no_room_its_process_goes_on_without_one(tmp_path):
    """A file with holes in a folder that is full would end it by SIGBUS at one of its marks."""
    done = subprocess.run(
        [sys.executable, "-c", _NO_ROOM, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (0, "['', []]"), done.stderr


def test_the_room_of_a_marker_is_taken_when_it_is_made(marker):
    found = Path(marker.path).stat()
    assert found.st_blocks * 512 >= found.st_size
