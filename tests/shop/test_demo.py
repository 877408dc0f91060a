"""The folder of a ``demo --check``, which has the logs of the processes."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from example_project.replay.processes import NotStarted
from example_project.replay.report import DIFFERENT, MALFORMED, RECONCILED
from example_project.shop.management.commands.demo import Command


def folder_after(command: Command, *, error: BaseException | None = None) -> Path:
    """The folder of a check that ended with the code of the command, or with an error."""
    with suppress(NotStarted, KeyboardInterrupt), ExitStack() as stack:
        folder = command._folder(stack, check=True, on_cluster=False)
        assert folder.is_dir()
        if error is not None:
            raise error
    return folder


@pytest.fixture
def command(settings: Any, tmp_path: Path) -> Command:
    settings.VAR_DIR = tmp_path
    return Command(stderr=StringIO())


@pytest.mark.parametrize("code", [RECONCILED, MALFORMED])
def test_a_play_whose_figures_match_leaves_no_folder(command: Command, code: int) -> None:
    command._code = code
    assert not folder_after(command).exists()


def test_a_play_that_fails_leaves_its_logs_and_says_where(command: Command) -> None:
    command._code = DIFFERENT
    folder = folder_after(command)
    assert folder.is_dir()
    assert str(folder) in command.stderr._out.getvalue()


def test_a_shop_that_does_not_start_leaves_its_logs_and_an_interrupted_one_does_not(command: Command) -> None:
    assert folder_after(command, error=NotStarted("no answer")).is_dir()
    assert not folder_after(command, error=KeyboardInterrupt()).exists()
