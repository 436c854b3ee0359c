"""Turns a request into its prompt's tokens, and makes the checks that need the model's file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from tasks.contract.messages import ChatMessage, ErrorCode, Failure, GenerateRequest
from tasks.engine.tokens.chat_template import MAX_SIZE, ChatTemplate, OutputLimitError
from tasks.engine.tokens.conversation import Conversation, Rendered
from tasks.engine.tokens.tokenizer import Tokenizer, TooLongError

if TYPE_CHECKING:
    from tasks.engine.llama.model import Model


class PromptError(Exception):
    """The request can't be answered by this model; ``failure`` tells the client why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class PromptBuilder:
    """Applies a chat template and tokenizes; several threads may use it."""

    def __init__(self, model: Model, n_ctx: int, template: str | None = None) -> None:
        """``template``: the chat template's text; default: the model's own."""
        self._model, self._n_ctx = model, n_ctx
        self._source = model.chat_template if template is None else template
        self._tokenizer = Tokenizer(model, n_ctx)

    def build(
        self, request: GenerateRequest, check: Callable[[], None] = lambda: None
    ) -> tuple[tuple[int, ...], int]:
        """The prompt's tokens, and how many tokens may be generated.

        ``check`` is called now and then, and may raise something to break off.

        Raises:
            PromptError: the template refuses the messages, or the context is too small.
        """
        try:
            tokens = self._tokens(request, check)
        except TooLongError as error:
            raise PromptError(self._too_long(request, f"at least {error.num}")) from None
        room = self._n_ctx - len(tokens)
        if room < 1:
            raise PromptError(self._too_long(request, str(len(tokens))))
        # As in llama-server, a limit above the room is no error: the answer ends where the context does.
        return tuple(tokens), min(request.max_tokens or room, room)

    def _tokens(self, request: GenerateRequest, check: Callable[[], None]) -> list[int]:
        if request.messages is not None:
            rendered = self._render(request.messages, check)
            return self._tokenizer.encode(rendered.text, rendered.marked, check)
        # The text of a completion may have control tokens: the client is its own template.
        tokens = self._tokenizer.framed(self._tokenizer.encode(request.prompt or "", check=check))
        if not tokens and self._model.bos >= 0:
            return [self._model.bos]
        if not tokens:
            raise PromptError(Failure(ErrorCode.INVALID_PROMPT, "The prompt is empty.", "prompt"))
        return tokens

    def _render(self, messages: Sequence[ChatMessage], check: Callable[[], None]) -> Rendered:
        conversation, broken_off = self._conversation, _BrokenOff(check)
        try:
            return conversation.render(messages, self._tokenizer.max_bytes or MAX_SIZE, broken_off)
        except OutputLimitError:
            raise TooLongError(self._n_ctx + 1) from None
        except Exception as error:
            if broken_off.error is error:
                raise
            # A template is code from the model's file and may raise anything.
            raise _refused(error) from error

    @cached_property
    def _conversation(self) -> Conversation:
        model = self._model
        if self._source is None:
            message = (
                f"The model {model.path.name} has no chat template: start its workers with --chat-template, "
                "or use /v1/completions."
            )
            raise PromptError(Failure(ErrorCode.INVALID_PROMPT, message, "messages"))
        bos, eos = model.spelling(model.bos), model.spelling(model.eos)
        try:
            template = ChatTemplate(self._source, bos, eos)
        except Exception as error:
            raise _refused(error) from error
        return Conversation(template, model.special_tokens)

    def _too_long(self, request: GenerateRequest, num_tokens: str) -> Failure:
        field = "messages" if request.prompt is None else "prompt"
        # OpenAI's words: clients look for them, for example to go on with a model of a larger context.
        message = (
            f"This model's maximum context length is {self._n_ctx} tokens. However, your {field} resulted "
            f"in {num_tokens} tokens, which leaves no room for an answer. "
            f"Please reduce the length of the {field}."
        )
        return Failure(ErrorCode.CONTEXT_LENGTH_EXCEEDED, message, field)


class _BrokenOff:
    """A check that keeps what it raised, so that it isn't taken for the template's fault."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self.error: Exception | None = None

    def __call__(self) -> None:
        try:
            self._check()
        except Exception as error:
            self.error = error
            raise


def _refused(error: Exception) -> PromptError:
    message = f"The model's chat template refused the messages: {error}"
    return PromptError(Failure(ErrorCode.INVALID_PROMPT, message, "messages"))
