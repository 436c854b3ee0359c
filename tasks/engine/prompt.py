"""Turns a request into its prompt's tokens, and makes the checks that need the model's file."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tasks.contract.messages import ErrorCode, Failure, GenerateRequest

if TYPE_CHECKING:
    from tasks.engine.llama.model import Model


class PromptError(Exception):
    """The request can't be answered by this model; ``failure`` tells the client why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class PromptBuilder:
    """Applies the model's chat template and tokenizes; several threads may use it."""

    def __init__(self, model: Model, n_ctx: int) -> None:
        self._model = model
        self._n_ctx = n_ctx

    def build(self, request: GenerateRequest) -> tuple[tuple[int, ...], int]:
        """The prompt's tokens, and how many tokens may be generated.

        Raises:
            PromptError: the template refuses the messages, or the context is too small.
        """
        tokens = self._tokens(request)
        room = self._n_ctx - len(tokens)
        if room < 1:
            raise PromptError(self._too_long(request, len(tokens)))
        # As in llama-server, a limit above the room is no error: the answer ends where the context does.
        return tuple(tokens), min(request.max_tokens or room, room)

    def _tokens(self, request: GenerateRequest) -> list[int]:
        model = self._model
        if request.messages is not None:
            return model.tokenize(self._render(request), add_special=False)
        tokens = model.tokenize(request.prompt or "", add_special=model.adds_bos)
        if not tokens and model.bos >= 0:
            return [model.bos]
        if not tokens:
            raise PromptError(Failure(ErrorCode.INVALID_PROMPT, "The prompt is empty.", "prompt"))
        return tokens

    def _render(self, request: GenerateRequest) -> str:
        messages = [{"role": m.role, "content": m.content} for m in request.messages or ()]
        try:
            return str(self._formatter(messages=messages).prompt)
        except PromptError:
            raise
        except Exception as error:
            # A template is code from the model's file and may raise anything; it runs in jinja2's sandbox.
            message = f"The model's chat template refused the messages: {error}"
            raise PromptError(Failure(ErrorCode.INVALID_PROMPT, message, "messages")) from error

    @cached_property
    def _formatter(self) -> Callable[..., Any]:
        formatter = self._model.make_chat_formatter()
        if formatter is None:
            message = f"The model {self._model.path.name} has no chat template; use /v1/completions."
            raise PromptError(Failure(ErrorCode.INVALID_PROMPT, message, "messages"))
        return formatter

    def _too_long(self, request: GenerateRequest, num_tokens: int) -> Failure:
        field = "messages" if request.prompt is None else "prompt"
        # OpenAI's words: clients look for them, for example to go on with a model of a larger context.
        message = (
            f"This model's maximum context length is {self._n_ctx} tokens. However, your {field} resulted "
            f"in {num_tokens} tokens, which leaves no room for an answer. "
            f"Please reduce the length of the {field}."
        )
        return Failure(ErrorCode.CONTEXT_LENGTH_EXCEEDED, message, field)
