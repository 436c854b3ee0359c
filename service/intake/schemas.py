"""Checks the bodies of OpenAI's two endpoints and turns them into typed requests.

Types are strict: ``"5"`` is not 5 and ``true`` is not 1. ``null`` always means the default. Unknown fields
are ignored, but :mod:`service.intake.unsupported` refuses those that would change the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from service.errors import ApiError, bad_request
from service.intake.unsupported import refuse_unsupported
from tasks.contract.messages import ChatMessage, GenerateRequest, Priority, Sampling

#: More tokens than any context holds; a larger token limit is a mistake.
MAX_TOKENS = 1_000_000
#: Maximum number of stop strings; OpenAI allows 4. Each is searched for in every piece of text.
MAX_STOPS = 16
MAX_STOP_CHARS = 256
#: Maximum number of messages, and of a message's parts of text; OpenAI allows 2048 messages.
MAX_MESSAGES, MAX_PARTS = 2048, 2048


def _text_of(value: Any) -> Any:
    """Join OpenAI's list of text parts into one string, a line for each; pass other content on unchanged."""
    if not isinstance(value, list):
        return value
    if len(value) > MAX_PARTS:
        raise PydanticCustomError("too_long", "at most {most} parts are allowed", {"most": MAX_PARTS})
    return "\n".join(_text_of_part(index, part) for index, part in enumerate(value))


def _text_of_part(index: int, part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind != "text":
        raise PydanticCustomError(
            "unsupported",
            "part {index} is of type {kind}; only text is supported",
            {"index": index, "kind": kind},
        )
    if kind is None or not isinstance(part.get("text"), str):
        raise PydanticCustomError(
            "part", 'part {index} must be an object with "type": "text" and a "text"', {"index": index}
        )
    return str(part["text"])


def _only_text(value: Any) -> Any:
    """Take the prompt out of OpenAI's list form, which may hold only one text here."""
    if not isinstance(value, list):
        return value
    if len(value) == 1 and isinstance(value[0], str):
        return value[0]
    raise PydanticCustomError("unsupported", "only one prompt, as a string, is supported")


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _whole_characters(value: str) -> str:
    """Refuse half a surrogate pair, which JSON can escape but UTF-8 text can't hold."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("unicode", "the text has half of a surrogate pair (lone \\uD8xx)") from None
    return value


Text = Annotated[str, AfterValidator(_whole_characters)]
Content = Annotated[
    Text,
    BeforeValidator(_text_of),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                        "required": ["type", "text"],
                    },
                },
            ]
        }
    ),
]
Prompt = Annotated[Text, BeforeValidator(_only_text), Field(min_length=1)]
StopString = Annotated[Text, Field(min_length=1, max_length=MAX_STOP_CHARS)]
Stop = Annotated[list[StopString], Field(max_length=MAX_STOPS, fail_fast=True), BeforeValidator(_listed)]
TokenLimit = Annotated[int, Field(ge=1, le=MAX_TOKENS)]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


class Message(_Body):
    """One turn of a conversation; the role ``developer`` counts as ``system``."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content


class StreamOptions(_Body):
    """What a stream sends besides its text."""

    include_usage: bool | None = Field(None, description="Send the token usage in an extra last chunk.")


class GenerateBody(_Body):
    """The fields that both endpoints accept; the sampling defaults are llama.cpp's."""

    model: Text | None = Field(None, description="A name from /v1/models; default: the one served.")
    max_tokens: TokenLimit | None = Field(
        None, description="Most tokens to generate; the end of the model's context ends the answer, too."
    )
    max_completion_tokens: TokenLimit | None = Field(None, description="Replaces max_tokens.")
    temperature: float | None = Field(None, ge=0, le=2, description="0 is greedy.")
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=MAX_TOKENS, description="0 or -1 switches it off.")
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1, description="-1 chooses a random seed.")
    stop: Stop | None = Field(None, description="Up to 16 strings that end the text and are left out of it.")
    stream: bool | None = Field(None, description="Server-sent events as text is produced.")
    stream_options: StreamOptions | None = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repeat_penalty: float | None = Field(None, gt=0, le=10, description="1 switches it off.")
    ignore_eos: bool | None = Field(None, description="Go on past the model's end-of-text token.")
    priority: Literal["interactive", "batch"] | None = Field(
        None, description="Interactive requests (the default) leave the queue first."
    )

    @property
    def token_limit(self) -> int | None:
        """The limit asked for."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def input(self) -> Mapping[str, Any]:
        """The prompt or the messages, as arguments of ``GenerateRequest``."""
        raise NotImplementedError


class ChatBody(GenerateBody):
    """Body of ``POST /v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)

    @property
    def input(self) -> Mapping[str, Any]:
        """The conversation."""
        roles = {"developer": "system"}
        return {"messages": tuple(ChatMessage(roles.get(m.role, m.role), m.content) for m in self.messages)}


class CompletionBody(GenerateBody):
    """Body of ``POST /v1/completions``."""

    prompt: Prompt

    @property
    def input(self) -> Mapping[str, Any]:
        """The prompt."""
        return {"prompt": self.prompt}


BodyT = TypeVar("BodyT", bound=GenerateBody)


def validate(kind: type[BodyT], raw: dict[str, Any]) -> BodyT:
    """Turn a JSON object into a body. Raises ``ApiError`` 400 naming the field that is wrong."""
    refuse_unsupported(raw)
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise _from_validation(error.errors(include_url=False, include_context=False)[0]) from None


@dataclass(frozen=True, slots=True)
class Limits:
    """A request's limits: the default answer length in tokens, the timeout."""

    n_predict: int | None = None
    timeout_s: float | None = None

    @classmethod
    def none(cls) -> Self:
        """No limits."""
        return cls()


def to_request(body: GenerateBody, request_id: str, model: str, limits: Limits) -> GenerateRequest:
    """The typed request."""
    return GenerateRequest(
        id=request_id,
        model=model,
        max_tokens=limits.n_predict if body.token_limit is None else body.token_limit,
        sampling=_sampling(body),
        stop=tuple(body.stop or ()),
        ignore_eos=bool(body.ignore_eos),
        stream=bool(body.stream),
        priority=Priority(body.priority or Priority.INTERACTIVE),
        timeout_s=limits.timeout_s,
        **body.input,
    )


def _sampling(body: GenerateBody) -> Sampling:
    names = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repeat_penalty")
    given = {name: value for name in names if (value := getattr(body, name)) is not None}
    if body.top_k is not None:
        given["top_k"] = max(0, body.top_k)
    return Sampling(**given, seed=_seed(body.seed))


def _seed(seed: int | None) -> int | None:
    # llama.cpp's seeds are 32 bits wide, and the highest means "draw a random seed".
    return None if seed is None or seed == -1 else seed % 0xFFFFFFFF


_CODES = {
    "missing": "missing_required_parameter",
    "unsupported": "unsupported_parameter",
    "unicode": "invalid_unicode",
}


def _from_validation(error: ErrorDetails) -> ApiError:
    param = _path(error["loc"])
    kind = error["type"]
    code = _CODES.get(kind, "invalid_type" if kind.endswith("_type") else "invalid_value")
    return bad_request(f"{param}: {error['msg']}.", param, code)


def _path(loc: tuple[int | str, ...]) -> str:
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path
