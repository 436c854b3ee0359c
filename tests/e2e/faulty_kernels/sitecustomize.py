"""A llama.cpp that fails with some kernels: Python imports this by itself from a folder on ``PYTHONPATH``.

Set ``FAULTY_KERNELS=SCOPE:FAULT``. Scopes: ``repacked`` (with repacked weights), ``threads`` (with more than
one thread), ``worker`` (in a worker's processes, not in the proof before), ``all``. Faults: a signal's name,
``hang``, ``nan``, ``nonsense``, ``memory`` (there is none for a context), ``error`` (a Python exception).
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import signal
import sys
from typing import Any


class Faults:
    """Wraps the functions of ``llama_cpp.llama_cpp`` that load, make contexts and compute."""

    def __init__(self, module: Any, scope: str, fault: str) -> None:
        self._scope, self._fault = scope, fault
        self._is_repacked, self._threads = False, 1
        self._load, self._init = module.llama_model_load_from_file, module.llama_init_from_model
        self._decode, self._logits = module.llama_decode, module.llama_get_logits
        module.llama_model_load_from_file, module.llama_init_from_model = self.load, self.init
        module.llama_decode, module.llama_get_logits = self.decode, self.logits

    @property
    def is_due(self) -> bool:
        scopes = {"repacked": self._is_repacked, "threads": self._threads > 1, "all": True}
        return {**scopes, "worker": "celery" in sys.orig_argv}[self._scope]

    def load(self, path: bytes, params: Any) -> Any:
        self._is_repacked = bool(params.use_extra_bufts)
        return self._load(path, params)

    def init(self, model: Any, params: Any) -> Any:
        self._threads = int(params.n_threads)
        if self.is_due and self._fault == "memory":
            return None
        return self._init(model, params)

    def decode(self, context: Any, batch: Any) -> int:
        if self.is_due and self._fault == "hang":
            signal.pause()
        if self.is_due and self._fault == "error":
            raise LookupError("a batch that nobody foresaw")
        if self.is_due and self._fault.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, self._fault))
        return int(self._decode(context, batch))

    def logits(self, context: Any) -> Any:
        found = self._logits(context)
        if self.is_due and self._fault in {"nan", "nonsense"}:
            found[3] = float("nan") if self._fault == "nan" else 1e9
        return found


class Finder(importlib.abc.MetaPathFinder):
    """Finds ``llama_cpp.llama_cpp`` as usual, and wraps it once it is loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "llama_cpp.llama_cpp":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert spec.loader is not None
        loader, execute = spec.loader, spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            Faults(module, *os.environ["FAULTY_KERNELS"].split(":"))

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if "FAULTY_KERNELS" in os.environ:
    sys.meta_path.insert(0, Finder())
