"""Small and odd shapes: a context of any shape that the settings allow is measured, starts and answers."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tasks.contract.messages import Sampling
from tasks.engine.costs.measure import measure
from tasks.engine.costs.threads import CorePool
from tasks.engine.llama.context import Context
from tasks.engine.llama.model import Model
from tasks.engine.loop import Engine, EngineOptions
from tasks.engine.sequence import Job
from tests.e2e.outputs import Outputs
from tests.e2e.serving import Served
from tests.tiny_models import FAMILIES, attends

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    write = FAMILIES[request.param]
    return Model(write(tmp_path_factory.mktemp("tiny") / f"{request.param}.gguf"))


@pytest.mark.parametrize("n_batch", [1, 3, 32, 33, 100, 127, 2048])
@pytest.mark.parametrize(("slots", "n_ctx"), [(1, 16), (1, 512), (3, 17), (40, 64)])
def test_a_context_of_any_shape_is_measured_and_answers(
    tiny: Model, n_batch: int, slots: int, n_ctx: int
) -> None:
    outputs = Outputs()
    engine = Engine(
        lambda: Context(tiny, slots=slots, n_ctx=n_ctx, n_batch=n_batch, threads=1),
        outputs,
        CorePool(1, 1).member(0),
        options=EngineOptions(measure=lambda context: measure(context, (1,))[0]),
    )
    engine.start()
    prompt = tuple(3 + i % 200 for i in range(n_ctx - 4))
    for number in range(slots + 1):
        engine.submit(Job(str(number), prompt, 4, Sampling(temperature=0), ignore_eos=True))
    outputs.wait(slots + 1)
    engine.close()
    assert {len(tokens) for tokens in outputs.tokens.values()} == {4}


@pytest.mark.parametrize(
    "shape",
    [("--n-batch", "32", "--slots", "1", "--n-ctx", "16"), ("--n-batch", "33", "--slots", "3")],
    ids=["smallest", "odd"],
)
def test_a_service_of_a_small_shape_proves_its_kernels_measures_and_answers(
    shape: tuple[str, ...], tmp_path: Path
) -> None:
    model = attends(tmp_path / "tiny.gguf")
    options = ("--workers", "1", "--threads", "1", "--model", str(model), *shape)
    served = Served(tmp_path / "state", *options, INFERENCE_STEP_SHAPING="true").wait_ready()
    body = {"prompt": "Hi", "max_tokens": 4, "ignore_eos": True}
    answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60).raise_for_status().json()
    assert answer["usage"]["completion_tokens"] == 4
    assert served.end() == 0
