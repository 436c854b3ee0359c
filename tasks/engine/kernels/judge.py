"""Judges whether the logits that a kernel set computed make sense; pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Kernels add in different orders, so the two likeliest tokens may change places if they are this close. The
#: unit is a standard deviation of a row's logits; correct kernels differ by up to 0.3, wrong ones by 1 or
#: more.
NEAR_TIE = 0.5


def fault(logits: NDArray[np.float32], expected: NDArray[np.float32] | None) -> str | None:
    """What is wrong with ``logits``, ``(rows, n_vocab)``; ``None`` if nothing is.

    ``expected`` are the plainest kernels' logits; without them only NaN and infinity are found.
    """
    if not np.isfinite(logits).all():
        return "computed NaN"
    if expected is None:
        return None
    return next(filter(None, map(_row_fault, range(len(logits)), logits, expected)), None)


def _row_fault(number: int, row: NDArray[np.float32], expected: NDArray[np.float32]) -> str | None:
    chosen, right = int(row.argmax()), int(expected.argmax())
    behind = float(expected[right] - expected[chosen])
    if behind <= NEAR_TIE * float(expected.std()):
        return None
    return (
        f"chose token {chosen} where the plainest kernels choose {right} (row {number}, {behind:.2f} behind)"
    )
