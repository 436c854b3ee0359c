"""Finds the best case: successive halving over candidates, then a choice among the finalists; pure functions.

Every round measures longer than the round before and keeps the better half of each encoding. Encodings don't
compete by speed alone, because coarser weights answer worse: a coarser encoding must be much faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from service.bench.cases import Case, Encoded, slots_each
from service.client.load_run import Load

#: Throughputs within this share of the best differ only by noise; then the least memory decides.
NOISE = 0.03
#: Rounds: waves of requests, and tokens of each answer.
ROUNDS = ((1, 32), (2, 64), (2, 128))


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement of a case; ``size`` is the file's in bytes, because finer weights are larger."""

    case: Case
    size: int
    tokens_per_second: float
    ttft_p50_ms: float
    itl_mean_ms: float
    memory_mib: float

    @property
    def encoding(self) -> str:
        """The encoding of the weights."""
        return self.case.model.encoding


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that can't be measured, and why."""

    case: Case
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of all rounds.

    Attributes:
        trials: each case's longest complete measurement, in the order of the candidates.
        finalists: the trials of the last complete round; one of them is chosen.
        failures: the cases that can't run here.
        num_untried: how many candidates there was no time to measure.
    """

    trials: tuple[Trial, ...]
    finalists: tuple[Trial, ...]
    failures: tuple[Failure, ...]
    num_untried: int


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen trial, and a sentence that says why."""

    trial: Trial
    reason: str


def candidates(
    models: Sequence[Encoded], shapes: Sequence[tuple[int, int]], concurrency: int
) -> tuple[Case, ...]:
    """Every encoding with every (workers, threads), with slots for all requests at once or half of them.

    Encodings alternate, so that each has been tried even if the time ends early.
    """
    totals = dict.fromkeys((concurrency, max(1, concurrency // 2)))
    return tuple(
        Case(model, workers, threads, slots)
        for workers, threads in shapes
        for slots in dict.fromkeys(slots_each(total, workers) for total in totals)
        for model in models
    )


def halve(
    cases: Sequence[Case],
    concurrency: int,
    measure: Callable[[Case, Load], Trial | Failure],
    has_time: Callable[[], bool],
) -> Outcome:
    """Measure in rounds as long as ``has_time``; each round keeps the better half.

    The first round counts even if it is incomplete; a later round counts only when it is complete.
    """
    latest: dict[Case, Trial] = {}
    finalists: tuple[Trial, ...] = ()
    failures: list[Failure] = []
    alive, num_untried = tuple(cases), 0
    for number, load in enumerate(_loads(concurrency)):
        results = tuple(_measured(alive, load, measure, has_time))
        trials = tuple(result for result in results if isinstance(result, Trial))
        failures += [result for result in results if isinstance(result, Failure)]
        num_left = len(alive) - len(results)
        if number == 0:
            num_untried = num_left
        elif num_left:
            break
        latest |= {trial.case: trial for trial in trials}
        finalists = trials or finalists
        alive = survivors(trials)
        if num_left or len(alive) < 2:
            break
    return Outcome(tuple(latest.values()), finalists, tuple(failures), num_untried)


def survivors(trials: Sequence[Trial]) -> tuple[Case, ...]:
    """The better half of each encoding; none of an encoding that is no faster than a finer one."""
    kept: set[Case] = set()
    fastest = 0.0
    for group in _finest_first(trials):
        ranked = sorted(group, key=lambda trial: -trial.tokens_per_second)
        if ranked[0].tokens_per_second > fastest:
            fastest = ranked[0].tokens_per_second
            kept |= {trial.case for trial in ranked[: -(-len(ranked) // 2)]}
    return tuple(trial.case for trial in trials if trial.case in kept)


def choose(trials: Sequence[Trial], worth: float) -> Choice:
    """The best of the finest encoding, unless a coarser one is ``worth`` times as fast.

    There must be at least one trial.
    """
    best = [_best(group) for group in _finest_first(trials)]
    chosen = best[0]
    for trial in best[1:]:
        if trial.tokens_per_second >= worth * chosen.tokens_per_second:
            chosen = trial
    others = [_compared(trial, chosen, worth) for trial in best if trial is not chosen]
    told = f"{chosen.case}: {chosen.tokens_per_second:.0f} tok/s, the best with {chosen.encoding}"
    return Choice(chosen, "; ".join([told, *others]) + ".")


def _loads(concurrency: int) -> Iterator[Load]:
    for waves, n_predict in ROUNDS:
        yield Load(waves * concurrency, concurrency, n_predict)


def _measured(
    cases: Sequence[Case],
    load: Load,
    measure: Callable[[Case, Load], Trial | Failure],
    has_time: Callable[[], bool],
) -> Iterator[Trial | Failure]:
    for case in cases:
        if not has_time():
            return
        yield measure(case, load)


def _finest_first(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Trials grouped by encoding, the encoding with the largest file first."""

    def fineness(trial: Trial) -> tuple[int, str]:
        return -trial.size, trial.encoding

    return [list(group) for _, group in groupby(sorted(trials, key=fineness), fineness)]


def _best(trials: Sequence[Trial]) -> Trial:
    """The trial with the least memory among the trials that are as fast as the fastest, apart from noise."""
    bound = (1 - NOISE) * max(trial.tokens_per_second for trial in trials)
    return min((t for t in trials if t.tokens_per_second >= bound), key=lambda trial: trial.memory_mib)


def _compared(trial: Trial, chosen: Trial, worth: float) -> str:
    ratio = trial.tokens_per_second / chosen.tokens_per_second
    told = f"{trial.encoding} is {ratio:.2f} times as fast"
    return told + (
        f" (coarser, so it must be {worth:g} times as fast)" if trial.size < chosen.size else " (finer)"
    )
