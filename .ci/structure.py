#!/usr/bin/env python3
"""Prints how the tree is built, and fails beyond the bounds: ``python .ci/structure.py``.

Files in a folder, circles of imports, long functions, names that occur twice, and words that the project
keeps for one meaning (``.ci/words.toml``).
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("service", "tasks")
#: Modules of a folder, its __init__ not counted; lines of a function, its docstring not counted.
MAX_FILES, MAX_LINES = 12, 30
WORDS = tomllib.loads((ROOT / ".ci" / "words.toml").read_text())


def main() -> int:
    """Print each figure, then what is beyond its bound; exit status 1 if anything is."""
    modules = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    faults = list(
        chain(_many_files(modules), _circles(), _long_functions(modules), _same_names(modules), _words())
    )
    for fault in faults:
        print(f"beyond the bounds: {fault}")
    return 1 if faults else 0


def _many_files(modules: list[Path]) -> Iterator[str]:
    counts = Counter(path.parent for path in modules if path.name != "__init__.py")
    folder, most = counts.most_common(1)[0]
    print(
        f"{len(modules)} modules in {len(counts)} folders; most in one: {most} ({folder.relative_to(ROOT)})"
    )
    for each, count in counts.items():
        if count > MAX_FILES:
            yield f"{each.relative_to(ROOT)} has {count} modules, {MAX_FILES} are allowed"


def _circles() -> Iterator[str]:
    graph = grimp.build_graph(*FOLDERS, exclude_type_checking_imports=True)
    print(f"{graph.count_imports()} imports")
    try:
        TopologicalSorter(
            {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
        ).prepare()
    except CycleError as error:
        yield f"a circle of imports: {' <- '.join(error.args[1])}"


def _long_functions(modules: list[Path]) -> Iterator[str]:
    sizes = [(_size(node), node, path) for path in modules for node in _functions(path)]
    ordered = sorted(size for size, _, _ in sizes)
    print(f"{len(sizes)} functions, median {ordered[len(ordered) // 2]} lines, longest {ordered[-1]}")
    for size, node, path in sizes:
        if size > MAX_LINES:
            where = f"{path.relative_to(ROOT)}:{node.lineno}"
            yield f"{where} {node.name} has {size} lines, {MAX_LINES} are allowed"


def _functions(path: Path) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))


def _size(node: ast.FunctionDef) -> int:
    has_docstring = ast.get_docstring(node) is not None
    start = node.body[0].end_lineno if has_docstring else node.lineno - 1
    return (node.end_lineno or 0) - (start or 0)


def _same_names(modules: list[Path]) -> Iterator[str]:
    stems = Counter(path.stem for path in modules if path.stem not in ("__init__", "__main__"))
    twice = {name: count for name, count in stems.items() if count > 1}
    print(f"names of more than one file: {', '.join(sorted(twice)) or 'none'}")
    for name in twice.keys() - set(WORDS["names"]["allowed"]):
        yield f"{twice[name]} files are named {name}.py"


def _words() -> Iterator[str]:
    """Sentences with a word in another than its one meaning."""
    texts = [path for pattern in WORDS["texts"] for path in sorted(ROOT.glob(pattern))]
    print(f"{len(texts)} texts, {len(WORDS['words'])} words kept for one meaning")
    for path in texts:
        text = path.read_text()
        for entry in WORDS["words"]:
            for found in re.finditer(entry["not"], text):
                line = text.count("\n", 0, found.start()) + 1
                yield f"{path.relative_to(ROOT)}:{line} {found[0]!r}: {entry['say']}"


if __name__ == "__main__":
    sys.exit(main())
