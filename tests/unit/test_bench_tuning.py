"""The search for a setting, on a simulated machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomlkit
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from service.bench.cases import Case, Encoded, shapes_for
from service.bench.encodings import coarser
from service.bench.tuning import ROUNDS, Failure, Trial, candidates, choose, halve, survivors
from service.cli.common.write_settings import write_settings
from service.cli.tune import tune
from service.client.load_run import Load

pytestmark = pytest.mark.unit

SIZES = {"F16": 271, "Q8_0": 145, "Q4_0": 92}
MODELS = tuple(Encoded(name, Path(name)) for name in SIZES)
CASES = candidates(MODELS, shapes_for(4), concurrency=16)


def trial(case: Case, speed: float, memory: float = 700) -> Trial:
    return Trial(case, SIZES[case.model.encoding], speed, 100, 10, memory)


def of(encoding: str, speed: float, workers: int = 1, memory: float = 700) -> Trial:
    return trial(Case(Encoded(encoding, Path(encoding)), workers, 1, 16), speed, memory)


class Machine:
    """Answers with the given speeds; there is time for ``num_measurements``."""

    def __init__(self, speeds: dict[Case, float], num_measurements: int = 10_000) -> None:
        self.speeds, self.num_left = speeds, num_measurements
        self.done: list[tuple[Case, Load]] = []

    def measure(self, case: Case, load: Load) -> Trial | Failure:
        self.done.append((case, load))
        self.num_left -= 1
        return trial(case, self.speeds[case]) if self.speeds[case] else Failure(case, "no room")

    def has_time(self) -> bool:
        return self.num_left > 0


speeds = st.lists(st.integers(0, 50), min_size=len(CASES), max_size=len(CASES)).map(
    lambda values: {case: float(value) for case, value in zip(CASES, values, strict=True)}
)


def test_candidates_are_all_combinations_with_slots_for_all_or_half():
    assert len(CASES) == len(set(CASES)) == 3 * 3 * 2
    assert {case.workers * case.threads for case in CASES} == {4}
    assert {case.workers * case.slots for case in CASES} == {8, 16}
    assert {case.model.encoding for case in CASES[:3]} == set(SIZES)


@given(speeds)
def test_with_time_enough_the_fastest_of_the_finest_reaches_the_end(table: dict[Case, float]):
    machine = Machine(table)
    outcome = halve(CASES, 16, machine.measure, machine.has_time)
    assert {failure.case for failure in outcome.failures} == {case for case in CASES if not table[case]}
    assert outcome.num_untried == 0
    measurable = [case for case in CASES if table[case]]
    if measurable:
        finest = max(SIZES[case.model.encoding] for case in measurable)
        fastest = max(table[case] for case in measurable if SIZES[case.model.encoding] == finest)
        assert fastest in {t.tokens_per_second for t in outcome.finalists if t.size == finest}
        assert max(table.values()) == max(t.tokens_per_second for t in outcome.finalists)


@given(speeds, st.integers(1, 40))
def test_when_time_ends_what_was_compared_alike_stands(table: dict[Case, float], num_measurements: int):
    machine = Machine(table, num_measurements)
    outcome = halve(CASES, 16, machine.measure, machine.has_time)
    assert len(machine.done) <= num_measurements
    assert outcome.num_untried == max(0, len(CASES) - num_measurements)
    assert {t.case for t in outcome.finalists} <= {case for case, _ in machine.done}
    assert bool(outcome.finalists) == any(table[case] for case, _ in machine.done)


def test_rounds_grow_longer_and_smaller():
    machine = Machine({case: 100.0 + number for number, case in enumerate(reversed(CASES))})
    halve(CASES, 16, machine.measure, machine.has_time)
    sizes = [load.num_requests * load.n_predict for _, load in machine.done]
    assert sizes == sorted(sizes)
    rounds = [sum(s == 16 * waves * tokens for s in sizes) for waves, tokens in ROUNDS]
    assert rounds[0] == len(CASES) > rounds[1] > rounds[2] > 0


@given(st.lists(st.tuples(st.sampled_from(list(SIZES)), st.integers(1, 99)), min_size=1), st.floats(1, 3))
def test_a_coarser_encoding_is_chosen_only_where_it_is_worth_it(found: list[tuple[str, int]], worth: float):
    trials = [of(encoding, speed, workers) for workers, (encoding, speed) in enumerate(found, 1)]
    chosen = choose(trials, worth).trial
    assert chosen in trials
    for other in trials:
        if other.size > chosen.size:
            assert chosen.tokens_per_second >= other.tokens_per_second * 0.97
        if other.size == chosen.size:
            assert chosen.tokens_per_second >= other.tokens_per_second * 0.97
    assert f"the best with {chosen.encoding}" in choose(trials, worth).reason


def test_the_choice_says_why():
    trials = [of("Q8_0", 200), of("Q4_0", 240), of("F16", 120)]
    assert choose(trials, 1.25).trial.encoding == "Q8_0"
    assert choose(trials, 1.25).reason.endswith(
        "F16 is 0.60 times as fast (finer); "
        "Q4_0 is 1.20 times as fast (coarser, so it must be 1.25 times as fast)."
    )
    assert choose(trials, 1.2).trial.encoding == "Q4_0"
    assert choose(trials[1:], 1.25).trial.encoding == "Q4_0"


def test_as_fast_but_for_noise_the_least_memory_wins():
    trials = [of("Q8_0", 100, 1, 900), of("Q8_0", 98, 2, 700), of("Q8_0", 90, 4, 500)]
    assert choose(trials, 1.25).trial.case.workers == 2


def test_an_encoding_no_faster_than_a_finer_one_is_dropped():
    trials = [of("Q8_0", 100, 1), of("Q8_0", 90, 2), of("Q4_0", 100, 1), of("Q4_0", 80, 2)]
    assert survivors(trials) == (trials[0].case,)


@pytest.mark.parametrize(
    ("name", "encodings"),
    [
        ("x.F16.gguf", ("F16", "Q8_0", "Q4_K_M", "Q4_0")),
        ("x.Q8_0.gguf", ("Q8_0", "Q4_K_M", "Q4_0")),
        ("x.Q4_1.gguf", ("Q4_1",)),
        ("x.gguf", ("as it is",)),
    ],
)
def test_what_is_tried_is_no_finer_than_the_file(name: str, encodings: tuple[str, ...]):
    assert coarser(Path(name)) == encodings


def test_the_rest_of_a_settings_file_stays(tmp_path: Path):
    path = tmp_path / "settings.toml"
    path.write_text("# ours\nqueue_limit = 9  # enough\nworkers = 7\n")
    for _ in range(2):
        write_settings(path, {"workers": 2, "model": 'a "b"\\c'}, "tune")
    text = path.read_text()
    assert text.startswith("# ours\nqueue_limit = 9  # enough\nworkers = 2 # tune\n")
    assert tomlkit.parse(text).unwrap() == {"queue_limit": 9, "workers": 2, "model": 'a "b"\\c'}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ["soon", "-5s", "5d", ""])
def test_what_is_no_budget(text: str):
    result = CliRunner().invoke(tune, ["--budget", text])
    assert result.exit_code == 2
    assert "is not a duration; write 90s, 5m or 1h" in result.output
