"""Slots: what outlives a process, and that nothing else is touched whatever a row says."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from uuid import UUID

import pytest

from temporalex_django.runtime.slots import Marked, folder, left_in, open_slot, remove_slot

CHAIN, INNER = UUID(int=7), UUID(int=8)


@pytest.fixture
def slot(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    slot = open_slot("test-domain")
    yield slot
    slot.close()


def test_what_is_noted_can_be_read_by_others(slot):
    slot.note(CHAIN)
    with slot.noted("task", 12):
        left = left_in(slot.path)
        assert left is not None
        assert set(left.marks) == {Marked("chain", CHAIN), Marked("task", 12)}
    slot.note(INNER)
    assert left_in(slot.path).marks == (Marked("chain", INNER),)
    slot.note(None)
    assert left_in(slot.path).marks == (Marked("chain", CHAIN),)
    slot.note(None)
    assert left_in(slot.path).marks == ()


def test_nothing_but_a_slot_of_this_user_is_read_or_deleted(slot, tmp_path):
    content = Path(slot.path).read_bytes()
    elsewhere, strange = tmp_path / "other.slot", folder() / "strange.slot"
    elsewhere.write_bytes(content)
    strange.write_bytes(b"not one of ours")
    link = folder() / "link.slot"
    link.symlink_to(elsewhere)
    for path in (elsewhere, strange, link, tmp_path / "missing.slot"):
        assert left_in(str(path)) is None
        remove_slot(str(path))
    assert elsewhere.exists()
    assert strange.exists()
    assert link.is_symlink()
    remove_slot(slot.path)
    assert not Path(slot.path).exists()


_NO_ROOM = """
import resource, sys, tempfile
from uuid import UUID
from temporalex_django.runtime.slots import folder, open_slot
tempfile.tempdir = sys.argv[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
slot = open_slot("test-domain")
slot.note(UUID(int=7))
for number in range(700):
    slot.noted("task", number).__enter__()
print([slot.path, list(folder().iterdir())])
"""


def test_where_a_slot_finds_no_room_its_process_goes_on_without_one(tmp_path):
    """A file with holes in a folder that is full would end it by SIGBUS at one of its marks."""
    done = subprocess.run(
        [sys.executable, "-c", _NO_ROOM, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (0, "['', []]"), done.stderr


def test_the_room_of_a_slot_is_taken_when_it_is_made(slot):
    found = Path(slot.path).stat()
    assert found.st_blocks * 512 >= found.st_size
