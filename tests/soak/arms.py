"""How the soak has a worker die at a point, whichever comes there first.

A file says which point is armed. Every worker reads it at each point; the one that can rename it dies. What is to fail
on the way does so as often as there are names left for it to take.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

#: In the environment of workers: the folder of the files.
FOLDER = "TX_SOAK_ARMS"


class Arms:
    """One armed point at a time, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "armed"
        self._number = 0

    def arm(self, point: str, fails: dict[str, int]) -> None:
        """From now on whoever comes to ``point`` dies; ``fails``: at which others it raises, how often."""
        self._number += 1
        draft = self.folder / "draft"
        draft.write_text(json.dumps({"point": point, "fails": fails, "number": self._number}))
        draft.rename(self.file)

    def disarm(self) -> bool:
        """Nobody dies any more; whether somebody has."""
        self.file.unlink(missing_ok=True)
        return self.hit

    @property
    def hit(self) -> bool:
        """Whether somebody died at the point that was armed last."""
        return self._hit(self._number).exists()

    def _hit(self, number: int) -> Path:
        return self.folder / f"hit-{number}"

    def reached(self, point: str) -> None:
        """Takes the place of ``crash_points.reached`` in workers."""
        from django.db import OperationalError

        from temporalex_django.core import process

        assert point in process.POINTS, point
        try:
            armed = json.loads(self.file.read_text())
        except FileNotFoundError:
            return
        number = armed["number"]
        if point == armed["point"]:
            try:
                self.file.rename(self._hit(number))
            except FileNotFoundError:
                return  # another one was faster
            os.kill(os.getpid(), signal.SIGKILL)
        for one in range(armed["fails"].get(point, 0)):
            try:
                (self.folder / f"failed-{number}-{one}-{point.replace(' ', '_')}").touch(exist_ok=False)
            except FileExistsError:
                continue
            raise OperationalError("injected") if point.startswith("bulk") else RuntimeError("injected")
