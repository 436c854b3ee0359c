"""What decides which tokens the same request and seed give, as one short word.

The same in every process that computes alike: same model file, llama.cpp, kernels, context and template.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.engine.llama.library import llama_cpp as ll

if TYPE_CHECKING:
    from tasks.engine.llama.model import Model

#: Bytes that are read at each end of a model's file: all its metadata, and weights. Reading all of a large
#: file would take longer than loading it.
_SAMPLE = 1 << 20
_DIGEST_BYTES = 8


def file_digest(path: Path) -> str:
    """A digest of a model's file: its size and both its ends. Raises ``OSError``."""
    digest, size = blake2b(digest_size=_DIGEST_BYTES), path.stat().st_size
    with path.open("rb") as file:
        digest.update(b"%d " % size + file.read(_SAMPLE))
        file.seek(max(0, size - _SAMPLE))
        digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


def fingerprint(model: Model, n_ctx: int, template: str | None = None) -> str:
    """The fingerprint of answers by ``model`` with contexts of ``n_ctx`` tokens.

    ``template``: the chat template's text; ``None``: the model's own, which is in its file.
    """
    kernels = model.kernels
    # Not the number of threads: a child changes it while it runs.
    way = "" if kernels is None else f"{kernels.variant} {kernels.repacks}"
    facts = f"{model.file_digest}\n{ll.__version__}\n{way}\n{n_ctx}\n{template or ''}"
    return f"fp_{blake2b(facts.encode(), digest_size=_DIGEST_BYTES).hexdigest()}"
