"""A TCP proxy in the test's process that cuts connections, and delays, holds or swallows their data."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from enum import Enum
from typing import Any

#: ``SO_LINGER`` with a time of 0: closing sends a reset.
_RESET = struct.pack("ii", 1, 0)


class Way(Enum):
    """A direction of data."""

    TO_SERVER = "to the server"
    TO_CLIENT = "to the client"


class Proxy:
    """Forwards connections to ``target``; every method may be called from any thread.

    Attributes:
        port: where it listens, on ``host``.
        delay_s: seconds that each piece of data is late.
        num_cut: connections cut so far.
    """

    def __init__(self, target: tuple[str, int], host: str = "127.0.0.1") -> None:
        self._target = target
        self._links: dict[asyncio.StreamWriter, asyncio.StreamWriter] = {}
        self._loop = asyncio.new_event_loop()
        self._flows = asyncio.Event()
        self._refuses = False
        self._swallowed: tuple[Collection[Way], Collection[int] | None] = (), None
        self.delay_s, self.num_cut = 0.0, 0
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = self._call(self._listen, host)
        self.port = int(self._server.sockets[0].getsockname()[1])

    @property
    def num_connections(self) -> int:
        """Connections open now."""
        return len(self._links)

    @property
    def ports(self) -> list[int]:
        """The ports by which the server knows the connections that are open now."""
        return list(map(_port, list(self._links.values())))

    def cut_all(self) -> int:
        """Break every connection, and return how many there were."""
        return int(self._call(self._cut, None))

    def cut_one(self, choice: random.Random) -> int:
        """Break one connection, chosen at random; returns 0 when there is none."""
        return int(self._call(self._cut, choice))

    def hold(self) -> None:
        """Hold all data: connections stay open, new ones are accepted, but neither side gets anything."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def swallow(self, ways: Iterable[Way] = tuple(Way), only: Collection[int] | None = None) -> None:
        """Drop all data in these directions, without a sign; what is dropped never arrives.

        ``only``: of the connections with these :attr:`ports`, not of new ones; default: of all.
        """
        self._swallowed = frozenset(ways), only

    def refuse(self) -> None:
        """Break every connection now, and every new one at once."""
        self._refuses = True
        self.cut_all()

    def release(self) -> None:
        """Forward again, without delay; held data arrives, swallowed data is lost."""
        self._refuses, self.delay_s, self._swallowed = False, 0.0, ((), None)
        self._loop.call_soon_threadsafe(self._flows.set)

    def close(self) -> None:
        """Close the proxy and all its connections."""
        self.cut_all()
        self._call(self._end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, action: Callable[..., Any], *args: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(action(*args), self._loop).result(timeout=30)

    async def _listen(self, host: str) -> asyncio.Server:
        self._flows.set()
        return await asyncio.start_server(self._accept, host, 0, backlog=256)

    async def _end(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _cut(self, choice: random.Random | None) -> int:
        links = list(self._links.items())
        if choice is not None and links:
            links = [choice.choice(links)]
        for near, far in links:
            _reset(near)
            _reset(far)
        self.num_cut += len(links)
        return len(links)

    async def _accept(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        if self._refuses:
            _reset(near)
            return
        try:
            far_reader, far = await asyncio.open_connection(*self._target)
        except OSError:
            _reset(near)
            return
        self._links[near] = far
        try:
            port = _port(far)
            await asyncio.gather(
                self._pump(reader, far, Way.TO_SERVER, port),
                self._pump(far_reader, near, Way.TO_CLIENT, port),
            )
        except asyncio.CancelledError:  # the proxy closes
            return
        finally:
            self._links.pop(near, None)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way, port: int
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self._flows.wait()
                ways, only = self._swallowed
                if way in ways and (only is None or port in only):
                    continue
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()
        writer.close()


def _port(far: asyncio.StreamWriter) -> int:
    return int(far.get_extra_info("sockname")[1])


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
