"""The API process's settings; :mod:`tasks.settings` has the ones that it shares with the workers."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address

from pydantic import Field, SecretStr, field_validator

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
    allowed_hosts: str = Field(
        default="",
        description="More names, separated by commas, by which clients may reach an API that has no keys and "
        "listens on loopback; * for any.",
    )
    cors_origins: str = Field(
        default="",
        description="Origins, separated by commas, whose web pages may use the API; * for any.",
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
    max_connections: int = Field(
        default=4096,
        ge=1,
        description="Most open connections per API process; fewer if its limit of open files is lower.",
    )
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

    @field_validator("api_keys")
    @classmethod
    def _has_a_key(cls, keys: SecretStr | None) -> SecretStr | None:
        """Refuse what would let everybody in although somebody wanted keys."""
        if keys is not None and not _listed(keys.get_secret_value()):
            raise ValueError("Has no key; to serve without keys, leave it out (unset INFERENCE_API_KEYS)")
        return keys

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the API."""
        with suppress(ValueError):
            return ip_address(self.host).is_loopback
        return self.host == "localhost"

    @property
    def exposure(self) -> str | None:
        """A warning, if everybody who reaches the API may use it."""
        if self.keys or self.is_local:
            return None
        return (
            f"No API keys: everybody who reaches {self.host}, port {self.port}, can use this service. Set "
            "INFERENCE_API_KEYS, or listen on 127.0.0.1 (--host)."
        )

    @property
    def hosts(self) -> frozenset[str]:
        """The hosts whose requests are answered; empty when the host doesn't matter."""
        more = frozenset(_listed(self.allowed_hosts.lower()))
        if self.keys or not self.is_local or "*" in more:
            return frozenset()
        own = f"[{self.host}]" if ":" in self.host else self.host
        return more | {"localhost", "127.0.0.1", "[::1]", own}

    @property
    def origins(self) -> frozenset[str]:
        """The origins whose pages may use the API."""
        return frozenset(_listed(self.cors_origins))

    @property
    def keys(self) -> tuple[str, ...]:
        """The API keys; empty when none is needed."""
        text = "" if self.api_keys is None else self.api_keys.get_secret_value()
        return _listed(text)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part for each in text.split(",") if (part := each.strip()))


@lru_cache
def api_settings() -> ApiSettings:
    """This process's settings, read once. Raises ``pydantic.ValidationError`` naming the setting."""
    return ApiSettings()
