"""Patch markers: the way in which running workflows survive a change of their code. See decision 17."""

from __future__ import annotations


class Patches:
    """The patches of a run: which changes (``api.patched(id)``) its code has asked about, and the answers.

    ``recorded`` has the ids of the markers in the history, each of which says that the run took the new code. The first
    answer for an id is kept and given again.
    """

    def __init__(self) -> None:
        self.recorded: set[str] = set()
        self._answers: dict[str, bool] = {}
        self._marked: set[str] = set()

    def check_patch(self, patch: str, *, replaying: bool) -> tuple[bool, bool]:
        """Return ``(answer, emit)``: if the run takes the changed code, and if it must emit the marker of the patch.

        The answer is True at first execution, and in a replay if the history has the marker. A marker is emitted once,
        with the first answer that is True.
        """
        answer = self._is_patched(patch, replaying=replaying)
        return answer, answer and self._mark(patch)

    def deprecate(self, patch: str, *, replaying: bool) -> bool:
        """Return True if the marker of a deprecated patch must be emitted now.

        During a replay this is so only if the history has the marker, so an old history without it still replays.
        """
        return self._is_patched(patch, replaying=replaying) and self._mark(patch)

    def _is_patched(self, patch: str, *, replaying: bool) -> bool:
        # The answer is kept. A run that passed here without the marker must not set it in a later round of a loop. A
        # rebuild knows the marker from the start and would set it in the first round.
        return self._answers.setdefault(patch, not replaying or patch in self.recorded)

    def _mark(self, patch: str) -> bool:
        new = patch not in self._marked
        self._marked.add(patch)
        return new
