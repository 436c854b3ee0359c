"""Builds named on the command line: what is known about them, and the report of their figures."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from loadtest.bare.build import Build, BuildError, Variation, parse_builds
from loadtest.bare.native import features_on, weight_buffers
from loadtest.builds.busy import one_core_busy
from loadtest.builds.report import Measurement, Report, as_json, markdown
from loadtest.compare import told
from loadtest.compare.report import About, Comparison
from loadtest.compare.report import markdown as compared
from loadtest.compare.servers import LlamaServer, Setting, Variant
from loadtest.same_texts.verdict import Difference, Texts, difference, report, shifts_of
from loadtest.tables import comparison

pytestmark = pytest.mark.unit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "libllama.so").touch()
    return tmp_path


def test_builds_and_ways_to_use_them(folder: Path):
    plain, varied, kernels = parse_builds(
        [f"dl={folder}", "dl:fa=off,kv=q8_0,repack=off", f"amx={folder}:sapphirerapids"]
    )
    assert plain == Build("dl", folder, Variation())
    assert varied == Build(
        "dl:fa=off,kv=q8_0,repack=off", folder, Variation(None, "off", "q8_0", repack=False)
    )
    assert kernels == Build("amx", folder, Variation("sapphirerapids"))


@pytest.mark.parametrize(
    ("texts", "told_to_user"),
    [
        (["a=/nowhere/at/all"], "no libllama.so here"),
        (["a:fa=off"], "names no folder"),
        (["/some/folder"], "names no folder"),
        (["a={0}", "a={0}"], "two builds are named 'a'"),
        (["a={0}:threads=3"], "'threads' is none of"),
        (["a={0}", "a:fa=maybe"], "fa is on, off or auto"),
        (["a={0}", "a:repack=maybe"], "repack is on or off"),
    ],
)
def test_a_build_that_cannot_be_used_is_refused(texts: list[str], told_to_user: str, folder: Path):
    with pytest.raises(BuildError, match=told_to_user):
        parse_builds([text.format(folder) for text in texts])


def test_a_process_that_fails_says_why(folder: Path):
    with pytest.raises(BuildError, match="broken: "):
        Build("broken", folder).ask("loadtest.bare.speed", {"model": "none"})


def test_the_busy_program_is_gone_afterwards():
    before = psutil.Process().children()
    with one_core_busy():
        (program,) = set(psutil.Process().children()) - set(before)
    assert not program.is_running()


def test_what_llama_cpp_says_of_its_kernels():
    assert features_on("CPU : SSE3 = 1 | AVX2 = 1 | AMX_INT8 = 0 | REPACK = 1 | ") == "SSE3, AVX2, REPACK"
    log = [
        "load_tensors:  CPU_Mapped model buffer size =  28.69 MiB",
        "load_tensors: AMX model buffer size = 99 MiB",
    ]
    assert weight_buffers(log) == "CPU_Mapped, AMX"
    shown = (
        "0.00 I cmn  system_info: n_threads = 2 / 2 | CPU : AVX2 = 1 | AMX_INT8 = 1 | FMA = 0 |\n"
        + "\n".join(log)
    )
    assert told.llama_server_kernels(shown) == "AVX2, AMX_INT8, weights in CPU_Mapped, AMX"
    assert told.llama_server_kernels("nothing") == told.UNKNOWN_KERNELS


def test_compiler_and_flags_are_told_as_far_as_they_are_known(tmp_path: Path):
    assert told.build_of(tmp_path) == told.UNKNOWN_FLAGS
    (tmp_path / "build.json").write_text("no JSON")
    assert told.build_of(tmp_path) == told.UNKNOWN_FLAGS
    facts = {
        "compiler": "gcc 12",
        "cmake": ["-DX=ON"],
        "c_flags": "-fno-dse",
        "variants": ["x64", "zen4"],
    }
    (tmp_path / "build.json").write_text(json.dumps(facts))
    assert told.build_of(tmp_path) == "gcc 12, flags -DX=ON -fno-dse, kernels for x64, zen4"
    assert told.build_text({"compiler": "gcc 12"}) == "gcc 12, unknown flags"


def test_kernels_of_our_children():
    children = [{"kernels": "zen4"}, {"kernels": "zen4"}, {"kernels": "haswell"}]
    assert told.kernels_of({"children": children}) == "zen4; haswell"
    assert told.kernels_of({"children": [{}]}) == told.kernels_of({"children": []}) == told.UNKNOWN_KERNELS


def test_version_and_compiler_of_llama_server():
    shown = "version: 9999 (abc)\nbuilt with GNU 12.2.0 for Linux x86_64\n"
    assert told.llama_server_version(shown) == "9999 (abc), built with GNU 12.2.0 for Linux x86_64"
    assert told.llama_server_version("") == "unknown version"


def test_a_variants_code_is_that_of_its_folder_wherever_the_benchmark_runs(tmp_path: Path):
    """Without -P Python would import from the working directory first."""
    (tmp_path / "service").mkdir()
    server = Variant("before", (), tmp_path).server(Setting(Path("model.gguf"), 512, 4, 1))
    assert server.command[1] == "-P"
    assert dict(server.env) == {"PYTHONPATH": str(tmp_path)}


def test_variants_of_this_server_have_a_label(tmp_path: Path):
    (tmp_path / "service").mkdir()
    assert Variant.parse("off=--no-speculation --slots 4") == Variant(
        "off", ("--no-speculation", "--slots", "4")
    )
    assert Variant.parse(f"before=@{tmp_path} --slots 4") == Variant("before", ("--slots", "4"), tmp_path)
    assert Variant.parse("same=") == Variant("same")
    for wrong in ("--no-speculation", "=x", "gone=@/nowhere"):
        with pytest.raises(ValueError, match=r"is not LABEL=ARGUMENTS|has no folder"):
            Variant.parse(wrong)


def test_llama_servers_with_a_label_and_arguments():
    assert LlamaServer.parse("/a b/llama-server") == LlamaServer("llama-server", Path("/a b/llama-server"))
    assert LlamaServer.parse("/odd=name/it") == LlamaServer("llama-server", Path("/odd=name/it"))
    assert LlamaServer.parse("packaged=/x/it --no-repack -fa 'on'") == LlamaServer(
        "packaged", Path("/x/it"), ("--no-repack", "-fa", "on")
    )


def test_ratios_are_of_the_same_round():
    lines = comparison(
        "at once",
        ["a", "b", "c"],
        {"4": {"a": [10.0, 30.0, 20.0], "b": [20.0, 30.0, 10.0], "c": [5.0, 5.0, 5.0]}},
    )
    assert lines == [
        "| at once | a | b | c | a / b | a / c |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| 4 | **20** (10–30) | **20** (10–30) | **5** (5–5) | **1.00** (0.50–2.00) | **4.00** (2.00–6.00) |",  # noqa: RUF001
    ]


def test_the_report_of_builds():
    measurements = tuple(
        Measurement(number, build, "m.gguf", at_once, prefill=100.0, decode=speed * at_once)
        for number in (1, 0)
        for build, speed in (("a", 20.0), ("b", 10.0))
        for at_once in (16, 1)
    )
    found = Report("the command", is_busy=True, builds={"a": "gcc", "b": "clang"}, measurements=measurements)
    lines = markdown(found).splitlines()
    assert "- b: clang" in lines
    decode, prefill = (lines.index(f"### m.gguf: {title}, tok/s") for title in ("decode", "prefill"))
    assert lines[decode + 4] == "| 1 | **20** (20–20) | **10** (10–10) | **2.00** (2.00–2.00) |"  # noqa: RUF001
    assert lines[decode + 5].startswith("| 16 | **320**")
    assert lines[prefill + 4].startswith("| 1 | **100**")
    assert "another program computes" in markdown(found)
    assert json.loads(as_json(found))["builds"] == {"a": "gcc", "b": "clang"}


def test_a_comparison_names_build_and_kernels_of_each_server():
    found = Comparison("the command", "m.gguf", {"ours": About("1.0", "gcc 12, flags -O3", "zen4")}, ())
    assert "- ours: 1.0; llama.cpp: gcc 12, flags -O3; kernels: zen4" in compared(found).splitlines()


A = [[(1, 9.0), (2, 8.0)], [(5, 3.0), (6, 2.75)], [(7, 1.0), (8, 0.0)]]
B = [[(1, 9.5), (2, 8.0)], [(6, 3.0), (5, 2.875)], [(9, 1.0), (7, 0.0)]]


def test_where_texts_go_apart():
    found = difference("p", A, B)
    assert found == Difference("p", 1, (5, 6), ((3.0, 2.75), (3.0, 2.875)))
    assert found.leads == (0.25, 0.125)
    assert found.is_near_tie(0.25)
    assert not found.is_near_tie(0.2)
    assert difference("p", A, A) is None
    assert list(shifts_of(A, B)) == [0.5]


def test_a_token_that_the_other_build_finds_unlikely_is_no_near_tie():
    found = difference("p", [[(1, 9.0), (2, 8.0)]], [[(3, 9.0), (1, 8.9)]])
    assert found is not None
    assert found.leads[0] is None
    assert not found.is_near_tie(100)


def test_the_report_of_texts():
    found = difference("p", A, B)
    assert found is not None
    texts = Texts(("amx", "plain"), ("k1", "k2"), {5: " five", 6: " six"}, 3, (found,), (0.5,))
    assert list(report("m.gguf", texts, 0.25)) == [
        "m.gguf: amx (k1) and plain (k2)",
        "  2 of 3 texts are equal",
        "  the same token's logit differs by 0.5000 (median), 0.5000 at most",
        "  'p', token 2: a near-tie",
        "    amx: ' five' 3.0000, ' six' 2.7500, 0.2500 apart",
        "    plain: ' six' 3.0000, ' five' 2.8750, 0.1250 apart",
    ]
    assert not texts.is_same(0.2)
