"""Settings of the API process, on top of those it shares with the workers (:mod:`tasks.settings`)."""

from __future__ import annotations

from functools import lru_cache

from pydantic import Field, SecretStr

from tasks.settings import BrokerSettings


class ApiSettings(BrokerSettings):
    """How the API listens and what it lets in. Times are in seconds."""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8000, ge=1, le=65535, description="TCP port to listen on.")
    api_workers: int = Field(
        default=1, ge=1, le=64, description="API processes; one carries thousands of streams."
    )
    queue_timeout: float = Field(
        default=300.0, gt=0, description="Seconds a request may wait to be generated."
    )
    request_timeout: float | None = Field(
        default=None, gt=0, description="Seconds from acceptance to the end at most."
    )
    n_predict: int | None = Field(
        default=None,
        ge=1,
        description="Tokens of an answer whose request sets no limit; default: the context's room.",
    )
    api_keys: SecretStr | None = Field(
        default=None,
        description="API keys, separated by commas, of which each request must bring one as a bearer token. "
        "A variable or the settings file keeps them out of the list of processes.",
    )
    max_body_bytes: int = Field(default=1 << 20, ge=1024, description="Bytes of a request's body at most.")
    max_wait: float = Field(
        default=120.0, ge=0, description="Seconds that Prefer: wait=N is honoured for at most."
    )
    max_waiters: int = Field(
        default=256, ge=0, description="Requests per API process that may wait for a place in the queue."
    )
    max_connections: int = Field(default=4096, ge=1, description="Connections open at once per API process.")
    first_event_timeout: float = Field(
        default=10.0, ge=0, description="Seconds a stream's status waits for the request's first event."
    )
    heartbeat: float = Field(
        default=2.0, gt=0, description="Seconds of silence before a stream sends a comment."
    )
    send_timeout: float = Field(
        default=30.0, gt=0, description="Seconds a client may stop reading before its connection is closed."
    )
    body_timeout: float = Field(
        default=20.0, gt=0, description="Seconds a request's body may take to arrive."
    )
    drain_timeout: float = Field(
        default=30.0, ge=0, description="Seconds that open responses get at shutdown."
    )

    @property
    def keys(self) -> tuple[str, ...]:
        """The API keys; empty when nobody needs one."""
        text = "" if self.api_keys is None else self.api_keys.get_secret_value()
        return tuple(key for part in text.split(",") if (key := part.strip()))


@lru_cache
def api_settings() -> ApiSettings:
    """This process's settings, read once. Raises ``pydantic.ValidationError`` naming the setting."""
    return ApiSettings()
