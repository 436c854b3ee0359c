"""Chat templates as llama-cpp-python has them: their dialect of Jinja, and the ones with a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.engine.errors import ModelError


@dataclass(frozen=True, slots=True)
class Dialect:
    """What Hugging Face's chat templates may use besides plain Jinja."""

    extensions: tuple[Any, ...]
    tojson: Callable[..., str]
    strftime_now: Callable[[str], str]


def dialect() -> Dialect:
    """The dialect."""
    formatter = _chat_format().Jinja2ChatFormatter
    extensions = (formatter.IgnoreGenerationTags, "jinja2.ext.loopcontrols")
    return Dialect(extensions, formatter.tojson, formatter.strftime_now)


def named_templates() -> Mapping[str, str]:
    """Templates by their names."""
    known = _chat_format()
    return {
        "chatml": known.CHATML_CHAT_TEMPLATE,
        "llama-3": known.LLAMA3_INSTRUCT_CHAT_TEMPLATE,
        "mistral": known.MISTRAL_INSTRUCT_CHAT_TEMPLATE,
        "mixtral": known.MIXTRAL_INSTRUCT_CHAT_TEMPLATE,
    }


def read_template(name_or_file: str) -> str:
    """A template's text. Raises ``ModelError`` that names the option if there is none."""
    known = named_templates()
    if name_or_file in known:
        return known[name_or_file]
    try:
        return Path(name_or_file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ModelError(
            f"--chat-template {name_or_file}: no file that can be read ({reason}), and no template's name; "
            f"the names are {', '.join(known)}"
        ) from error


def _chat_format() -> Any:
    # Not at the top: tasks.engine.llama.library must import llama_cpp first, after it has set up OpenMP.
    import tasks.engine.llama.library  # noqa: F401, I001
    from llama_cpp import llama_chat_format

    return llama_chat_format
