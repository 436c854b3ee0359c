"""The word that says whether answers were computed alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from service.admission.catalog import Catalog
from tasks.contract.status import Child
from tasks.engine.llama import fingerprint as fingerprints
from tasks.engine.llama.kernel_sets import KernelSet
from tasks.store.registry import Registry

pytestmark = pytest.mark.unit

CHILD = Child("w/1", "w", 1, "m", 512, 4, fingerprint="fp_1")
KERNELS = KernelSet("haswell", repacks=True, threads=2)


class FakeRegistry:
    """Has the children that a test gives it."""

    def __init__(self, *children: Child) -> None:
        self.found = list(children)

    def models(self) -> dict[str, Any]:
        return {}

    def children(self) -> list[Child]:
        return self.found


def known(*children: Child) -> Catalog:
    catalog = Catalog(cast(Registry, FakeRegistry(*children)), None)
    catalog.refresh()
    return catalog


def of(*fingerprints: str) -> str | None:
    children = [replace(CHILD, id=f"w/{n}", fingerprint=each) for n, each in enumerate(fingerprints)]
    return known(*children).fingerprint("m")


def test_children_that_compute_alike_have_one() -> None:
    assert of("fp_1", "fp_1") == "fp_1"
    assert of("fp_1", "") == "fp_1"  # a child of the last release tells none
    assert of("") is None
    assert of() is None


def test_children_that_differ_have_one_of_their_own_in_any_order() -> None:
    mixed = of("fp_1", "fp_2")
    assert mixed == of("fp_2", "fp_1", "fp_1")
    assert mixed not in ("fp_1", "fp_2", None)


def test_the_last_one_stays_while_no_child_is_there() -> None:
    registry = FakeRegistry(CHILD, replace(CHILD, id="w/2", model="other", fingerprint="fp_2"))
    catalog = Catalog(cast(Registry, registry), None)
    catalog.refresh()
    registry.found = []
    catalog.refresh()
    assert (catalog.fingerprint("m"), catalog.fingerprint("other")) == ("fp_1", "fp_2")
    assert catalog.slots("m") == 0


def computed(
    path: Path, kernels: KernelSet | None = KERNELS, n_ctx: int = 512, template: str | None = None
) -> str:
    model = SimpleNamespace(file_digest=fingerprints.file_digest(path), kernels=kernels)
    return fingerprints.fingerprint(cast(Any, model), n_ctx, template)


def test_what_computes_alike_has_the_same_and_nothing_else(tmp_path: Path) -> None:
    weights = bytes(5 << 20)
    paths = [tmp_path / name for name in ("one", "same", "head", "tail", "size")]
    for path, content in zip(
        paths, (weights, weights, b"x" + weights[1:], weights[1:] + b"x", weights + b"\0"), strict=True
    ):
        path.write_bytes(content)
    one, same, *others = map(computed, paths)
    assert one == same == computed(paths[0], replace(KERNELS, threads=1))
    others += [
        computed(paths[0], replace(KERNELS, repacks=False)),
        computed(paths[0], n_ctx=1024),
        computed(paths[0], template="t"),
    ]
    others += [computed(paths[0], replace(KERNELS, variant="icelake")), computed(paths[0], None)]
    others += [computed(paths[0], template="{{ messages }}")]
    assert len({one, *others}) == 1 + len(others)
    assert one.startswith("fp_")
