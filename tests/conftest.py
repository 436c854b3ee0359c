"""For all tests: the settings of whoever runs them are none of theirs."""

from __future__ import annotations

import os

os.environ["INFERENCE_SETTINGS"] = ""
