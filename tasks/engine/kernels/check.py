"""``python -m tasks.engine.kernels.check SHAPE``: tries kernel sets now, and prints which one works, as JSON.

If none works, the exit status is 1 and standard error has one message.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tasks.engine.errors import ModelError
from tasks.engine.kept import turn
from tasks.engine.kernels.proof import Shape, prove


def main() -> int:
    """Print which kernel set serves in the shape that the first argument describes as a JSON object."""
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
