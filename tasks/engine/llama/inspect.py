"""``python -m tasks.engine.llama.inspect MODEL``: prints what a GGUF file holds, as one line of JSON.

If the file can't be used, the exit status is 1 and one line on standard error says why. It runs in a separate
process, so that native code never runs in a process that will fork.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tasks.engine.errors import ModelError


def main() -> int:
    """Print the description of the file named by the first argument."""
    try:
        from tasks.engine.llama.model import Model

        description = Model(Path(sys.argv[1]), vocab_only=True).describe()
    except ModelError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(description) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
