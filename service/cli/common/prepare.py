"""Prepares a model for serving: chooses the file, checks it, and fits the context to the model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from service.cli.common.options import read_settings, variable
from service.weights import model_files
from service.weights.llama_subprocess import NativeError, ask
from tasks.contract.exit_status import HOPELESS

if TYPE_CHECKING:
    from tasks.settings import WorkerSettings


class UnfitError(click.ClickException):
    """Serving can't work until the user changes something; supervisors don't restart after this status."""

    exit_code = HOPELESS


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A GGUF file that llama.cpp accepts; ``n_ctx_train`` is in tokens, ``size_bytes`` its size on disk."""

    path: Path
    n_ctx_train: int
    size_bytes: int

    def __str__(self) -> str:
        return f"{self.path.name.removesuffix('.gguf')} ({self.size_bytes / 1e6:.0f} MB)"


def prepare_model() -> ModelFile:
    """Check the model that this process's environment names, and complete the environment for the parts.

    The paths of the model and of a chat template become absolute. If the user chose no context, it is cut to
    the context that the model was trained for.
    """
    path = (_settings().model or _fetched()).absolute()
    told = _inspect(path)
    model = ModelFile(path, int(told["n_ctx_train"]), int(told["size_bytes"]))
    os.environ[variable("model")] = str(path)
    _make_absolute(variable("chat_template"), _settings().chat_template)
    _fit_context(model.n_ctx_train)
    return model


def _make_absolute(name: str, template: str | None) -> None:
    """Set a variable to a file's absolute path, because the parts run in another folder."""
    if template is not None and Path(template).is_file():
        os.environ[name] = str(Path(template).absolute())


def _fetched() -> Path:
    path = model_files.default_model()
    if not path.is_file():
        raise UnfitError(
            f"No model at {path}: run `inference-server model fetch`, or pass --model FILE.gguf."
        )
    return path


def _inspect(path: Path) -> dict[str, Any]:
    try:
        return ask("tasks.engine.llama.inspect", str(path))
    except NativeError as error:
        raise UnfitError(str(error)) from None


def _fit_context(n_ctx_train: int) -> None:
    settings = _settings()
    if "n_ctx" not in settings.model_fields_set:
        os.environ[variable("n_ctx")] = str(min(settings.n_ctx, n_ctx_train))
    elif settings.n_ctx > n_ctx_train:
        click.echo(f"Warning: --n-ctx is over the {n_ctx_train} that the model was trained for.", err=True)


def _settings() -> WorkerSettings:
    from tasks.settings import WorkerSettings

    return read_settings(WorkerSettings)
