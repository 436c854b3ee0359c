"""A real Prometheus over a service under test, set up by the files in deploy/."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.ports import free_port
from tests.waiting import wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
#: What Grafana puts in place of its variables; the interval reaches back to the test's beginning.
VARIABLES = {"$__rate_interval": "10m", "$model": ".*"}
#: The time between two scrapes, and the longest time that a scrape may take.
INTERVAL = "1s"


class Prometheus:
    """A client of Prometheus's HTTP API."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=10)

    def get(self, path: str, **params: str) -> Any:
        """The ``data`` of an answer."""
        answer = self._http.get(f"/api/v1/{path}", params=params).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[float]:
        """The values of an instant query."""
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        return [float(series["value"][1]) for series in self.get("query", query=expression)["result"]]

    def is_up(self) -> bool:
        """Whether both of a service's targets have been scraped."""
        try:
            is_ready = self._http.get("/-/ready").is_success
        except httpx.TransportError:
            return False
        return is_ready and self.query('up{job=~"inference-.*"}') == [1, 1]


@contextmanager
def prometheus(folder: Path, api_port: int, worker_port: int) -> Iterator[Prometheus]:
    """A Prometheus with deploy/'s configuration and rules that scrapes these two ports."""
    folder.mkdir()
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    ports = {"127.0.0.1:8000": f"127.0.0.1:{api_port}", "127.0.0.1:8001": f"127.0.0.1:{worker_port}"}
    for default, given in ports.items():
        assert default in text
        text = text.replace(default, given)
    text = re.sub(r"(scrape_interval|evaluation_interval): \S+", rf"\1: {INTERVAL}", text)
    (folder / "prometheus.yml").write_text(text)
    (folder / "alerts.yml").write_text((DEPLOY / "prometheus" / "alerts.yml").read_text())
    port = free_port()
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
        )
    try:
        found = Prometheus(f"http://127.0.0.1:{port}")
        wait_until(found.is_up, timeout=30)
        yield found
    finally:
        process.kill()
        process.wait()


def panels() -> list[dict[str, Any]]:
    """The dashboard's panels, without its rows."""
    dashboard = json.loads((DEPLOY / "grafana" / "inference-server.json").read_text())
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]
