"""Proves whether a compiler builds llama.cpp's use of AMX soundly, with a program for any x86-64 machine.

The instruction ``ldtilecfg`` reads a structure of 64 bytes that says how AMX's tiles are shaped. The header
of older gcc tells the optimiser that the instruction reads only 8 bytes (``_tile_loadconfig``). So the
optimiser drops the stores that fill the other bytes as dead. The instruction then faults, and the first batch
ends with SIGSEGV. Without dead store elimination (``-fno-tree-dse -fno-dse``) the stores stay. Clang's
builtin is sound, and Clang does not know these flags.

The proof takes a source that fills the structure as ggml-cpu/amx/mmq.cpp does, and compiles it to assembly.
This machine may lack ``ldtilecfg``, so the proof replaces it in the assembly by moves that copy the 64 bytes
that it would have read. The program then compares the copy with the values in the source.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tasks.engine.build.compiler import Compiler
from tasks.engine.build.wheel import cache_folder

WITHOUT_DEAD_STORES = ("-fno-tree-dse", "-fno-dse")
WITHOUT_AMX = ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")
_AMX = ("-O3", "-fPIC", "-std=gnu++17", "-mamx-tile", "-mamx-int8")

#: ``probe_init`` is ggml_tile_config_init of ggml-cpu/amx/mmq.cpp; the volatile arrays are for the moves
#: below. Another function reads the arrays: volatile reads in the same function would keep the stores that
#: are being tested.
SOURCE = """
#include <immintrin.h>
struct tile_config_t {
    unsigned char palette_id = 0;
    unsigned char start_row = 0;
    unsigned char reserved_0[14] = {0};
    unsigned short colsb[16] = {0};
    unsigned char rows[16] = {0};
};
extern "C" {
__attribute__((visibility("hidden"))) volatile unsigned char probe_seen[64];
__attribute__((visibility("hidden"))) volatile unsigned char probe_saved[32];
}
inline void probe_init(void) {
    static thread_local bool done = false;
    if (done) {
        return;
    }
    alignas(64) tile_config_t tc = {};
    tc.palette_id = 1;
    tc.start_row = 0;
    tc.rows[0] = 8;   tc.colsb[0] = 64;
    tc.rows[1] = 8;   tc.colsb[1] = 64;
    tc.rows[2] = 16;  tc.colsb[2] = 32;
    tc.rows[3] = 16;  tc.colsb[3] = 32;
    tc.rows[4] = 16;  tc.colsb[4] = 64;
    tc.rows[5] = 16;  tc.colsb[5] = 64;
    tc.rows[6] = 16;  tc.colsb[6] = 64;
    tc.rows[7] = 16;  tc.colsb[7] = 64;
    _tile_loadconfig(&tc);
    done = true;
}
__attribute__((noinline)) void probe_batch() { probe_init(); }
int main() {
    static const volatile unsigned char expected[64] = {
        1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        64, 0, 64, 0, 32, 0, 32, 0, 64, 0, 64, 0, 64, 0, 64, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        8, 8, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0};
    probe_batch();
    for (int i = 0; i < 64; ++i) {
        if (probe_seen[i] != expected[i]) {
            return 1;
        }
    }
    return 0;
}
"""

_LOAD = re.compile(r"^[ \t]*ldtilecfg[ \t]+(\S.*?)[ \t]*(?:#.*)?$", re.MULTILINE)
#: Copies 64 bytes and leaves every register, the flags and the stack as they were.
_COPY = r"""
	movq %rax, probe_saved(%rip)
	leaq \1, %rax
	movups %xmm0, 16+probe_saved(%rip)
	movups (%rax), %xmm0
	movups %xmm0, probe_seen(%rip)
	movups 16(%rax), %xmm0
	movups %xmm0, 16+probe_seen(%rip)
	movups 32(%rax), %xmm0
	movups %xmm0, 32+probe_seen(%rip)
	movups 48(%rax), %xmm0
	movups %xmm0, 48+probe_seen(%rip)
	movups 16+probe_saved(%rip), %xmm0
	movq probe_saved(%rip), %rax
"""


@dataclass(frozen=True, slots=True)
class Tiles:
    """How to build AMX."""

    flags: tuple[str, ...]
    is_left_out: bool
    why: str


def examine_tiles(compiler: Compiler, flags: Iterable[str] = ()) -> Tiles:
    """The first way to build AMX that is proved sound, else without AMX; ``flags`` are the user's for C++."""
    own = tuple(flags)
    if compiler.machine != "x86_64" or not compiler.accepts(SOURCE, [*own, *_AMX]):
        return Tiles((), is_left_out=False, why="")
    if fills_tiles(compiler, own):
        return Tiles(
            (), is_left_out=False, why="AMX is built soundly without extra flags; a test program ran."
        )
    if fills_tiles(compiler, (*own, *WITHOUT_DEAD_STORES)):
        return Tiles(
            WITHOUT_DEAD_STORES,
            is_left_out=False,
            why=f"{' '.join(WITHOUT_DEAD_STORES)}: without them {compiler} drops the stores that fill AMX's "
            "tile configuration, and the first batch would end with SIGSEGV; a test program showed both.",
        )
    return Tiles(
        WITHOUT_AMX,
        is_left_out=True,
        why=f"AMX is left out: {compiler} does not fill its tile configuration with any known flags.",
    )


def fills_tiles(compiler: Compiler, flags: Iterable[str]) -> bool:
    """Whether all 64 bytes are set when ``ldtilecfg`` would read them; False if that can't be tested."""
    # Some machines don't run programs from /tmp.
    with TemporaryDirectory(dir=_scratch()) as folder:
        source, assembly, program = (Path(folder, name) for name in ("tiles.cpp", "tiles.s", "tiles"))
        source.write_text(SOURCE)
        if not _runs([*compiler.cxx, *flags, *_AMX, "-S", str(source), "-o", str(assembly)]):
            return False
        text, num_loads = _LOAD.subn(_COPY, assembly.read_text())
        assembly.write_text(text)
        # "-x assembler" would apply to the libraries too; the suffix .s is enough.
        return (
            num_loads > 0
            and _runs([*compiler.cxx, str(assembly), "-o", str(program)])
            and _runs([str(program)])
        )


def _scratch() -> Path | None:
    """A folder in the user's home if it can be made; else ``None``, for the system's temporary folder."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder


def _runs(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False
