"""Weights loaded in a parent, contexts in its children: OpenMP must work there, and memory be shared."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.e2e

#: A parent loads and forks; its child decodes with two threads. With libgomp the child would hang for ever if
#: the parent had run a parallel region.
PROGRAM = """
import os, sys
from pathlib import Path
from tasks.engine.llama.context import Context, Row
from tasks.engine.llama.model import Model

model = Model(Path(sys.argv[1]))
pid = os.fork()
if pid == 0:
    context = Context(model, slots=2, n_ctx=256, n_batch=64, threads=2)
    tokens = model.tokenize("A mutex is", add_special=False)
    context.decode([Row(t, i, 0, i == len(tokens) - 1) for i, t in enumerate(tokens)])
    print(context.greedy(1)[0] >= 0, flush=True)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_forked_child_decodes_with_two_threads(model_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(model_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "True"
