"""The one definition of a percentile."""

from __future__ import annotations

import math
from collections.abc import Iterable


def percentile(values: Iterable[float], share: float) -> float:
    """The nearest-rank percentile: the least value that ``share`` (0 to 1) of them don't exceed; 0 of none.

    An observed value, never one between two.
    """
    found = sorted(values)
    return found[max(0, math.ceil(share * len(found)) - 1)] if found else 0.0
