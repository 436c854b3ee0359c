"""The command line with the real model: serve's life and end, generate, bench, bad files."""

from __future__ import annotations

import http.client
import json
import os
import pty
import re
import signal
import subprocess
import tempfile
import threading
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from service.client.api_client import chat_body, measure, parse, served_model, stream, text_of
from service.supervisor.programs.probe import answers_200
from tasks.contract.exit_status import HOPELESS
from tests.e2e.serving import COMMAND, Served, are_gone, clean_environment, run_command
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

Start = Callable[..., Served]


def ask(served: Served, prompt: str = "Say hello.", max_tokens: int = 8) -> str:
    return measure(
        served.url, chat_body(served_model(served.url), prompt, None, max_tokens, temperature=0)
    ).text


def test_serve_ends_without_a_trace(start_service: Start):
    served = start_service().wait_ready()
    assert ask(served)
    family = served.family()
    assert len(family) >= 5
    assert served.end(signal.SIGINT) == 0, served.output.read_text()
    assert are_gone(family)


def test_serve_drains(start_service: Start):
    served = start_service().wait_ready()
    body = chat_body(
        served_model(served.url), "Tell a long story.", None, 200, temperature=0, ignore_eos=True
    )
    chunks = stream(served.url, body)
    first = parse(next(chunk for chunk in chunks if text_of(parse(chunk))))
    served.process.send_signal(signal.SIGTERM)
    events = [first, *(parse(chunk) for chunk in chunks)]
    usage = next(event["usage"] for event in reversed(events) if event.get("usage"))
    assert usage["completion_tokens"] == 200
    assert served.process.wait(timeout=60) == 0


def test_serve_leaves_nothing_when_it_is_killed(start_service: Start):
    served = start_service().wait_ready()
    family = served.family()
    served.process.kill()
    served.process.wait()
    wait_until(lambda: are_gone(family))
    again = start_service(port=served.port).wait_ready()
    assert again.end() == 0


def test_serve_leaves_nothing_when_its_keeper_is_killed_first(start_service: Start):
    """And the next one takes the state at once, with what the first one accepted."""
    served = start_service(name="kept").wait_ready()
    location, family = _submit(served), served.family()
    for victim in (served.part("keeper.py"), family[0]):
        victim.kill()
    again = start_service(name="kept", port=served.port).wait_ready()
    wait_until(lambda: are_gone(family))
    wait_until(answers_200(f"{again.url}{location}"))
    assert again.end() == 0


