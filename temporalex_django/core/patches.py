"""Patch markers: how running workflows survive a change of their code."""

from __future__ import annotations


class Patches:
    """``recorded`` holds the ids of the markers in the history; the answer for an id is given once and then kept."""

    def __init__(self) -> None:
        self.recorded: set[str] = set()
        self._answers: dict[str, bool] = {}
        self._marked: set[str] = set()

    def check_patch(self, patch: str, *, replaying: bool) -> tuple[bool, bool]:
        """``(answer, whether the marker command is due)``. While replaying, only what the history holds is true."""
        answer = self._is_patched(patch, replaying=replaying)
        return answer, answer and self._mark(patch)

    def deprecate(self, patch: str, *, replaying: bool) -> bool:
        """Whether the marker command is due; an old history without it replays all the same."""
        return self._is_patched(patch, replaying=replaying) and self._mark(patch)

    def _is_patched(self, patch: str, *, replaying: bool) -> bool:
        # kept: a run that went past here without the marker must not set it in a later round of a loop, where a
        # rebuild, which knows the marker from the start, would set it in the first round
        return self._answers.setdefault(patch, not replaying or patch in self.recorded)

    def _mark(self, patch: str) -> bool:
        new = patch not in self._marked
        self._marked.add(patch)
        return new
