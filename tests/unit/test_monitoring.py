"""The dashboard, the alerts and the documents name metrics that exist; promtool finds no fault."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tasks.telemetry import metric_names

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "inference-server.json").read_text())
ALERTS = (PROMETHEUS / "alerts.yml").read_text()
NAMES = {each.name: each for each in vars(metric_names).values() if isinstance(each, metric_names.Metric)} | {
    each.name: each
    for group in (metric_names.WORKER_COUNTERS, metric_names.WORKER_HISTOGRAMS)
    for each in group.values()
}
needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool is not here (Debian: apt-get install prometheus)"
)


def named(text: str) -> set[str]:
    """The metrics in a text, histograms without their suffixes."""
    found = re.findall(r"\binference_\w+", text)
    return {name if name in NAMES else re.sub(r"_(bucket|sum|count)$", "", name) for name in found}


def test_buckets_ascend():
    assert all(list(each.buckets) == sorted(set(each.buckets)) for each in NAMES.values())


@pytest.mark.parametrize("path", ["docs/operations.md", "deploy/prometheus/alerts.yml", "README.md"])
def test_documents_and_alerts_name_metrics_that_exist(path: str):
    assert named((ROOT / path).read_text()) <= set(NAMES)


def test_operations_lists_every_metric():
    assert set(NAMES) <= named((ROOT / "docs" / "operations.md").read_text())


# ---- the dashboard --------------------------------------------------------------------------------


def test_panels_ask_for_metrics_that_exist():
    queries = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    assert len(queries) > 30
    assert all(named(query) <= set(NAMES) and (named(query) or query.startswith("up")) for query in queries)


def test_panels_have_a_place_and_a_number_of_their_own():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_every_panel_says_what_it_shows_in_which_unit():
    for panel in DASHBOARD["panels"]:
        if panel["type"] != "row":
            assert panel["title"]
            assert panel["description"]
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert panel["datasource"]["uid"] == "${datasource}"


# ---- the alerts -----------------------------------------------------------------------------------


def test_every_alert_is_tested_and_says_what_to_do():
    alerts = re.findall(r"- alert: (\w+)", ALERTS)
    assert len(alerts) > 10
    tested = re.findall(r"name: (\w+) fires", (PROMETHEUS / "alerts_test.yml").read_text())
    assert sorted(tested) == sorted(alerts)
    assert ALERTS.count(" description: ") == ALERTS.count(" summary: ") == len(alerts)


@needs_promtool
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "config", "compose.yml"),
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_finds_no_fault(arguments: tuple[str, ...]):
    done = subprocess.run(
        ["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout
