"""Two API keys on one service: no key finds out through reused prefixes what the other one asked."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.e2e.serving import Served
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

PROMPT = "The secret number of this account is 4 8 1 5 1 6 2 3 4 2. " * 4
KEYS = {"INFERENCE_API_KEYS": "ours,theirs"}


def reused(served: Served, key: str, prompt: str = PROMPT, **fields: object) -> int:
    """How many tokens a request reused, as its client is told."""
    body = {"prompt": prompt, "max_tokens": 4, **fields}
    headers = {"Authorization": f"Bearer {key}"}
    answer = httpx.post(f"{served.url}/v1/completions", json=body, headers=headers, timeout=60).json()
    cached = int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == answer["timings"]["cache_n"]
    return cached


def running(served: Served) -> int:
    status = httpx.get(f"{served.url}/v1/status", headers={"Authorization": "Bearer ours"}).json()
    return int(status["models"][0]["running"])


def test_a_prefix_is_computed_again_for_each_key(start_service: Callable[..., Served]) -> None:
    served = start_service("--slots", "8", "--workers", "1", variables=KEYS).wait_ready()
    assert reused(served, "ours") == reused(served, "theirs") == 0
    assert reused(served, "ours") == reused(served, "theirs") > 40
    running_prompt = "Another secret is 3 1 4 1 5 9 2 6 5 3 5 8 9 7 9. " * 4
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(reused, served, "ours", running_prompt, max_tokens=300, ignore_eos=True)
        wait_until(lambda: running(served) == 1)
        assert reused(served, "theirs", running_prompt) == 0
        assert not long.done()
        assert long.result() == 0


def test_keys_that_trust_each_other_share_prefixes(start_service: Callable[..., Served]) -> None:
    served = start_service("--slots", "4", "--workers", "1", "--share-prefixes", variables=KEYS).wait_ready()
    assert reused(served, "ours") == 0
    assert reused(served, "theirs") > 40
