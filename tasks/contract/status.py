"""The response of ``/v1/status``, defined once: its schema is made from it, and ``top`` reads it.

Times are Unix seconds of the store's clock; durations are milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.contract.messages import State


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """A model that some worker has served; ``waiting`` of at most ``cap`` requests wait, ``running`` run."""

    id: str
    n_ctx: int
    waiting: int
    cap: int
    running: int


@dataclass(frozen=True, slots=True)
class Child:
    """A worker child that holds a context: ``slots`` sequences of ``n_ctx`` tokens, ``busy`` of them used.

    ``id`` is ``worker/pid``; ``worker`` is Celery's node name. ``index`` is the child's number, which a dead
    child's replacement takes over. ``work`` counts what the engines of all children with this number have
    done. ``kernels`` says which kernels of llama.cpp compute, and with how many threads. Children with the
    same ``fingerprint`` compute alike. ``trouble`` says what Redis refuses to the child or its worker; empty:
    nothing.
    """

    id: str
    worker: str
    pid: int
    model: str
    n_ctx: int
    slots: int
    busy: int = 0
    work: dict[str, int] = field(default_factory=dict)
    index: int = 0
    kernels: str = ""
    fingerprint: str = ""
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts since the store began: finished requests by state, refused ones by error code, tokens."""

    requests: dict[str, int]
    refused: dict[str, int]
    generated_tokens: int


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """A request that is over, without its texts; ``child`` made the last attempt at it."""

    id: str
    model: str
    state: State
    error: str | None
    child: str | None
    attempts: int
    created: float
    finished: float
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    ttft_ms: float
    itl_ms: float
    itl_p95_ms: float


@dataclass(frozen=True, slots=True)
class Status:
    """The whole service at ``time``; ``recent`` has the latest 100 finished requests, newest first."""

    time: float
    models: tuple[ModelStatus, ...]
    children: tuple[Child, ...]
    totals: Totals
    recent: tuple[FinishedRequest, ...]
    object: str = "inference.status"
