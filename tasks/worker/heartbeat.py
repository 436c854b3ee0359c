"""A child's heartbeat: renews its registration, so that the API and clients know which children serve."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event as Flag
from threading import Thread

from redis import Redis, RedisError

from tasks.contract.status import Child
from tasks.store import last_words
from tasks.store.board import Board
from tasks.store.registry import HEARTBEAT_S, Registry, ServedModel

logger = logging.getLogger(__name__)

_REGISTERING = "Registering a child"


@dataclass(frozen=True, slots=True)
class Signs:
    """What changes of a child.

    Attributes:
        busy: says how many slots are in use.
        work: says what the engine has done.
        parents_troubles: says what Redis refuses to the parent; empty: nothing.
    """

    busy: Callable[[], int]
    work: Callable[[], dict[str, int]]
    parents_troubles: Callable[[], str] = str


class Heartbeat:
    """A thread that registers a child; Redis being away is no reason to stop."""

    def __init__(self, redis: Redis, card: Child, model: Path, signs: Signs, board: Board) -> None:
        """Make a heartbeat without starting it.

        Args:
            redis: where to register.
            card: what the child registers, apart from what changes.
            model: its model's file.
            signs: what changes.
            board: what Redis refuses to the child.
        """
        self._redis, self._registry = redis, Registry(redis)
        self._card, self._model, self._signs, self._board = card, model, signs, board
        self._closing = Flag()
        self._thread = Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Register, and renew the registration until :meth:`close`."""
        self._thread.start()

    def close(self) -> None:
        """Withdraw; returns when that is done."""
        self._closing.set()
        self._thread.join()

    def _beat(self) -> None:
        self._try(self._introduce)
        while not self._closing.wait(HEARTBEAT_S):
            self._try(self._announce)
        self._try(partial(self._registry.withdraw, self._card.id))

    def _introduce(self) -> None:
        with suppress(OSError):  # if the file is gone, an earlier child has introduced the model
            created = int(self._model.stat().st_mtime)
            self._registry.add_model(ServedModel(self._card.model, self._card.n_ctx, created))
        self._announce()
        last_words.forget(self._redis, self._card.model)

    def _announce(self) -> None:
        signs = self._signs
        told = "; ".join(filter(None, (signs.parents_troubles(), self._board.text)))
        self._registry.announce(replace(self._card, busy=signs.busy(), work=signs.work(), trouble=told))

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
            self._board.over(_REGISTERING)
        except RedisError as error:
            self._board.note(_REGISTERING, error)
        except Exception:
            # If this thread ended, a working child would disappear from the registry.
            logger.exception("could not register")
