"""Settings of a service that runs on one machine, in addition to its parts' settings."""

from __future__ import annotations

from pathlib import Path

from platformdirs import user_state_path
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from tasks.settings_file import FileBackedSettings


class LocalSettings(FileBackedSettings):
    """Where the service keeps its queue, its logs and its lock, and how large the queue's store may grow."""

    model_config = SettingsConfigDict(env_prefix="INFERENCE_", frozen=True, extra="ignore")

    state_dir: Path = Field(
        default_factory=lambda: user_state_path("inference-server"),
        description="Folder for the embedded Valkey's data, logs and a lock; default: in XDG's state home.",
    )
    queue_memory: int = Field(
        default=0,
        ge=0,
        description="Most memory of the embedded Valkey in MiB; 0 chooses. Full, it refuses new requests.",
    )
