"""Every query of the dashboard and of the alerts asks for metrics and labels that there are."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from support.echo_engine import Behaviour
from support.fake_engine import make_tokenizer
from support.promql import uses_of
from support.whole_server import whole_server

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = DEPLOY / "grafana/dashboards/octavo.json"
ALERTS = DEPLOY / "prometheus/alerts.yml"
OF_THE_SCRAPE = frozenset({"job", "instance"})


@pytest.fixture(scope="module")
def labels_of() -> dict[str, set[str]]:
    """The labels of every sample on a real server's page, by the sample's name."""

    async def main() -> str:
        async with whole_server(make_tokenizer(), Behaviour()) as whole:
            await whole.http.post("/v1/completions", json={"prompt": [5], "max_tokens": 2})
            return (await whole.http.get("/metrics")).text

    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(asyncio.run(main())):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def check(query: str, labels_of: dict[str, set[str]]) -> None:
    uses = uses_of(query)
    assert uses or 'up{job="octavo"}' in query, query
    for metric, labels in uses:
        assert metric in labels_of, f"{metric} is not on the metrics page: {query}"
        unknown = labels - labels_of[metric] - OF_THE_SCRAPE
        assert not unknown, f"{metric} has no label {unknown}: {query}"
        if metric.endswith(("_total", "_bucket", "_count", "_sum")):
            assert "rate(" in query or "increase(" in query, f"a counter as it is: {query}"


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_panels_ask_for_what_there_is(
    panel: dict[str, Any], labels_of: dict[str, set[str]]
) -> None:
    assert panel["description"] and panel["datasource"]["uid"] == "${datasource}"
    for target in panel["targets"]:
        check(target["expr"], labels_of)
        assert target["datasource"] == panel["datasource"]
        shown = target["legendFormat"]
        if shown.startswith("{{"):
            assert shown.strip("{}") in target["expr"] or shown == "{{instance}}"


def test_panels_cover_what_matters() -> None:
    text = " ".join(target["expr"] for panel in panels() for target in panel["targets"])
    for name in (
        *("time_to_first_token_seconds", "inter_token_latency_seconds", "kv_cache_tokens"),
        *("num_preemptions_total", "prefix_cache_hits_total", "step_seconds", "engine_restarts"),
    ):
        assert f"octavo:{name}" in text, name


def test_panels_lie_side_by_side() -> None:
    everything = dashboard()["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    places = [panel["gridPos"] for panel in everything]
    for place in places:
        assert place["x"] >= 0 and place["x"] + place["w"] <= 24
    for one, other in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


def test_variables_are_those_that_queries_use(labels_of: dict[str, set[str]]) -> None:
    found = dashboard()
    variables = {item["name"]: item for item in found["templating"]["list"]}
    text = json.dumps(found["panels"])
    for name in variables:
        assert f"${name}" in text or f"${{{name}}}" in text or name == "job", name
    for name, item in variables.items():
        if name != "datasource":
            (use,) = uses_of(item["definition"].removeprefix("label_values"))
            assert use.metric in labels_of


def test_the_data_source_that_is_provisioned_is_one() -> None:
    (source,) = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text()
    )["datasources"]
    scrape = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    assert source["type"] == "prometheus" and source["isDefault"] is True
    assert source["jsonData"]["timeInterval"] == scrape["global"]["scrape_interval"]


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_alerts_ask_for_what_there_is(rule: dict[str, Any], labels_of: dict[str, set[str]]) -> None:
    check(rule["expr"], labels_of)
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description"}
    assert any(sign in rule["expr"] for sign in (">", "== 0")), "an alert compares"


def test_prometheus_agrees_if_it_is_here() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    subprocess.run([promtool, "check", "config", DEPLOY / "prometheus/prometheus.yml"], check=True)


@pytest.mark.parametrize(
    "query",
    [
        "rate(octavo:nothing_total[5m])",
        'sum by (colour) (octavo:engine_up{model_name="a"})',
        "octavo:generation_tokens_total",
        "rate(octavo:generation_tokens_total[5m]",
        "up",
    ],
)
def test_the_check_itself(query: str, labels_of: dict[str, set[str]]) -> None:
    with pytest.raises(AssertionError):
        check(query, labels_of)
