"""A real worker whose connections to Valkey go silent without a sign: it takes messages again by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.chaos.forms import SILENCES
from tests.chaos.proxy import Proxy, Way
from tests.integration.refusing import Refusing, refusing
from tests.integration.rig import SLOTS, WORKERS, Rig, worker
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

#: Seconds after which a worker must have gone on; it takes 2 or 3, and without time-outs minutes.
PATIENCE_S = 30.0


@dataclass
class Silenced:
    """A worker behind a proxy."""

    rig: Rig
    proxy: Proxy
    num_said: int = 0

    def recovery_s(self) -> float:
        """Seconds until it has run a new task and answers remote control."""
        began = time.monotonic()
        self.num_said += 1
        name = f"said-{self.num_said}"
        self.rig.say(name)
        wait_until(lambda: name in self.rig.done(), timeout=PATIENCE_S)
        wait_until(lambda: self.rig.free() == [SLOTS] * WORKERS, timeout=PATIENCE_S)
        return time.monotonic() - began


@pytest.fixture(scope="module")
def valkey() -> Iterator[Refusing]:
    with refusing() as made:
        yield made


@pytest.fixture(scope="module")
def silenced(valkey: Refusing, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Silenced]:
    proxy, log = Proxy(("127.0.0.1", valkey.port)), tmp_path_factory.mktemp("worker") / "log"
    url = valkey.url.replace(str(valkey.port), str(proxy.port))
    # A lease outlasts every silence here: nothing runs twice.
    with worker(url, valkey.redis, log, TEST_REDIS_URL=valkey.admin_url, INFERENCE_LEASE="100") as rig:
        yield Silenced(rig, proxy)
    proxy.close()


@pytest.mark.parametrize(("ways", "silence_s"), SILENCES)
def test_a_worker_goes_on_after_a_silence(ways: tuple[Way, ...], silence_s: int, silenced: Silenced) -> None:
    rig, held = silenced.rig, f"held-{len(ways)}-{ways[0].name}-{silence_s}"
    rig.hold(held)
    wait_until(lambda: held in [name for name, _ in rig.started()])
    silenced.proxy.swallow(ways)
    time.sleep(silence_s)  # the length of the silence
    silenced.proxy.release()
    rig.let_go(held)
    print(f"after {silence_s} s of silence: {silenced.recovery_s():.1f} s")


@pytest.mark.chaos
def test_a_worker_goes_on_after_the_silence_of_each_connection(silenced: Silenced) -> None:
    for port in silenced.proxy.ports:
        silenced.proxy.swallow(only=[port])
        print(f"one silent connection: {silenced.recovery_s():.1f} s")
