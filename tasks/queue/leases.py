"""The messages that a worker has reserved: leased by Redis's clock, and put back at the queue's head."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from kombu.utils.json import dumps, loads
from kombu.utils.uuid import uuid
from redis import RedisError

from tasks.contract.redis_names import LEASES, PREFIX, UNACKED

if TYPE_CHECKING:
    from redis import Redis

#: Most overdue leases looked at in one sweep.
SWEEP_BATCH = 100
#: How much of a death an attempt counts as if its child died, and if its lease ran out; see
#: :meth:`RequestStore.deaths`.
DEATH, LOST_LEASE = 1.0, 0.25
#: Where kombu keeps reserved messages. The names are ours, so that another Celery application in the same
#: database never sees the messages.
UNACKED_OPTIONS = {
    "unacked_key": UNACKED,
    "unacked_index_key": LEASES,
    "unacked_mutex_key": PREFIX + "unacked_mutex",
}


class QoS(kombu_redis.QoS):  # type: ignore[misc]
    """Reserved messages, leased by Redis's clock so that hosts whose clocks differ agree."""

    def append(self, message: Any, delivery_tag: str) -> None:
        """Note a received message, and lease it unless ``take.lua`` has leased it already."""
        if delivery_tag != self.channel.taken:
            self._reserve(message, delivery_tag)
        # Skip kombu's Redis QoS, which would write the time of this host's clock.
        virtual.QoS.append(self, message, delivery_tag)

    def _reserve(self, message: Any, delivery_tag: str) -> None:
        info = message.delivery_info
        entry = dumps([message._raw, info["exchange"], info["routing_key"]])
        with self.channel.conn_or_acquire() as client:
            self.channel.scripts.reserve(args=[*self._names, delivery_tag, entry], client=client)

    def can_consume(self) -> bool:
        """Whether a message may be taken now."""
        return bool(self.channel.patience.may_try and super().can_consume())

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message. If Redis refuses, its lease runs out, and then it is dropped: it is over."""
        try:
            with self._noted("Acknowledging messages"):
                self._remove_from_indices(delivery_tag).execute()
        finally:  # whatever Redis says, there is room for another message
            virtual.QoS.ack(self, delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Put a message back, or keep it for people if Celery can't read it; without Redis its lease ends."""
        try:
            with self._noted("Putting messages back"):
                if requeue:
                    self.restore_by_tag(delivery_tag)
                else:
                    self.bury(delivery_tag, "", "the worker could not run it; its log says why")
        finally:
            virtual.QoS.ack(self, delivery_tag)

    def bury(self, tag: str, queue: str, why: str) -> None:
        """Take a reserved message away that can't be read, and keep it for people."""
        with self.channel.conn_or_acquire() as client:
            self.channel.scripts.bury(args=[*self._names, tag, queue, why], client=client)
        virtual.QoS.ack(self, tag)

    @contextmanager
    def _noted(self, what: str) -> Iterator[None]:
        """Note on the board that Redis refuses something, or that it does no more."""
        try:
            yield
        except RedisError as error:
            self.channel.board.note(what, error)
            raise
        self.channel.board.over(what)

    def restore_by_tag(self, tag: Any, client: Redis | None = None, leftmost: bool = False) -> None:
        """Put a message back at the head of the queue, whatever ``leftmost`` says."""
        # A request is not to blame when its worker ends and hands it back.
        charge = 0.0 if self.channel.do_restore else DEATH
        with self.channel.conn_or_acquire(client) as redis:
            self._requeue(redis, tag, charge)

    def restore_unacked(self, client: Redis | None = None) -> None:
        """Put all reserved messages back, in the order in which they came."""
        with self.channel.conn_or_acquire(client) as redis:
            for tag in reversed(list(self._delivered)):
                self._requeue(redis, tag)
        self._delivered.clear()

    def restore_visible(self, start: int = 0, num: int | None = None, interval: int = 1) -> None:
        """Put back messages whose leases are not renewed. No lock is needed: each is put back atomically."""
        lease = self.visibility_timeout
        # After Redis was away, all leases look overdue; live workers soon renew their leases.
        if monotonic() - self.channel.opened < lease / 2:
            return
        with self._noted("Looking for overdue leases"), self.channel.conn_or_acquire() as client:
            args = [self.unacked_index_key, lease, num or SWEEP_BATCH]
            for tag in self.channel.scripts.overdue(args=args, client=client):
                self._requeue(client, tag.decode(), LOST_LEASE, lease)

    def _requeue(self, client: Redis, tag: str, charge: float = 0.0, lease: float | str = "") -> None:
        entry = cast("bytes | None", client.hget(self.unacked_key, tag))
        if entry is None:
            client.zrem(self.unacked_index_key, tag)
            return
        try:
            raw, exchange, routing_key = loads(entry)
            queue, where = self.channel.place_of(raw, exchange, routing_key)
            again = _redelivered(raw)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            self.bury(tag, "", f"it can't be put back: {error!r}")
            return
        args = [*self._names, tag, lease, where, dumps(again), tag_of(again), request_id(raw), queue, charge]
        self.channel.scripts.requeue(args=args, client=client)

    @property
    def _names(self) -> tuple[str, str]:
        return self.unacked_index_key, self.unacked_key


def request_id(message: dict[str, Any]) -> str:
    """Id of the request that a message stands for; empty if it stands for none."""
    return cast("str", message.get("headers", {}).get("id") or "")


def tag_of(message: dict[str, Any]) -> str:
    """A message's delivery tag."""
    return cast("str", message["properties"]["delivery_tag"])


def _redelivered(raw: dict[str, Any]) -> dict[str, Any]:
    """The message as it is to be delivered again."""
    properties = raw["properties"]
    info = {**properties.get("delivery_info", {}), "redelivered": True}
    # A new tag: a worker that lost its lease may still acknowledge the old one.
    properties = {**properties, "delivery_info": info, "delivery_tag": uuid()}
    return {**raw, "properties": properties, "headers": {**raw.get("headers", {}), "redelivered": True}}
