"""The most rows of a batch, by measured times: larger batches are not always faster.

A batch whose activations leave the caches of a processor takes longer for each row than a small
one. Runs tell what each size costs; sizes beside the best one are tried now and then.
"""

from __future__ import annotations

EVERY = 24
"""Batches between two trials of a size that is known."""
SAMPLES = 2
"""The runs after which the time of a size is known; the first one may prepare memory."""
MARGIN = 0.97
"""A smaller size must take less than this share of the time that a larger one takes for a row."""
WEIGHT = 0.25
"""The weight of a slower time in the mean of a size."""


class BatchLimit:
    """Chooses the most rows of a batch among the powers of two up to `most`, and `most`."""

    def __init__(self, most: int) -> None:
        self._sizes = [1 << i for i in range((most - 1).bit_length())] + [most]
        self._seconds = [0.0] * len(self._sizes)
        """The mean time for a row in runs up to each size, and larger than the one before."""
        self._runs = [0] * len(self._sizes)
        self._until_trial = EVERY
        self._below = False
        """True if the last trial was of a smaller size."""

    def rows(self, waiting: int) -> int:
        """Return the most rows of the next batch, where so many rows wait."""
        whole = self._class_of(waiting)
        if not whole:
            return self._sizes[-1]
        best = self._best(whole)
        trial = self._trial(best, whole)
        chosen = best if trial is None else trial
        return self._sizes[-1] if chosen == whole else self._sizes[chosen]

    def ran(self, rows: int, seconds: float) -> None:
        """Note the time of a run."""
        i = self._class_of(rows)
        each = seconds / rows
        self._runs[i] += 1
        # A run is never too fast by chance, but too slow where other work disturbs it.
        weight = 1.0 if self._runs[i] <= SAMPLES or each < self._seconds[i] else WEIGHT
        self._seconds[i] += weight * (each - self._seconds[i])

    def _class_of(self, rows: int) -> int:
        return min((rows - 1).bit_length(), len(self._sizes) - 1)

    def _known(self, i: int) -> bool:
        return self._runs[i] >= SAMPLES

    def _best(self, whole: int) -> int:
        """Return the size with the least time for a row; the larger one of near ones."""
        if not self._known(whole):
            return whole
        best = whole
        for i in reversed(range(whole)):
            if self._known(i) and self._seconds[i] < MARGIN * self._seconds[best]:
                best = i
        return best

    def _trial(self, best: int, whole: int) -> int | None:
        """Return a size that is to be tried now: an unknown one, or one beside the best one."""
        if self._known(whole):
            for i in reversed(range(whole)):
                if not self._known(i):
                    return i
        self._until_trial -= 1
        if self._until_trial:
            return None
        self._until_trial = EVERY
        self._below = not self._below
        tried = best - 1 if self._below else best + 1
        return tried if 0 <= tried <= whole else None
