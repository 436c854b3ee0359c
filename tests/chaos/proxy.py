"""A TCP proxy in the test's process that cuts connections, and delays or holds their data."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

#: ``SO_LINGER`` with a time of 0: closing sends a reset.
_RESET = struct.pack("ii", 1, 0)


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
        self.delay_s, self.num_cut = 0.0, 0
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = self._call(self._listen, host)
        self.port = int(self._server.sockets[0].getsockname()[1])

    @property
    def num_connections(self) -> int:
        """Connections open now."""
        return len(self._links)

    def cut_all(self) -> int:
        """Break every connection, and return how many there were."""
        return int(self._call(self._cut, None))

    def cut_one(self, choice: random.Random) -> int:
        """Break one connection, chosen at random; returns 0 when there is none."""
        return int(self._call(self._cut, choice))

    def hold(self) -> None:
        """Hold all data: connections stay open, new ones are accepted, but neither side gets anything."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def refuse(self) -> None:
        """Break every connection now, and every new one at once."""
        self._refuses = True
        self.cut_all()

    def release(self) -> None:
        """Forward again, without delay; held data arrives."""
        self._refuses, self.delay_s = False, 0.0
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
            await asyncio.gather(self._pump(reader, far), self._pump(far_reader, near))
        finally:
            self._links.pop(near, None)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self._flows.wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()
        writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
