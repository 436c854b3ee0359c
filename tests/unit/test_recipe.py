"""The flags that llama.cpp is compiled with, for each compiler."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tasks.engine.build.compiler import CompileError, Compiler
from tasks.engine.build.recipe import Recipe, recipe_for
from tasks.engine.build.tiles import WITHOUT_AMX, WITHOUT_DEAD_STORES, examine_tiles, fills_tiles
from tests.unit.compiling import compiler_script, real_compiler, script

pytestmark = pytest.mark.unit

GCC = '#define __GNUC__ 14\n#define __VERSION__ "14.2.0"'
CLANG = '#define __GNUC__ 4\n#define __clang__ 1\n#define __VERSION__ "Clang 19.1.0"'
ARM = "aarch64-linux-gnu"
VARIANTS = "-DGGML_CPU_ALL_VARIANTS=ON"

#: A header whose _tile_loadconfig reads as many bytes as the compiler's optimiser left.
TILE_HEADER = """
#include <immintrin.h>
static inline void load_tiles(const void *config) {{
    unsigned char left[64] = {{0}};
    __builtin_memcpy(left, config, {num_bytes});
    __asm__ volatile("ldtilecfg %0" :: "m"(*(const unsigned char (*)[64])left));
}}
#define _tile_loadconfig load_tiles
"""


def recipe(environ: dict[str, str], version: str = "0.3.36") -> Recipe:
    return recipe_for(Compiler.find(environ), version, environ)


def compiler_that_leaves(num_bytes: int, folder: Path) -> dict[str, str]:
    """CC and CXX: the real compiler, made to fill ``num_bytes`` of the tile configuration with any flags."""
    header = folder / "tiles.h"
    header.write_text(TILE_HEADER.format(num_bytes=num_bytes))
    text = f"""
for flag; do
    shift
    case $flag in
    -fno-tree-dse | -fno-dse) ;;
    -S) set -- "$@" -S -include '{header}' ;;
    *) set -- "$@" "$flag" ;;
    esac
done
exec '{shutil.which("c++")}' "$@"
"""
    path = str(script(folder / "c++", text))
    return {"CC": path, "CXX": path}


@pytest.mark.parametrize(
    ("target", "processor"),
    [
        (ARM, "aarch64"),
        ("aarch64-redhat-linux", "aarch64"),
        ("aarch64-alpine-linux-musl", "aarch64-musl"),
    ],
)
def test_a_wheel_is_for_one_c_library(target: str, processor: str, tmp_path: Path):
    assert recipe(compiler_script(tmp_path, GCC, target)).processor == processor


def test_the_flags_for_the_compiler_that_is_here_are_proved():
    compiler = real_compiler({})
    made = recipe_for(compiler, "0.3.36", {})
    if made.left_out:
        assert not fills_tiles(compiler, ())
        assert not fills_tiles(compiler, WITHOUT_DEAD_STORES)
    else:
        assert fills_tiles(compiler, made.cxx_flags)
        assert made.cxx_flags in ((), WITHOUT_DEAD_STORES)


def test_the_proof_tells_sound_from_unsound(tmp_path: Path):
    real_compiler({})
    (tmp_path / "sound").mkdir()
    assert fills_tiles(Compiler.find(compiler_that_leaves(64, tmp_path / "sound")), ())
    for num_bytes in (1, 8, 55):  # the last byte that is not zero is the 56th
        assert not fills_tiles(Compiler.find(compiler_that_leaves(num_bytes, tmp_path)), ())


def test_a_compiler_that_can_not_build_amx_goes_without(tmp_path: Path):
    real_compiler({})
    made = recipe(compiler_that_leaves(8, tmp_path))
    assert made.cxx_flags == made.c_flags == WITHOUT_AMX
    assert made.left_out == ("llama_cpp/lib/libggml-cpu-sapphirerapids.so",)
    assert any("AMX is left out" in reason for reason in made.why)


def test_a_compiler_that_knows_no_amx_needs_no_flags(tmp_path: Path):
    compiler = Compiler.find(compiler_script(tmp_path, GCC, "x86_64-linux-gnu", compiles=False))
    assert examine_tiles(compiler).flags == ()
    assert not examine_tiles(compiler).is_left_out


@pytest.mark.parametrize(("predefined", "named"), [(GCC, "gcc 14.2.0"), (CLANG, "clang Clang 19.1.0")])
def test_variants_where_the_compiler_knows_them(predefined: str, named: str, tmp_path: Path):
    made = recipe(compiler_script(tmp_path, predefined, ARM))
    assert made.compiler == named
    assert VARIANTS in made.arguments
    assert made.processor == "aarch64"
    assert made.cxx_flags == ()


def test_this_processor_alone_where_the_compiler_is_too_old(tmp_path: Path):
    made = recipe(compiler_script(tmp_path, GCC, ARM, compiles=False))
    assert VARIANTS not in made.arguments
    assert "-DGGML_NATIVE=ON" in made.arguments
    assert made.processor != "aarch64"
    assert "too old" in made.why[0]


@pytest.mark.parametrize(
    ("predefined", "target"),
    [("", ARM), (CLANG, "arm64-apple-darwin24.0.0"), (GCC, "riscv64-linux-gnu")],
    ids=["unknown compiler", "macOS", "unknown processor"],
)
def test_defaults_where_nothing_better_is_known(predefined: str, target: str, tmp_path: Path):
    made = recipe(compiler_script(tmp_path, predefined, target))
    assert made.arguments == []
    assert "defaults" in made.why[0]


def test_compilers_of_two_kinds_are_refused(tmp_path: Path):
    (tmp_path / "other").mkdir()
    mixed = compiler_script(tmp_path, GCC, ARM) | {
        "CXX": compiler_script(tmp_path / "other", CLANG, ARM)["CXX"]
    }
    with pytest.raises(CompileError, match=r"CC is .*gcc.* and CXX is .*clang"):
        Compiler.find(mixed)


def test_without_a_compiler_the_error_says_how_to_get_one():
    with pytest.raises(CompileError, match=r"nobody-has-this is not there\.\nInstall one"):
        Compiler.find({"CC": "nobody-has-this"})


def test_the_environment_adds_to_the_recipe_and_to_its_key(tmp_path: Path):
    environ = compiler_script(tmp_path, GCC, ARM)
    plain = recipe(environ)
    more = recipe(environ | {"CMAKE_ARGS": "-DGGML_VULKAN=ON '-DNAME=two words'", "CXXFLAGS": "-g1"})
    assert more.cmake == (*plain.cmake, "-DGGML_VULKAN=ON", "-DNAME=two words")
    assert "-DCMAKE_CXX_FLAGS=-g1" in more.arguments
    assert len({plain.key, more.key, recipe(environ, "0.3.37").key}) == 3
    assert recipe(environ).key == plain.key


@pytest.mark.parametrize("name", ["CMAKE_CXX_COMPILER", "CMAKE_C_FLAGS:STRING", "CMAKE_TOOLCHAIN_FILE"])
def test_what_would_undo_the_recipe_is_refused(name: str, tmp_path: Path):
    with pytest.raises(CompileError, match="CC and CXX"):
        recipe(compiler_script(tmp_path, GCC, ARM) | {"CMAKE_ARGS": f"-D{name}=x"})
