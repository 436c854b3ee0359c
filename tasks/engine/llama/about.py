"""``python -m tasks.engine.llama.about``: how llama.cpp was built, as one line of JSON."""

from __future__ import annotations

import json
import sys

from tasks.engine.llama.model import describe_build


def main() -> int:
    """Print it."""
    sys.stdout.write(json.dumps(describe_build()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
