"""Checks the model's file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.doctor.finding import Finding, Level
from service.weights import model_files
from service.weights.llama_subprocess import NativeError, ask

_FETCH = "Run `inference-server model fetch`, or pass --model FILE.gguf."


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the file's header says; sizes are in bytes, the context is in tokens."""

    path: Path
    size_bytes: int
    n_ctx_train: int
    kv_bytes_per_token: int
    n_vocab: int
    n_embd: int
    n_ff: int

    @classmethod
    def of(cls, path: Path, told: dict[str, Any]) -> ModelFacts:
        """Make the facts from the output of ``tasks.engine.llama.inspect``."""
        names = [name for name in cls.__dataclass_fields__ if name != "path"]
        return cls(path=path, **{name: int(told[name]) for name in names})


def read_model(path: Path) -> tuple[ModelFacts | None, list[Finding]]:
    """Read the file at ``path``: its facts, or ``None`` if it can't be used, and the findings about it."""
    if not path.is_file():
        return None, [Finding("model", Level.PROBLEM, f"There is no file {path}.", _FETCH)]
    try:
        facts = ModelFacts.of(path, ask("tasks.engine.llama.inspect", str(path)))
    except NativeError as error:
        return None, [Finding("model", Level.PROBLEM, str(error), _FETCH)]
    return facts, list(_look(facts))


def _look(facts: ModelFacts) -> Iterator[Finding]:
    told = f"{facts.path}: {facts.size_bytes / 1e6:.0f} MB, whole, trained for {facts.n_ctx_train} tokens"
    if not facts.path.with_name(facts.path.name + ".sha256").is_file():
        yield Finding("model", Level.OK, told)
    elif model_files.is_whole(facts.path):
        yield Finding("model", Level.OK, f"{told}; its SHA-256 is the one noted when it was fetched")
    else:
        advice = f"Remove it and fetch it again: rm {facts.path}; inference-server model fetch"
        yield Finding("model", Level.PROBLEM, f"{facts.path} has changed since it was fetched.", advice)


def look_at_context(facts: ModelFacts, n_ctx: int) -> Finding:
    """Whether the model was trained for the context of a request."""
    advice = f"Beyond it answers get worse; pass --n-ctx {facts.n_ctx_train} or less."
    warning = advice if n_ctx > facts.n_ctx_train > 0 else ""
    return Finding.judge("context", f"{n_ctx} tokens a request, prompt and answer", warning=warning)
