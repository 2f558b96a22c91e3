"""The rules for people: what they are made of, that their alerts can fire, and that promtool sees them do it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from brim.errors import InputError
from brim.exporter.gateway_said import read_gateway
from brim.exporter.page import Page, Source
from brim.exporter.server_said import ServerSaid
from brim.gateway.admission import admissions, first_classes, objectives_us
from brim.gateway.counters import BOUNDS_MS, bound_ms, bounds_ms
from brim.plan import series
from brim.plan.burn import FAST, LEAST_RATE_S, MOST_BAD, MOST_DIVISION, SLOW, TIMING, budget, burn_limit, duration
from brim.plan.promtool import check, run_tests
from brim.plan.rules import rules_text, scaling_rules
from brim.plan.scaling import Fleet
from brim.plan.service_rules import MODULES, service_rules
from brim.service.load import find_services
from brim.service.schema import Service
from tests.unit.test_plan_rules import all_rules, exported, words

ONE = {
    "name": "one",
    "model": {"onnx": "one.onnx"},
    "inputs": [{"name": "X", "dtype": "FP32", "shape": [4]}],
    "outputs": [{"name": "Y", "dtype": "FP32", "shape": [4]}],
}
OF_EXPORTER = {
    *("brim_batch_rows_sum", "brim_batch_rows_count", "brim_busy_us_total", "brim_instances", "brim_max_batch_rows"),
    *("brim_requests_total", "brim_model_loaded", "brim_exporter_source_up"),
}
OF_GATEWAY = {"envoy_brim_request_duration_bucket", "envoy_brim_request_duration_count"}
WORDS = {"class", "outcome", "reason", "window", "min", "h", "m"}


def service(**parts: Any) -> Service:
    return Service.model_validate({**ONE, **parts})


def test_structure(checkout: Path) -> None:
    document = service_rules(find_services(checkout / "services", []))
    assert YAML(typ="safe").load(rules_text(document, MODULES)) == document
    known = exported() | OF_EXPORTER | OF_GATEWAY
    for rule in all_rules(document):
        assert words(rule["expr"]) - WORDS <= known, rule
        assert rule["expr"].count("(") == rule["expr"].count(")")
        if "record" in rule:
            assert re.fullmatch(r"[a-z_]+:[a-z_]+:[a-z0-9_]+", rule["record"])
            known.add(rule["record"])
    recorded = {rule["record"] for rule in all_rules(document) if "record" in rule}
    named = {value for value in vars(series).values() if isinstance(value, str) and value.startswith("brim_service:")}
    assert recorded == named


def test_every_recorded_series_and_every_metric_is_explained(checkout: Path) -> None:
    explained = set(re.findall(r"`(brim_\w+(?::\w+)*)`", (checkout / "docs" / "metrics.md").read_text()))
    rules = all_rules(service_rules(find_services(checkout / "services", [])))
    assert {rule["record"] for rule in rules if "record" in rule} <= explained
    page = Page(ServerSaid(), read_gateway(""), {Source.TRITON: True}, 0)
    for family in page.collect():
        name = {"counter": f"{family.name}_total", "histogram": f"{family.name}_bucket"}.get(family.type, family.name)
        assert name in explained


def test_each_alert_has_its_page_and_each_page_its_alert(checkout: Path) -> None:
    services = find_services(checkout / "services", [])
    documents = (service_rules(services), scaling_rules(services, Fleet()))
    alerts = {rule["alert"]: rule for document in documents for rule in all_rules(document) if "alert" in rule}
    assert len(alerts) == sum("alert" in rule for document in documents for rule in all_rules(document))
    pages = {path.stem: path.read_text() for path in (checkout / "docs" / "runbooks").glob("*.md")}
    assert pages.keys() == alerts.keys()
    table = (checkout / "docs" / "metrics.md").read_text()
    for name, rule in alerts.items():
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{name}.md"
        assert rule["labels"]["severity"] in ("info", "warning", "page")
        assert f"| [{name}](runbooks/{name}.md) | {rule['labels']['severity']} |" in table
        page = pages[name]
        assert page.startswith(f"# {name}\n") and "\n## Look at\n" in page and "\n## Do\n" in page
        for target in re.findall(r"\]\(([^)]+)\)", page):
            assert (checkout / "docs" / "runbooks" / target).is_file(), f"{name}: {target}"


@given(st.floats(min_value=0.1, max_value=99.999))
def test_whatever_the_percentile_an_alert_can_fire(percentile: float) -> None:
    one = service(slo={"percentile": percentile})
    for pace in (FAST, SLOW):
        # A burn is at most one over the budget, when nobody is answered in time.
        assert 0 < burn_limit(one, pace) <= pace.most_burn
        assert burn_limit(one, pace) * budget(one) <= MOST_BAD * 1.000001 < 1


def test_only_the_most_important_classes_have_a_limit() -> None:
    callers = [
        {"name": "nightly", "priority": 7, "share": 0.2, "deadline_ms": 5000},
        {"name": "page", "priority": 2, "share": 0.4},
        {"name": "chat", "priority": 2, "share": 0.4, "deadline_ms": 90.4},
    ]
    one = service(callers=callers, slo={"latency_ms": 300, "percentile": 95})
    assert first_classes(one) == ["page", "chat"]
    assert objectives_us(one) == {"page": 300_000, "chat": 90_400, "nightly": 5_000_000}
    rules = all_rules(service_rules([one]))
    limited = {rule["labels"]["class"] for rule in rules if rule.get("record") == series.BURN_LIMIT}
    assert limited == {"page", "chat"}
    bounds = {
        match[1]: match[2]
        for rule in rules
        if rule.get("record") == series.GOOD
        for match in re.finditer(r'class="(\w+)".*?le=~"([^"]+)"', rule["expr"])
    }
    assert bounds == {"page": "300([.]0)?", "chat": "90([.]0)?", "nightly": "5000([.]0)?"}
    # The gateway has a bound for each of them, or nothing would be counted.
    assert {300, 90, 5_000} <= set(bounds_ms(admissions([one])))
    assert set(bounds_ms({})) == set(BOUNDS_MS) and bound_ms(400) == 1


@pytest.mark.parametrize("by", [1, 20, 60, MOST_DIVISION])
def test_shorter_times_are_in_the_same_expressions(by: float, checkout: Path) -> None:
    services = find_services(checkout / "services", [])

    def shape(document: dict[str, Any]) -> list[str]:
        """Expressions without their windows; of windows that became the same, one is recorded."""
        return list(dict.fromkeys(re.sub(r'\[\w+\]|window="\w+"', "[]", rule["expr"]) for rule in all_rules(document)))

    timing = TIMING.divided_by(by)
    assert shape(service_rules(services, timing)) == shape(service_rules(services))
    assert timing.rate_s >= LEAST_RATE_S and min(timing.windows_s) >= LEAST_RATE_S and timing.every_s >= 1
    if by == 1:
        assert timing == TIMING


@pytest.mark.parametrize("by", [0, 0.5, MOST_DIVISION + 1, float("nan")])
def test_times_are_divided_within_bounds(by: float) -> None:
    with pytest.raises(InputError, match="expected 1 to"):
        TIMING.divided_by(by)


def test_durations_are_as_prometheus_writes_them() -> None:
    assert [duration(seconds) for seconds in (3_600, 5_400, 300, 90, 1.5, 0)] == [
        "1h",
        "90m",
        "5m",
        "90s",
        "1500ms",
        "1ms",
    ]


def test_promtool_takes_the_rules(promtool: Path, checkout: Path) -> None:
    assert check(promtool, checkout / "monitoring" / "rules" / "service.yml") == ""


def test_promtool_tests_pass(promtool: Path, checkout: Path) -> None:
    assert run_tests(promtool, checkout / "monitoring" / "tests" / "service.yml") == ""


MISSED, FIRST_TOKENS, BATCHES, SYMPTOMS = "an objective that", "first tokens", "batches of all", "symptoms"
OTHER_BOUND, BELOW = "a bound as Prometheus 3", "just below every limit"


@pytest.mark.parametrize(
    ("right", "wrong", "noticed_by"),
    [
        ("or on (model, class) (0 *", "or on (model, class) (9 *", MISSED),
        (", code!~", ", reason!~", MISSED),
        (f"{series.GOOD} / (", f"{series.GOOD} * (", MISSED),
        ('pace="fast"}) and on (model, class)', 'pace="fast"}) unless on (model, class)', MISSED),
        ("([.]0)?", "", OTHER_BOUND),
        (">= 0.95", ">= 0.9", BELOW),
        ("max by (model) (brim_model_loaded", "min by (model) (brim_model_loaded", BELOW),
        ("expr: vector(125000)", "expr: vector(120000)", BELOW),
        ('reason!~"too_long_.*"', 'reason!~"none"', FIRST_TOKENS),
        ('_count{job="brim"}[1m])) > 0)', '_count{job="brim"}[1m])))', BATCHES),
        (" unless on (model) (sum by (model) (rate(vllm:", " or on (model) (sum by (model) (rate(vllm:", SYMPTOMS),
    ],
)
def test_promtool_tests_can_fail(
    right: str, wrong: str, noticed_by: str, promtool: Path, checkout: Path, tmp_path: Path
) -> None:
    """A part of an expression that matters, turned around, is noticed, and by the test that is about it."""
    good = (checkout / "monitoring" / "rules" / "service.yml").read_text()
    document = YAML(typ="safe").load((checkout / "monitoring" / "tests" / "service.yml").read_text())
    (about,) = (one for one in document["tests"] if one["name"].startswith(noticed_by))
    assert right in good
    (tmp_path / "service.yml").write_text(good.replace(right, wrong))
    with (tmp_path / "tests.yml").open("w") as file:
        YAML().dump({**document, "rule_files": ["service.yml"], "tests": [about]}, file)
    assert run_tests(promtool, tmp_path / "tests.yml") != ""


def test_a_mean_wait_is_not_diluted_by_models_that_nobody_asks(
    promtool: Path, checkout: Path, cases: Path, tmp_path: Path
) -> None:
    """Case 39: two requests that waited 3 s together beside an idle model, 9 that wait now, and a restart."""
    renamed = {"a": "image_classifier", "b": "text_embedding"}
    at = {"39_scrape_t0.prom": (0, 1, 2, 3), "39_scrape_t30.prom": (5,), "39_scrape_after_restart.prom": (7,)}
    course: dict[str, list[str]] = {}
    for file_name, places in at.items():
        for text in (cases / file_name).read_text().splitlines():
            name, value = text.rsplit(" ", 1)
            for short, model in renamed.items():
                name = name.replace(f'model="{short}"', f'job="tritonserver",instance="x",model="{model}"')
            for place in places:
                course.setdefault(name, ["_"] * 8)[place] = value

    def expected(expression: str, at: str, *values: tuple[str, float]) -> dict[str, Any]:
        found = [{"labels": f'{{model="{model}"}}', "value": value} for model, value in values]
        return {"expr": expression, "eval_time": at, "exp_samples": found}

    document = {
        "rule_files": [str(checkout / "monitoring" / "rules" / "service.yml")],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [{"series": name, "values": " ".join(values)} for name, values in course.items()],
                "promql_expr_test": [
                    # The idle one has no value, which is not 0.
                    expected(f"round({series.QUEUED})", "75s", ("image_classifier", 1_500_000)),
                    expected(f"{series.WAITING_NOW} + 0", "75s", ("image_classifier", 9), ("text_embedding", 0)),
                    expected(f"round({series.QUEUED})", "120s", ("image_classifier", 250_000)),
                    expected(f"min_over_time({series.QUEUED}[2m]) < 0", "120s"),
                ],
            }
        ],
    }
    with (tmp_path / "case_39.yml").open("w") as file:
        YAML().dump(document, file)
    assert run_tests(promtool, tmp_path / "case_39.yml") == ""
