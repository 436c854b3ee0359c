"""Compiles llama.cpp for this machine and installs it: ``python3 tasks/engine/build/compile.py``.

``python -m tasks.engine.build.compile`` works too. It needs only Python, and pip in the interpreter that it
installs for. The finished wheel is kept by its recipe in ``~/.cache/inference-server/wheels``. pip's cache
would not do: it knows a wheel by name and version only, so it could return one compiled with other flags.
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # Run by its path: modules beside this file must not hide Python's own modules.
    sys.path[0] = str(Path(__file__).resolve().parents[3])

import argparse
import importlib.metadata
import json
import subprocess
from collections.abc import Iterator
from tempfile import TemporaryDirectory

from tasks.engine.build import wheel
from tasks.engine.build.compiler import CompileError, Compiler
from tasks.engine.build.pip_wheel import build
from tasks.engine.build.recipe import Recipe, recipe_for

_LOCK = Path(__file__).resolve().parents[3] / "requirements.lock"


def main() -> int:
    """Install llama-cpp-python, compiled by this machine's recipe, unless it is installed already."""
    options = _options()
    try:
        return _run(options)
    except CompileError as error:
        _say(str(error))
    except OSError as error:
        _say(f"{error}. Wheels are kept in {wheel.cache_folder()}; XDG_CACHE_HOME names another folder.")
    return 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="compile", description=main.__doc__)
    parser.add_argument(
        "--python", default=sys.executable, help="the interpreter to install for; default: this one"
    )
    parser.add_argument(
        "--lock", type=Path, default=_LOCK, help="the lock file with the version and its hash"
    )
    parser.add_argument(
        "--wheels", default="", help="install this wheel, or the one in this folder or page, instead"
    )
    parser.add_argument("--reinstall", action="store_true", help="install it even where it is there already")
    parser.add_argument("--show", action="store_true", help="print the recipe as JSON, and do nothing")
    return parser.parse_args()


def _run(options: argparse.Namespace) -> int:
    lines = _requirement(options.lock)
    version = lines[0].removeprefix("llama-cpp-python==").split(" ")[0]
    if options.wheels:
        _install_prebuilt(options.python, options.wheels, version)
        return 0
    recipe = recipe_for(Compiler.find(), version)
    if options.show:
        sys.stdout.write(json.dumps(recipe.stamp(), indent=2) + "\n")
        return 0
    _, stamp = wheel.installed(options.python)
    if (stamp or {}).get("key") == recipe.key and not options.reinstall:
        _say(f"llama-cpp-python {version} is there, compiled by this machine's recipe.")
        return 0
    _install(options.python, _made(recipe, lines, options.python))
    return 0


def _requirement(lock: Path) -> list[str]:
    """The lines of pip's requirement, with hashes if there is a lock file."""
    if lock.exists():
        return list(_locked(lock))
    if lock != _LOCK:
        raise CompileError(f"There is no lock file {lock}.")
    try:
        required = importlib.metadata.requires("concurrent-inference-server") or []
    except importlib.metadata.PackageNotFoundError as error:
        raise CompileError(f"There is no {lock}, which says the version. Name one with --lock.") from error
    return [line for line in required if line.startswith("llama-cpp-python==")]


def _locked(lock: Path) -> Iterator[str]:
    """The lines of a lock file that name llama-cpp-python and its hashes."""
    lines = iter(lock.read_text().splitlines())
    for line in lines:
        if line.startswith("llama-cpp-python=="):
            yield line
            while line.endswith("\\"):
                line = next(lines)  # noqa: PLW2901 - the same entry goes on
                yield line
            return
    raise CompileError(f"{lock} does not name llama-cpp-python. Name another lock file with --lock.")


def _made(recipe: Recipe, lines: list[str], python: str) -> Path:
    """The wheel of this recipe, from the cache or else newly compiled."""
    home = wheel.cache_folder() / recipe.key
    for kept in home.glob("*.whl"):
        if (wheel.read_stamp(kept) or {}).get("key") == recipe.key:
            _say(f"llama.cpp was compiled by this recipe before: {kept}")
            return kept
    home.mkdir(parents=True, exist_ok=True)
    _require_pip(python)
    _say("llama.cpp is compiled now; the wheel is kept for the next time.", *recipe.why)
    with TemporaryDirectory(dir=home) as folder:
        built = build(recipe, lines, python, Path(folder), home / "build.log")
        finished = Path(folder, "stamped")
        finished.mkdir()
        return wheel.stamp(built, recipe.stamp(), finished).rename(home / built.name)


def _install(python: str, path: Path) -> None:
    _pip(python, "install", "--quiet", "--no-deps", "--no-index", "--force-reinstall", str(path))


def _install_prebuilt(python: str, where: str, version: str) -> None:
    """Install a prebuilt wheel, and say how a wheel compiled here would differ."""
    source = (
        [where]
        if where.endswith(".whl")
        else ["--only-binary=:all:", "--no-index", "--find-links", where, f"llama-cpp-python=={version}"]
    )
    _pip(python, "install", "--quiet", "--no-deps", "--force-reinstall", *source)
    found, stamp = wheel.installed(python)
    if found != version:
        raise CompileError(
            f"{where} has llama-cpp-python {found}, but {version} is locked. Give a wheel of that version."
        )
    _say(f"llama-cpp-python {version} is installed from {where}.", *_notice(stamp, version))


def _notice(stamp: dict[str, object] | None, version: str) -> list[str]:
    """What to know about a prebuilt wheel; empty if a wheel compiled here would be the same."""
    instead = "To compile it for this machine instead: inference-server doctor --repair"
    if stamp is None:
        return [
            f"It has no stamp, so its flags are unknown; it may be slow here, or end with SIGSEGV. {instead}"
        ]
    try:
        differing = recipe_for(Compiler.find(), version).differences(stamp)
    except CompileError:
        return []
    return [f"It differs from a wheel compiled here: {'; '.join(differing)}.", instead] if differing else []


def _require_pip(python: str) -> None:
    if subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode:
        raise CompileError(f"{python} has no pip. Add it: {python} -m ensurepip")


def _pip(python: str, *arguments: str) -> None:
    """Run pip, which prints its own errors.

    Raises:
        CompileError: pip failed.
    """
    if subprocess.run([python, "-m", "pip", *arguments], check=False).returncode:
        raise CompileError(f"{python} -m pip {arguments[0]} failed; its output is above.")


def _say(*lines: str) -> None:
    for line in lines:
        sys.stderr.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
