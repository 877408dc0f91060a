"""Slots: what outlives a process, and that nothing else is touched whatever a row says."""

from __future__ import annotations

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