def test_a_state_with_a_long_path_works(start_service: Start, monkeypatch: pytest.MonkeyPatch):
    """A Unix socket's path has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="r-") as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        served = start_service(name="/".join(["quite-a-long-name"] * 7)).wait_ready()
        [place] = Path(runtime).iterdir()
        assert place.stat().st_mode & 0o777 == 0o700
        assert f"Starting Valkey on {place / 'valkey.sock'}" in served.output.read_text()
        assert ask(served)
        assert served.end() == 0


def test_a_second_service_on_one_state_or_port_says_so(start_service: Start):
    served = start_service(name="first").wait_ready()
    same_port = start_service(name="second", port=served.port)
    assert same_port.process.wait(timeout=60) == 1
    assert f"Can't listen on 127.0.0.1, port {served.port}" in same_port.output.read_text()
    refused = run_command("serve", "--state-dir", str(served.state), "--port", "0")
    assert (refused.returncode, "--port" in refused.stderr) == (1, True)
    same_state = run_command("serve", "--state-dir", str(served.state), "--port", str(free_port()))
    assert same_state.returncode == 1
    assert f"Process {served.process.pid} already serves" in same_state.stderr
    assert ask(served)
    assert served.end() == 0


@pytest.mark.parametrize("word", ["celery", "gunicorn", "valkey-server"])
def test_a_part_that_dies_comes_back(start_service: Start, word: str):
    served = start_service().wait_ready()
    part = served.part(word)
    part.kill()
    wait_until(lambda: "starting it again" in served.output.read_text())
    wait_until(lambda: served.part(word).pid != part.pid)
    wait_until(answers_200(f"{served.url}/readyz"), timeout=60)
    wait_until(lambda: _answers(served), timeout=60)
    assert served.end() == 0, served.output.read_text()


def _answers(served: Served) -> bool:
    try:
        return bool(ask(served))
    except Exception:
        return False


def test_accepted_work_survives_a_restart(start_service: Start):
    """The record is in the append-only file, and the next service on the same state has it."""
    served = start_service(name="kept").wait_ready()
    location = _submit(served)
    assert served.end() == 0
    again = start_service(name="kept").wait_ready()
    wait_until(answers_200(f"{again.url}{location}"))
    assert again.end() == 0


def _submit(served: Served) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
    body = {"model": served_model(served.url), "prompt": "Once", "max_tokens": 4}
    headers = {"Content-Type": "application/json", "Prefer": "respond-async"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    response = connection.getresponse()
    assert response.status == 202, response.read()
    return str(response.getheader("Location"))


@pytest.mark.parametrize("kind", ["missing", "truncated", "not GGUF"])
def test_a_bad_model_file_is_one_line(kind: str, tmp_path: Path, model_path: Path):
    path = tmp_path / "model.gguf"
    if kind != "missing":
        path.write_bytes(model_path.read_bytes()[:1_000_000] if kind == "truncated" else b"hello" * 1000)
    for command in ("serve", "worker"):
        state = ["--state-dir", str(tmp_path / "state"), "--port", "65431"] if command == "serve" else []
        done = run_command(command, "--model", str(path), *state)
        assert done.returncode == HOPELESS
        assert len(done.stderr.strip().splitlines()) == 1
        assert str(path) in done.stderr


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://:secret@127.0.0.1:1/0", "No Redis answers at 127.0.0.1:1/0"),
        ("http://127.0.0.1", "--redis-url: must begin with redis://"),
        ("redis://:secret@127.0.0.1/x", "--redis-url: has a database that isn't a number"),
    ],
)
def test_a_redis_that_is_not_there_is_one_line(url: str, told: str, tmp_path: Path):
    port = str(free_port())
    done = run_command("serve", "--redis-url", url, "--port", port, "--state-dir", str(tmp_path))
    assert done.returncode == 1
    assert told in done.stderr
    assert "secret" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_generate_streams_and_shows_timings(service: Served):
    done = run_command("generate", "--url", service.url, "--prompt", "Say hello.", "--n-predict", "12")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "to the first token, ms" in done.stderr


def test_generate_prints_while_it_comes(service: Served):
    """The text is there before the answer is complete: 400 tokens take longer than the first one."""
    arguments = ["generate", "--url", service.url, "--prompt", "Count.", "--n-predict", "400"]
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, env=clean_environment()) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        assert process.poll() is None
        process.kill()


def test_generate_with_a_service_of_its_own(model_path: Path):
    done = run_command("generate", "--model", str(model_path), "--prompt", "Say hello.", "--n-predict", "4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_bench_measures_a_running_service(service: Served):
    options = ("--requests", "4", "--concurrency", "2", "--n-predict", "8", "--json")
    done = run_command("bench", "--url", service.url, *options)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["num_requests"], told["num_failed"], told["num_tokens"]) == (4, 0, 32)
    assert told["tokens_per_second"] > 0


def test_bench_starts_a_service_of_its_own():
    done = run_command("bench", "--workers", "1", "--slots", "2", "--requests", "3", "--n-predict", "4")
    assert done.returncode == 0, done.stderr
    assert "time to first token, ms" in done.stdout
    assert "0 requests failed" in done.stdout


def test_a_sweep_writes_its_table_and_plots(model_path: Path, tmp_path: Path):
    """Two services, one after the other, on encodings of one file."""
    model = tmp_path / "tiny.Q8_0.gguf"
    model.symlink_to(model_path)
    sizes = ("--shapes", "1x1", "--encodings", "Q8_0,Q4_0", "--loads", "2", "--n-predict", "4")
    out = tmp_path / "out"
    done = run_command(
        "bench",
        "--sweep",
        "--model",
        str(model),
        "--n-ctx",
        "256",
        *sizes,
        "--out",
        str(out),
        models_dir=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in out.iterdir()} >= {"sweep.md", "sweep.csv", "sweep.json"}
    rows = json.loads((out / "sweep.json").read_text())["rows"]
    assert [row["encoding"] for row in rows] == ["Q8_0", "Q4_0"]
    assert all(row["num_failed"] == 0 and row["tokens_per_second"] > 0 < row["memory_mib"] for row in rows)
    assert (tmp_path / "tiny.Q4_0.gguf").stat().st_size < model.stat().st_size


def test_tune_writes_a_file_that_serve_reads(start_service: Start, model_path: Path, tmp_path: Path):
    """With a budget of 0, one setting is measured and chosen."""
    settings = tmp_path / "settings.toml"
    settings.write_text("queue_limit = 7\n")
    sizes = ("--budget", "0", "--concurrency", "2", "--n-ctx", "256", "--encodings", "Q8_0")
    done = run_command("tune", *sizes, "--model", str(model_path), "--out", str(settings))
    assert done.returncode == 0, done.stderr
    assert "Chosen: Q8_0" in done.stdout
    chosen = tomllib.loads(settings.read_text())
    assert (chosen["model"], chosen["queue_limit"]) == (str(model_path), 7)
    served = start_service("--settings", str(settings), "--n-ctx", "256").wait_ready()
    assert f"Settings from {settings}" in served.output.read_text()
    assert len(served.part("celery").children()) == chosen["workers"]
    assert re.search(r"^inference_queue_limit\S* 7\.0$", _get(served, "/metrics"), re.MULTILINE)
    assert served.end() == 0


def _get(served: Served, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    connection.request("GET", path)
    return connection.getresponse().read().decode()


@pytest.mark.parametrize("bad", [("--shapes", "two"), ("--loads", "0"), ("--url", "http://127.0.0.1:1")])
def test_a_sweep_that_makes_no_sense_is_refused(bad: tuple[str, str]):
    done = run_command("bench", "--sweep", *bad)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage:")


def test_a_url_where_nobody_listens():
    done = run_command("bench", "--url", "http://127.0.0.1:1")
    assert done.returncode == 1
    assert "refused" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_api_and_worker_alone(start_service: Start, model_path: Path, tmp_path: Path):
    """A separate worker and API on the Valkey of a service that serves under another model name."""
    served = start_service("--workers", "1", "--slots", "1", "--threads", "1").wait_ready()
    port = free_port()
    shared = ["--redis-url", served.redis_url, "--model", str(model_path), "--model-name", "other"]
    commands = (
        ["worker", *shared, "--workers", "1", "--slots", "1", "--threads", "1"],
        ["api", *shared, "--port", str(port)],
    )
    processes = [
        subprocess.Popen(
            [*COMMAND, *command], env=clean_environment(), cwd=tmp_path, stderr=subprocess.DEVNULL
        )
        for command in commands
    ]
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: _lists(url, "other"), timeout=60)
        sample = measure(url, chat_body("other", "Say hello.", None, 4))
        assert sample.num_tokens > 0
    finally:
        for process in reversed(processes):
            process.terminate()
        codes = [process.wait(timeout=60) for process in reversed(processes)]
    assert codes == [0, 0]
    assert served.end() == 0


def _lists(url: str, model: str) -> bool:
    try:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=5)
        connection.request("GET", "/v1/models")
        listed = json.loads(connection.getresponse().read())["data"]
        return answers_200(f"{url}/readyz")() and any(entry["id"] == model for entry in listed)
    except (OSError, ValueError, LookupError, http.client.HTTPException):
        return False


def test_a_second_ctrl_c_ends_at_once(start_service: Start):
    served = start_service("--drain-timeout", "600").wait_ready()
    body = chat_body(served_model(served.url), "Go on.", None, 3000, temperature=0, ignore_eos=True)
    chunks = stream(served.url, body)
    next(chunk for chunk in chunks if text_of(parse(chunk)))
    family = served.family()
    served.process.send_signal(signal.SIGINT)
    wait_until(lambda: "Ctrl-C again" in served.output.read_text())
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(timeout=30) == 130
    wait_until(lambda: are_gone(family))
    reader = threading.Thread(target=lambda: list(_until_error(chunks)), daemon=True)
    reader.start()
    reader.join(30)
    assert not reader.is_alive()


def _until_error(chunks: object) -> list[object]:
    try:
        return list(chunks)  # type: ignore[call-overload,no-any-return]
    except Exception:
        return []


def test_top_once(service: Served):
    text = ask(service)
    done = run_command("top", "--once", "--url", service.url)
    assert done.returncode == 0, done.stderr
    assert " of 64" in done.stdout
    assert served_model(service.url)[:20] in done.stdout
    assert "succeeded" in done.stdout
    assert text not in done.stdout


def test_top_watches_until_ctrl_c(service: Served):
    terminal, own = pty.openpty()
    environ = {**clean_environment(), "TERM": "xterm", "COLUMNS": "130", "LINES": "40"}
    process = subprocess.Popen([*COMMAND, "top", "--url", service.url], stdout=own, stderr=own, env=environ)
    os.close(own)
    shown = b""
    while shown.count(b"tokens a second") < 3:  # until it was drawn three times
        shown += os.read(terminal, 65536)
    process.send_signal(signal.SIGINT)
    with suppress(OSError):  # the other side is closed
        while os.read(terminal, 65536):
            pass
    assert process.wait(timeout=30) == 0
    os.close(terminal)
