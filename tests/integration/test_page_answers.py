"""How the page shows answers in a real browser: safely, and with no needless work.

The worker is scripted, since no model gives the answers that these tests need; gunicorn and Valkey are real.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.integration.http_rig import Api, ScriptedWorker
from tests.waiting import wait_until
from tests.watched import Watched

pytestmark = pytest.mark.integration

Visit = Callable[..., Watched]
NUM_TOKENS = 10_000
NUM_MESSAGES = 200
#: Counts each change of a message other than the live one, each frame, and the parsing of the live one.
COUNT = """async () => {
    const page = document.querySelector('script[type=module]').src;
    const { work } = await import(page.replace('main.js', 'markdown.js'));
    const live = [...document.querySelectorAll('.message')].at(-1);
    const found = { frames: 0, changed: 0, live: 0, work, before: { ...work } };
    const count = () => { found.frames += 1; requestAnimationFrame(count); };
    requestAnimationFrame(count);
    new MutationObserver((changes) => changes.forEach(({ target }) => {
        const message = (target.closest ?? target.parentElement.closest).call(target, '.message');
        if (message === live) found.live += 1; else if (message) found.changed += 1;
    })).observe(document.querySelector('.log'), {
        subtree: true, childList: true, characterData: true, attributes: true,
    });
    window.found = found;
}"""

HOSTILE = """
<script>window.broken = 1</script> <img src=x onerror="window.broken = 2">

[press me](javascript:window.broken=3) [or me](data:text/html,<script>window.broken=4</script>)
![picture](https://elsewhere.example/pixel.png) <https://elsewhere.example/>

<form action=https://elsewhere.example><input name=q></form> <style>* { display: none }</style>
"""

WITHOUT_END = """# One

A paragraph
that becomes a heading
===

- a list
- of two

  with a paragraph inside

1. another

| a | b |
|---|---|
| 1 | 2 |

```python
def f():

    return "# no heading"
```

[named]: https://example.org/

> a quote with *emphasis* and a [link][named]
lazily continued

    indented code

***

Last words, `code` and **more
"""
WHOLE_AND_BY_PIECES = """async (text) => {
    const page = document.querySelector('script[type=module]').src;
    const { LiveMarkdown } = await import(page.replace('main.js', 'markdown.js'));
    const shown = (texts) => {
        const node = document.createElement('div');
        const live = new LiveMarkdown(node);
        texts.forEach((each) => live.show(each));
        return live.settled.innerHTML + live.tail.innerHTML;
    };
    return [shown([text]), shown([...text].map((_, index) => text.slice(0, index + 1)))];
}"""


@pytest.fixture(scope="module")
def api(valkey_url: str, worker: ScriptedWorker) -> Iterator[Api]:
    served = Api(valkey_url)
    served.wait_ready()
    yield served
    served.stop()


def ask(visited: Watched, worker: ScriptedWorker) -> str:
    """Send a message whose answer the test decides; returns the request's id once its stream has begun."""
    visited.send("hold")
    expect(visited.answer.locator(".text")).to_contain_text("one")
    [request_id] = worker.held
    return request_id


def test_a_hostile_answer_is_harmless(visit: Visit, api: Api, worker: ScriptedWorker) -> None:
    visited = visit(api.url)
    request_id = ask(visited, worker)
    worker.say(request_id, HOSTILE)
    worker.finish(request_id)
    visited.wait_timings()
    text = visited.answer.locator(".text")
    expect(text).to_contain_text("<script>")
    assert text.locator("script, img, form, input, style").count() == 0
    links = text.locator("a").evaluate_all("all => all.map(each => each.getAttribute('href'))")
    # A picture becomes a link: nothing is loaded unless the reader clicks it.
    assert [link for link in links if link] == [
        "https://elsewhere.example/pixel.png",
        "https://elsewhere.example/",
    ]
    for link in text.locator("a:not([href])").all():
        link.click()
    assert visited.page.evaluate("window.broken") is None


def test_a_text_that_grows_ends_as_it_would_at_once(visit: Visit, api: Api) -> None:
    visited = visit(api.url)
    whole, by_pieces = visited.page.evaluate(WHOLE_AND_BY_PIECES, WITHOUT_END)
    assert whole == by_pieces
    for tag in ("<h1>", "<table>", "<pre ", "<blockquote>", "<ol>", '<a href="https://example.org/"', "<hr>"):
        assert tag in whole


def test_a_long_answer_after_many_messages_costs_only_its_own(
    visit: Visit, api: Api, worker: ScriptedWorker
) -> None:
    visited = visit(api.url)
    turns = [
        {"role": ("user", "assistant")[n % 2], "text": f"**{n}** words", "state": "done"} for n in range(200)
    ]
    seed = "turns => sessionStorage.setItem('inference-server.messages', turns)"
    visited.page.evaluate(seed, json.dumps(turns))
    visited.page.reload()
    expect(visited.page.locator(".message")).to_have_count(NUM_MESSAGES)
    request_id = ask(visited, worker)
    visited.page.evaluate(COUNT)
    length = say_much(visited, worker, request_id)
    visited.wait_timings()
    found: dict[str, Any] = visited.page.evaluate("window.found")
    assert found["live"] > 0
    # The last question is no longer the last message; nothing else changes in the old messages.
    assert found["changed"] <= 2
    parsed = found["work"]["characters"] - found["before"]["characters"]
    assert length <= parsed <= 20 * length
    assert found["work"]["renders"] - found["before"]["renders"] <= 2 * (found["frames"] + 2)
    expect(visited.answer.locator(".text")).to_contain_text(f"word{NUM_TOKENS - 1}")


def say_much(visited: Watched, worker: ScriptedWorker, request_id: str) -> int:
    """Have the worker say all tokens while the visitor uses the page; returns the text's length."""
    length = 0
    field = visited.page.get_by_label("Message", exact=True)
    for n in range(NUM_TOKENS):
        text = f" word{n}" + ("\n\n" if n % 100 == 99 else "")
        length += len(text)
        assert worker.say(request_id, text)
        if n == NUM_TOKENS // 2:
            field.fill("meanwhile")
            expect(visited.answer).to_have_attribute("aria-busy", "true")
    worker.finish(request_id, NUM_TOKENS)
    wait_until(lambda: request_id not in worker.held)
    expect(field).to_have_value("meanwhile")
    return length


@pytest.fixture
def keyed(valkey_url: str, worker: ScriptedWorker) -> Iterator[Api]:
    served = Api(valkey_url, api_keys="first, secret")
    wait_until(lambda: served.status("/readyz") == 200, timeout=30)
    yield served
    served.stop()


def test_a_key_is_asked_for_and_used(keyed: Api, visit: Visit) -> None:
    visited = visit(keyed.url, key="secret")
    visited.send("Hello you")
    assert visited.wait_timings()
    visited.show("Dashboard")
    expect(visited.tile("Running")).to_be_visible()
    assert "secret" not in visited.page.evaluate("Object.values(localStorage).join()")
