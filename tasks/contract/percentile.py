"""The one definition of a percentile."""

from __future__ import annotations

import math
from collections.abc import Iterable


def percentile(values: Iterable[float], share: float) -> float:
    """The nearest-rank percentile: the least value that a ``share`` (0 to 1) of the values don't exceed.

    The result is one of the values, never a number between two; it is 0 if there are no values.
    """
    found = sorted(values)
    return found[max(0, math.ceil(share * len(found)) - 1)] if found else 0.0
