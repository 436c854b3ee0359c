"""``python -m tasks.engine.kernels.check SHAPE``: compute now, and say which kernels work, in JSON.

Exit status 1 and one message on standard error when none does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tasks.engine.errors import ModelError
from tasks.engine.kept import turn
from tasks.engine.kernels.proof import Shape, prove


def main() -> int:
    """Print which set serves in the shape of the first argument, a JSON object."""
    raw = json.loads(sys.argv[1])
    try:
        shape = Shape(**{**raw, "model": Path(raw["model"])})
        with turn(shape.model):
            proof = prove(shape)
    except ModelError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps({"chosen": str(proof.chosen), "warning": proof.warning}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
