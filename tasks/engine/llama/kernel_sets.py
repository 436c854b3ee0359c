"""What a kernel set is, and in which order sets are tried; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Variants of ggml's kernels that are old enough to be trusted. The first of them that runs on this processor
#: computes the results that other variants are compared with.
PLAIN_VARIANTS = ("haswell", "sandybridge", "sse42", "x64", "armv8.0_1")


@dataclass(frozen=True, slots=True)
class KernelSet:
    """One way to compute: a variant of ggml's kernels, a layout of the weights, and a number of threads.

    Attributes:
        variant: ggml's name of loadable kernels, such as ``icelake``; empty if the library has only one kind.
        repacks: whether weights are rearranged at load for kernels that need it (AMX kernels do).
        threads: number of threads of one child.
    """

    variant: str
    repacks: bool
    threads: int

    def __str__(self) -> str:
        kind = self.variant or "native"
        weights = "repacked weights" if self.repacks else "weights as in the file"
        return f"{kind}, {weights}, {self.threads} thread{'s' if self.threads > 1 else ''}"


def candidates(variants: Sequence[str], threads: int) -> tuple[KernelSet, ...]:
    """The sets to try, quickest first; ``variants`` are the ones that run on this processor, best first."""
    best, *others = variants or ("",)
    plain = plainest(variants)
    sets = (
        KernelSet(best, True, threads),
        # The second best lacks the best one's newest instructions, which compilers and systems get wrong.
        *(KernelSet(other, True, threads) for other in others[:1]),
        KernelSet(best, False, threads),
        KernelSet(plain, False, threads),
        KernelSet(best, True, 1),
        KernelSet(plain, False, 1),
    )
    return tuple(dict.fromkeys(sets))


def plainest(variants: Sequence[str]) -> str:
    """The variant that the others are compared with."""
    return next((name for name in PLAIN_VARIANTS if name in variants), variants[-1] if variants else "")


def reference(variants: Sequence[str], threads: int) -> KernelSet:
    """The set whose results count as right; it computes in a process that never forked."""
    return KernelSet(plainest(variants), False, threads)


def lost(wanted: KernelSet, chosen: KernelSet) -> str:
    """What is lost with ``chosen`` instead of ``wanted``, as text for people; empty if nothing is lost."""
    losses = [
        f"the {wanted.variant} kernels" if chosen.variant != wanted.variant else "",
        "repacked weights, which compute several requests at once two to three times as fast"
        if wanted.repacks and not chosen.repacks
        else "",
        f"{wanted.threads - chosen.threads} of {wanted.threads} threads"
        if chosen.threads < wanted.threads
        else "",
    ]
    return " and ".join(filter(None, losses))
