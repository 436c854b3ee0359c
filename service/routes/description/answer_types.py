"""The types of all JSON answers, for their description. A field with a default may be missing.

``service.streaming.answers`` and the routes write the answers; a test compares them with these types.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.contract.messages import State, Timings


class _Answer(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


# ---- answers to prompts -----------------------------------------------------------------------------


class PromptTokensDetails(_Answer):
    """Where the prompt's tokens came from."""

    cached_tokens: int = Field(description="Tokens whose computation was reused.")


class Usage(_Answer):
    """Tokens of the prompt and of the answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class _Generated(_Answer):
    id: str
    created: int = Field(description="Unix seconds.")
    model: str
    system_fingerprint: str | None = Field(
        description="Changes when other tokens may come for the same seed: with the model's file, llama.cpp, "
        "its kernels or the context; null if no worker has told one."
    )


class _Choice(_Answer):
    index: Literal[0]
    logprobs: None
    finish_reason: str | None = Field(
        description="stop, length or cancelled; null before the end. Later releases may have others."
    )


class AssistantMessage(_Answer):
    """The answer's text."""

    role: Literal["assistant"]
    content: str


class ChatChoice(_Choice):
    """The one answer to a conversation."""

    message: AssistantMessage


class ChatCompletion(_Generated):
    """A whole answer to a conversation."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage | None
    timings: Timings | None


class Delta(_Answer):
    """What a chunk adds: the role in the first chunk, text in the next, nothing in the last."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(_Choice):
    """What a chunk adds to the answer."""

    delta: Delta


class ChatCompletionChunk(_Generated):
    """One event of a streamed answer to a conversation; after the last one comes ``[DONE]``.

    The chunk with the finish reason has the timings. With ``include_usage`` one more has the usage.
    """

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    timings: Timings | None = None


class CompletionChoice(_Choice):
    """The text that follows the prompt; of a chunk, the next part of it."""

    text: str


class Completion(_Generated):
    """A whole continuation of a text."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage | None
    timings: Timings | None


class CompletionChunk(_Generated):
    """One event of a streamed continuation of a text; after the last one comes ``[DONE]``."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage | None = None
    timings: Timings | None = None


# ---- errors -----------------------------------------------------------------------------------------


class ErrorDetail(_Answer):
    """What went wrong: ``message`` for people, ``code`` for programs, ``param`` the wrong field or header."""

    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None
    code: str | None


class Error(_Answer):
    """An error in OpenAI's shape."""

    error: ErrorDetail


# ---- everything else --------------------------------------------------------------------------------


class AcceptedRequest(_Answer):
    """A request that was accepted; its ``Location`` says where to poll it."""

    id: str
    object: Literal["inference.request"]
    status: State
    model: str


class Request(AcceptedRequest):
    """A request's state and, once it is over, its answer or its error."""

    created: int = Field(description="Unix seconds.")
    attempts: int
    response: ChatCompletion | Completion | None
    error: ErrorDetail | None


class ModelMeta(_Answer):
    """``n_ctx``: tokens of prompt and answer together; null while no worker has served the model."""

    n_ctx: int | None


class Model(_Answer):
    """A model that clients may ask for."""

    id: str
    object: Literal["model"]
    created: int = Field(description="The time of the model's file, in Unix seconds.")
    owned_by: str
    meta: ModelMeta


class ModelList(_Answer):
    """All models."""

    object: Literal["list"]
    data: list[Model]


class Health(_Answer):
    """All is well."""

    status: Literal["ok"]


class Readiness(_Answer):
    """Workers hold these models."""

    status: Literal["ready"]
    models: list[str]


#: What the document describes by name.
ALL: tuple[type[BaseModel], ...] = (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
    Error,
    AcceptedRequest,
    Request,
    Model,
    ModelList,
    Health,
    Readiness,
)
