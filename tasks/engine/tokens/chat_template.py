"""Renders a conversation by a chat template: in jinja2's sandbox, in bounded time, to a bounded length.

A template is code out of the model's file. Each turn of its loops and each call of its macros looks whether
the rendering may go on; a statement of its own that calls :meth:`_Sandbox.go_on` is put there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import local
from time import thread_time
from typing import Any

from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tasks.engine.errors import ModelError
from tasks.engine.llama.vocabulary.chat_dialect import dialect, read_template

#: Most seconds of processor time for one rendering; a usual one takes less than a millisecond.
MAX_S = 2.0
#: Most characters of a text, items of a list, and bits of a number that a template may make.
MAX_SIZE = 1 << 23
#: So many turns and calls between two looks at the clock.
_INTERVAL = 64


class TemplateLimitError(Exception):
    """The template took too long, or made too large a value."""


class OutputLimitError(Exception):
    """The rendered text is longer than allowed."""


class ChatTemplate:
    """A compiled template; several threads may use it."""

    def __init__(self, source: str, bos: str = "", eos: str = "") -> None:
        """``bos`` and ``eos`` are what the template calls ``bos_token`` and ``eos_token``.

        Raises ``jinja2.TemplateSyntaxError``.
        """
        self._sandbox, spoken = _Sandbox(), dialect()
        for extension in spoken.extensions:
            self._sandbox.add_extension(extension)
        self._sandbox.filters["tojson"] = spoken.tojson
        self._constants: dict[str, Any] = {
            "bos_token": bos,
            "eos_token": eos,
            "strftime_now": spoken.strftime_now,
            "raise_exception": _refuse,
            "add_generation_prompt": True,
            "functions": None,
            "function_call": None,
            "tools": None,
            "tool_choice": None,
        }
        tree = self._sandbox.parse(source)
        #: The texts in the template itself.
        self.literals = tuple(_literals(tree))
        self._template = self._sandbox.from_string(_guarded(tree, self._sandbox))

    def render(
        self,
        messages: Sequence[Mapping[str, str]],
        max_chars: int = MAX_SIZE,
        check: Callable[[], None] = lambda: None,
    ) -> str:
        """The conversation as one text.

        ``check`` is called now and then, and may raise something to break off.

        Raises:
            TemplateLimitError: it takes too long.
            OutputLimitError: the text has more than ``max_chars`` characters.
            Exception: anything that the template raises.
        """
        self._sandbox.begin(check)
        parts: list[str] = []
        size = 0
        for part in self._template.generate(messages=messages, **self._constants):
            parts.append(part)
            size += len(part)
            if size > max_chars:
                raise OutputLimitError
        return "".join(parts)


def chosen_template(name_or_file: str | None) -> str | None:
    """The text of the template that a worker was told to use, if any, after a trial.

    Raises ``ModelError`` that names the option, if there is none or it can't render a small conversation.
    """
    if name_or_file is None:
        return None
    source, word = read_template(name_or_file), "Hello"
    try:
        text = ChatTemplate(source).render([{"role": "user", "content": word}])
    except Exception as error:
        raise ModelError(f"--chat-template {name_or_file}: it can't render a small chat: {error}") from error
    if word not in text:
        raise ModelError(f"--chat-template {name_or_file}: it leaves out what the user of a small chat says")
    return source


class _Budget:
    """What one rendering may spend."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check, self._until, self._num = check, thread_time() + MAX_S, 0

    def spend(self) -> None:
        self._num += 1
        if self._num % _INTERVAL:
            return
        self._check()
        if thread_time() > self._until:
            raise TemplateLimitError(f"it did not end within {MAX_S:g} s")


class _Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one template, with a budget for each thread that renders it."""

    intercepted_binops = frozenset(("*", "**"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True)
        self._thread = local()

    def begin(self, check: Callable[[], None]) -> None:
        """Begin a rendering on this thread."""
        self._thread.budget = _Budget(check)

    def go_on(self) -> None:
        """Raise what ends the rendering, if it may not go on."""
        self._thread.budget.spend()

    def bounded(self, value: Any) -> Any:
        """The value that a template gives a name, unless it is too large."""
        self.go_on()
        if _size(value) > MAX_SIZE:
            raise TemplateLimitError("it makes too large a value")
        return value

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Multiply, unless the product is too large: it would take all memory before any other look."""
        if _product_size(operator, left, right) > MAX_SIZE:
            raise TemplateLimitError("it makes too large a value")
        return super().call_binop(context, operator, left, right)


def _size(value: Any) -> int:
    if isinstance(value, int):
        return value.bit_length()
    return len(value) if isinstance(value, str | bytes | list | tuple | dict) else 1


def _product_size(operator: str, left: Any, right: Any) -> int:
    if isinstance(left, int) and isinstance(right, int):
        return _size(left) * abs(right) if operator == "**" else _size(left) + _size(right)
    number, repeated = (left, right) if isinstance(left, int) else (right, left)
    return _size(repeated) * number if isinstance(number, int) else 0


def _literals(tree: nodes.Template) -> Iterator[str]:
    yield from (node.data for node in tree.find_all(nodes.TemplateData))
    yield from (node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str))


def _guarded(tree: nodes.Template, sandbox: _Sandbox) -> nodes.Template:
    """The template, with a look at the budget in each loop and macro, and at each value that gets a name."""
    for node in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
        node.body.insert(0, nodes.ExprStmt(_call("go_on"), lineno=node.lineno))  # type: ignore[attr-defined]
    for assign in list(tree.find_all(nodes.Assign)):
        assign.node = _call("bounded", assign.node)
    tree.set_environment(sandbox)
    return tree


def _call(name: str, *arguments: nodes.Node) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(arguments), [], None, None, lineno=1)


def _refuse(message: str) -> None:
    raise ValueError(message)
