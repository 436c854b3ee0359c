"""Settings of the broker and the worker.

Each process has one frozen object; ``service.settings`` extends it. Precedence: command-line options (passed
on as variables), then ``INFERENCE_*`` environment variables (and the common ``REDIS_URL``), then the settings
file (:mod:`tasks.settings_file`), then the defaults, which suit the machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, Self

from pydantic import AliasChoices, Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from tasks.contract.redis_place import RedisPlace
from tasks.settings_file import FileBackedSettings

#: The variables that name Redis, the stronger one first.
_REDIS_URL = ("INFERENCE_REDIS_URL", "REDIS_URL")


def available_cores() -> int:
    """Cores that this process may use: its affinity mask, cut by a container's CPU quota (cgroup v2)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


@dataclass(frozen=True, slots=True)
class Shape:
    """``workers`` children, each decoding ``slots`` sequences with ``threads`` threads."""

    workers: int
    slots: int
    threads: int

    @classmethod
    def suited(cls, cores: int, workers: int = 0, slots: int = 0, threads: int = 0) -> Self:
        """Replace each 0 by a number that suits ``cores`` cores.

        A child gets two threads, or four from 16 cores on: a child reads the weights once a step for all
        its sequences, but each child reads them for itself. There are 16 slots in all, or two a core if
        that is more.
        """
        if not threads:
            threads = max(1, cores // workers) if workers else min(cores, 4 if cores >= 16 else 2)
        workers = workers or max(1, cores // threads)
        return cls(workers, slots or max(4, -(-max(16, 2 * cores) // workers)), threads)


class BrokerSettings(FileBackedSettings):
    """What the API and the workers must agree on."""

    model_config = SettingsConfigDict(
        env_prefix="INFERENCE_",
        frozen=True,
        extra="ignore",
        protected_namespaces=(),
        populate_by_name=True,
        hide_input_in_errors=True,  # a URL may hold a password
    )

    redis_url: str = Field(
        "redis://127.0.0.1:6379/0",
        validation_alias=AliasChoices("redis_url", *_REDIS_URL),
        description="Redis or Valkey that holds the queue: redis://, rediss://, unix:// or sentinel://.",
    )
    model: Path | None = Field(None, description="The GGUF file to serve.")
    model_name: str | None = Field(
        None, description="The name clients ask for; default: the file's name without .gguf."
    )
    queue_limit: int = Field(64, ge=1, description="Requests of a model that may wait in the queue.")
    result_ttl: int = Field(3600, ge=1, description="Seconds that a finished request is kept.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="What is logged: debug, info, warning or error."
    )
    log_format: Literal["text", "json"] = Field("text", description="Format of the log: text or json.")
    log_prompts: bool = Field(False, description="Log the text of prompts too.")
    otlp_endpoint: str | None = Field(
        None,
        validation_alias=AliasChoices(
            "otlp_endpoint", "INFERENCE_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
        ),
        description="Where to send traces, for example http://127.0.0.1:4318; default: nowhere.",
    )
    max_attempts: int = Field(
        3,
        ge=1,
        description="How often a request's child may die without progress until the request fails.",
    )

    @model_validator(mode="before")
    @classmethod
    def _leave_out_empty_url(cls, values: dict[str, object]) -> dict[str, object]:
        """An empty ``REDIS_URL`` names no Redis, as if it were not set."""
        return {name: value for name, value in values.items() if value or name.upper() not in _REDIS_URL}

    @field_validator("redis_url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        RedisPlace.parse(url)
        return url

    @property
    def chosen_redis_url(self) -> str | None:
        """``redis_url`` if it was set; ``None`` if it is the default."""
        return self.redis_url if "redis_url" in self.model_fields_set else None

    @property
    def served_name(self) -> str | None:
        """The model's name for clients, or ``None`` when neither a name nor a file is set."""
        if self.model_name:
            return self.model_name
        return None if self.model is None else self.model.name.removesuffix(".gguf")


class WorkerSettings(BrokerSettings):
    """How a worker host runs the model: ``workers`` children, each with ``slots`` and ``threads``."""

    workers: int = Field(
        default=0, ge=0, description="Worker children, each with its own context; 0 chooses."
    )
    slots: int = Field(
        default=0, ge=0, description="Requests that a child decodes at the same time; 0 chooses."
    )
    threads: int = Field(default=0, ge=0, description="Compute threads of a child; 0 chooses.")
    n_ctx: int = Field(
        4096, ge=16, description="Context of one request in tokens: prompt and answer together."
    )
    n_batch: int = Field(512, ge=32, description="Most tokens computed in one step.")
    gpu_layers: int = Field(0, ge=-1, description="Layers to keep on the GPU; -1 for all.")
    chat_template: str | None = Field(
        None,
        description="The chat template to use instead of the model's own: a file, or a name (chatml, "
        "llama-3, mistral or mixtral).",
    )
    prefix_cache: bool = Field(True, description="Compute the common beginning of prompts only once.")
    share_prefixes: bool = Field(
        False, description="Share prefixes also between API keys; a key can then guess what another one sent."
    )
    speculation: bool = Field(
        True, description="Guess a lone request's next tokens, where measured costs say it pays."
    )
    step_shaping: bool = Field(True, description="Measure at start what steps cost, and plan steps by it.")
    stream_interval: float = Field(
        0.033,
        ge=0,
        le=1,
        description="Minimum seconds between writes of a stream's tokens; 0 writes every step.",
    )
    oversubscribe: bool = Field(False, description="Allow more compute threads than cores.")
    drain_timeout: float = Field(
        30.0, ge=0, description="Seconds that running requests get to finish at shutdown."
    )
    metrics_port: int = Field(
        0, ge=0, le=65535, description="Port of this worker host's own /metrics; 0 for none."
    )
    metrics_host: str = Field("127.0.0.1", description="Address of this worker host's /metrics.")
    lease: float = Field(
        10.0,
        ge=1,
        description="Seconds after which a silent worker's requests run elsewhere; the same on every host.",
    )

    @model_validator(mode="after")
    def _fits_the_machine(self) -> Self:
        cores, shape = available_cores(), self.shape
        if shape.workers * shape.threads > cores and not self.oversubscribe:
            raise ValueError(
                f"--workers {shape.workers} x --threads {shape.threads} needs "
                f"{shape.workers * shape.threads} cores, but {cores} are available, and threads that wait "
                f"for each other make it many times slower; the largest that fits is --workers "
                f"{max(1, cores // shape.threads)} --threads {min(shape.threads, cores)} "
                f"(--oversubscribe to do it all the same)"
            )
        return self

    @property
    def shape(self) -> Shape:
        """The children, slots and threads in use; each 0 is replaced by a number that suits this machine."""
        return Shape.suited(available_cores(), self.workers, self.slots, self.threads)


@lru_cache
def worker_settings() -> WorkerSettings:
    """This process's settings, read once. Raises ``pydantic.ValidationError`` naming the setting."""
    return WorkerSettings()
