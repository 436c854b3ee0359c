"""The API process's settings; :mod:`tasks.settings` has the ones that it shares with the workers."""

from __future__ import annotations

from functools import lru_cache

from pydantic import Field, SecretStr

from tasks.settings import BrokerSettings


class ApiSettings(BrokerSettings):
    """The API's address, limits and timeouts; times are in seconds."""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8000, ge=1, le=65535, description="TCP port to listen on.")
    api_workers: int = Field(
        default=1, ge=1, le=64, description="API processes; one carries thousands of streams."
    )
    queue_timeout: float = Field(
        default=300.0, gt=0, description="Seconds a request may wait before it starts; then it fails."
    )
    request_timeout: float | None = Field(
        default=None, gt=0, description="Seconds a request may take in all; default: no limit."
    )
    n_predict: int | None = Field(
        default=None,
        ge=1,
        description="Most tokens of an answer whose request sets no limit; default: what fits the context.",
    )
    api_keys: SecretStr | None = Field(
        default=None,
        description="API keys, separated by commas; each request must send one of them as a bearer token. "
        "A variable or the settings file keeps them out of the list of processes.",
    )
    max_body_bytes: int = Field(default=1 << 20, ge=1024, description="Largest request body in bytes.")
    result_bytes: int = Field(
        default=256 << 20,
        ge=1 << 20,
        description="Bytes of finished requests that are kept; beyond it the oldest go before --result-ttl.",
    )
    max_wait: float = Field(
        default=120.0, ge=0, description="Longest wait in seconds that a client gets with Prefer: wait=N."
    )
    max_waiters: int = Field(
        default=256, ge=0, description="Requests that may wait for a place in a full queue, per API process."
    )
    max_connections: int = Field(default=4096, ge=1, description="Most open connections per API process.")
    first_event_timeout: float = Field(
        default=10.0,
        ge=0,
        description="Seconds to wait for a stream's first event before its headers are sent.",
    )
    heartbeat: float = Field(
        default=2.0,
        gt=0,
        description="Seconds of silence after which a stream sends a comment, to keep it open.",
    )
    send_timeout: float = Field(
        default=30.0, gt=0, description="Seconds a client may stop reading before its connection is closed."
    )
    body_timeout: float = Field(
        default=20.0, gt=0, description="Seconds a request's body may take to arrive."
    )
    drain_timeout: float = Field(
        default=30.0, ge=0, description="Seconds that open responses get to finish at shutdown."
    )

    @property
    def keys(self) -> tuple[str, ...]:
        """The API keys; empty when none is needed."""
        text = "" if self.api_keys is None else self.api_keys.get_secret_value()
        return tuple(key for part in text.split(",") if (key := part.strip()))


@lru_cache
def api_settings() -> ApiSettings:
    """This process's settings, read once. Raises ``pydantic.ValidationError`` naming the setting."""
    return ApiSettings()
