"""The scaling rules: committed as generated, of metrics that exist, and doing what the module does, by promtool."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from brim.config.generate import Profile
from brim.engine.metrics import FAMILIES, Kind
from brim.errors import MissingTool
from brim.gateway.clusters import cluster_name
from brim.plan import rules, series
from brim.plan.carried import Carried
from brim.plan.promtool import check, find_promtool, run_tests
from brim.plan.scaling import Fleet, Signals, Thresholds, pressure_of, thresholds_of, wanted
from brim.service.load import find_services
from brim.units import US_PER_S
from tests.conftest import Brim

TRITONS = {
    "nv_inference_pending_request_count",
    "nv_inference_queue_duration_us",
    "nv_inference_request_success",
    "nv_gpu_utilization",
}
GATEWAYS = {"envoy_brim_requests", "envoy_cluster_upstream_rq_active"}
FUNCTIONS = {
    *("abs", "absent", "and", "avg", "bool", "by", "ceil", "clamp_max", "clamp_min", "count", "group_left"),
    *(
        "histogram_quantile",
        "label_replace",
        "max",
        "max_over_time",
        "min_over_time",
        "offset",
        "on",
        "or",
        "rate",
        "sum",
        "unless",
    ),
    *("vector", "job", "model", "instance", "le", "s"),
}


def all_rules(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [rule for group in document["groups"] for rule in group["rules"]]


def exported() -> set[str]:
    """Every series that a replica of ours or the gateway shows."""
    names = {"up", *TRITONS, *GATEWAYS}
    for family in FAMILIES:
        for name in (family.name, *(alias for alias, _ in family.aliases)):
            ends = ("_bucket", "_sum", "_count") if family.kind is Kind.HISTOGRAM else ("",)
            names |= {name + end for end in ends}
    return names


def words(expression: str) -> set[str]:
    """Names of an expression, without what stands in quotes and in selectors."""
    bare = re.sub(r"\{[^}]*\}", "", re.sub(r'"[^"]*"', "", expression))
    return set(re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*", bare)) - FUNCTIONS


def test_the_committed_files_are_those_of_the_service_files(brim: Brim) -> None:
    done = brim("rules", "--check")
    assert (done.code, done.out) == (0, ""), done.err


def test_a_changed_file_is_found_and_put_right(brim: Brim, checkout: Path, tmp_path: Path, monkeypatch: Any) -> None:
    for folder in ("services", "model_repository"):
        (tmp_path / folder).symlink_to(checkout / folder)
    monkeypatch.setenv("BRIM_ROOT", str(tmp_path))
    assert brim("rules", "--check").code == 1
    assert brim("rules", "--write").code == 0
    assert brim("rules", "--check").code == 0
    written = tmp_path / "monitoring" / "rules" / "scaling.yml"
    assert written.read_text() == (checkout / "monitoring" / "rules" / "scaling.yml").read_text()
    written.write_text(written.read_text().replace("vector(8)", "vector(9)"))
    done = brim("rules", "--check")
    assert done.code == 1
    assert "-    - expr: vector(9)" in done.out or "vector(9)" in done.out
    assert brim("rules", "--check", "--write").code == 2


@pytest.mark.parametrize("profile", [Profile.DEFAULT, Profile.VLLM])
def test_structure(checkout: Path, profile: Profile) -> None:
    """What promtool checks, as far as it matters where there is none: names, order, labels, what exists."""
    names = ["text_generation"] if profile is Profile.VLLM else []
    document = rules.scaling_rules(find_services(checkout / "services", names), Fleet(), profile)
    assert YAML(typ="safe").load(rules.rules_text(document, rules.SCALING_MODULES)) == document
    known = exported()
    for rule in all_rules(document):
        assert words(rule["expr"]) <= known, rule
        assert rule["expr"].count("(") == rule["expr"].count(")")
        if "record" in rule:
            assert re.fullmatch(r"[a-z_]+:[a-z_]+:[a-z0-9_]+", rule["record"])
            known.add(rule["record"])
        else:
            assert rule["labels"]["severity"] in ("info", "warning", "page")
            assert rule["annotations"]["summary"]


def test_nothing_is_decided_by_utilisation(checkout: Path) -> None:
    recorded = all_rules(rules.scaling_rules(find_services(checkout / "services", []), Fleet()))
    of_gpus = {rule.get("record") for rule in recorded if series.GPU_UTILISATION in rule["expr"]}
    assert of_gpus == {"brim_fleet:gpu_utilisation:mean"}
    assert not [rule for rule in recorded if "gpu_utilisation" in rule["expr"]]


def test_thresholds_are_the_modules(checkout: Path) -> None:
    services = find_services(checkout / "services", [])
    limits = {
        (rule["record"], rule["labels"]["model"]): float(rule["expr"].removeprefix("vector(").removesuffix(")"))
        for rule in all_rules(rules.scaling_rules(services, Fleet()))
        if rule.get("record", "").endswith(":limit") and "model" in rule["labels"]
    }
    wanted = {}
    for service in services:
        at = thresholds_of(service)
        for name, value in (
            (series.WAITING_LIMIT, at.waiting),
            (series.QUEUE_LIMIT, at.queue_us),
            (series.TTFT_LIMIT, at.ttft_p90_us),
            (series.KV_LIMIT, at.kv_usage),
        ):
            if value is not None:
                wanted[name, service.name] = value
    assert limits == wanted


def test_what_a_vllm_backend_does_not_tell_is_asked_of_the_gateway(checkout: Path) -> None:
    services = find_services(checkout / "services", ["text_generation"])
    document = rules.scaling_rules(services, Fleet(), Profile.VLLM)
    by_name = {rule["record"]: rule["expr"] for rule in all_rules(document) if "record" in rule}
    assert f'envoy_cluster_name="{cluster_name("text_generation")}"' in by_name[series.WAITING_SUM]
    assert not {series.KV_LIMIT, series.QUEUE_LIMIT, series.KV_MEAN} & set(by_name)


@pytest.mark.parametrize("place", ["monitoring/rules/scaling.yml", "deploy/chart/files/scaling-vllm.yml"])
def test_promtool_takes_the_rules(promtool: Path, checkout: Path, place: str) -> None:
    assert check(promtool, checkout / place) == ""


def test_promtool_tests_pass(promtool: Path, checkout: Path) -> None:
    assert run_tests(promtool, checkout / "monitoring" / "tests" / "scaling.yml") == ""


def test_promtool_tests_can_fail(promtool: Path, checkout: Path, tmp_path: Path) -> None:
    """Each rule that decides, turned around, is noticed."""
    good = (checkout / "monitoring" / "rules" / "scaling.yml").read_text()
    tests = (checkout / "monitoring" / "tests" / "scaling.yml").read_text()
    (tmp_path / "tests").mkdir()
    (tmp_path / "rules").mkdir()
    (tmp_path / "tests" / "scaling.yml").write_text(tests)
    for right, wrong in (
        ("max_over_time(", "min_over_time("),
        (f") unless {series.INCOMPLETE}) or", ")) or"),
        (">= bool 1.5", ">= bool 1"),
        (f", 1) + {series.SPARES}", ", 1)"),
        ("clamp_max(brim_fleet:pressure:max, 2)", "brim_fleet:pressure:max / 2"),
    ):
        assert right in good, right
        (tmp_path / "rules" / "scaling.yml").write_text(good.replace(right, wrong))
        assert run_tests(promtool, tmp_path / "tests" / "scaling.yml") != "", right


def scenario(chance: random.Random) -> tuple[Signals, list[tuple[str, str]]]:
    """A fleet of ``text_generation`` at one moment, and the series that say so."""
    present = chance.randint(1, 9)
    ready = chance.randint(0, present)
    reporting = chance.choice([ready, chance.randint(0, ready)])
    asked, has_kv, has_times = (chance.random() < share for share in (0.8, 0.9, 0.9))
    waiting = [chance.choice([0, chance.randint(0, 60)]) for _ in range(reporting)]
    usage = chance.choice([0.1, 0.3, 0.5, 0.9])
    wait_s, bucket = chance.choice([0.01, 0.3, 0.9]), chance.choice([(0, 0.5), (0.5, 1.0), (1.0, 2.0)])
    said = [(f'up{{job="tritonserver",instance="{one}"}}', f"{int(one < ready)}x30") for one in range(present)]
    for one, number in enumerate(waiting):
        where = f'job="tritonserver",instance="{one}",model="text_generation"'
        said += [
            (f"vllm:num_requests_waiting{{{where}}}", f"{number}x30"),
            (f"nv_inference_request_success{{{where}}}", f"100+{15 if asked else 0}x30"),
        ]
        if has_kv:
            said.append((f"vllm:kv_cache_usage_perc{{{where}}}", f"{usage}x30"))
        if asked and has_times:
            said += [
                (f"vllm:request_queue_time_seconds_sum{{{where}}}", f"1000+{15 * wait_s}x30"),
                (f"vllm:request_queue_time_seconds_count{{{where}}}", "1000+15x30"),
            ]
            for bound in ("0.5", "1", "2", "+Inf"):
                grows = bound == "+Inf" or float(bound) >= bucket[1]
                name = f'vllm:time_to_first_token_seconds_bucket{{{where},le="{bound}"}}'
                said.append((name, f"1000+{15 if grows else 0}x30"))
    told = asked and has_times and reporting > 0
    return (
        Signals(
            present,
            ready,
            reporting,
            waiting=sum(waiting) if reporting else None,
            queue_us=wait_s * US_PER_S if told else None,
            ttft_p90_us=(bucket[0] + 0.9 * (bucket[1] - bucket[0])) * US_PER_S if told else None,
            kv_usage=usage if has_kv and reporting else None,
            answered_per_s=float(reporting if asked else 0) if reporting else None,
        ),
        said,
    )


def carrying(signals: Signals, at: Thresholds) -> Signals:
    """With what a replica has carried, where everything was as it is now."""
    pressure, complete = pressure_of(signals, at)
    carried = Carried().noted(
        0, ready=signals.ready, answered_per_s=signals.answered_per_s, pressure=pressure, complete=complete
    )
    return replace(signals, carried_per_s=carried.per_s)


def test_rules_and_module_decide_alike(promtool: Path, checkout: Path, tmp_path: Path) -> None:
    """Over fleets of every kind, with figures missing and none."""
    services = find_services(checkout / "services", ["text_generation"])
    fleet = Fleet(2, 9, 1)
    text = rules.rules_text(rules.scaling_rules(services, fleet), rules.SCALING_MODULES)
    (tmp_path / "rules.yml").write_text(text)
    chance = random.Random(39)
    tests, numbers = [], set()
    for _ in range(60):
        signals, said = scenario(chance)
        at = thresholds_of(services[0])
        want = wanted(carrying(signals, at), at, fleet)
        numbers.add((want.replicas, want.complete, want.shed_batch))
        expected = [(series.WANTED, want.replicas)]
        expected += [(series.SHED, int(want.shed_batch))] if want.pressure is not None else []
        tests.append(
            {
                "name": repr(signals),
                "interval": "15s",
                "input_series": [{"series": name, "values": values} for name, values in said],
                "promql_expr_test": [
                    {
                        "expr": name,
                        "eval_time": "4m",
                        "exp_samples": [{"labels": f'{name}{{job="tritonserver"}}', "value": value}],
                    }
                    for name, value in expected
                ],
            }
        )
    assert len(numbers) > 15
    with (tmp_path / "tests.yml").open("w") as file:
        YAML().dump({"rule_files": ["rules.yml"], "evaluation_interval": "15s", "tests": tests}, file)
    assert run_tests(promtool, tmp_path / "tests.yml") == ""


def course(phases: Sequence[tuple[float, int, float, float]]) -> list[tuple[str, str]]:
    """Series of ``text_generation`` on eight replicas, every 15 s: minutes, replicas that answer, answers a second of each,
    and the time that they waited, in seconds."""
    said = []
    for one in range(8):
        where = f'job="tritonserver",instance="{one}",model="text_generation"'
        columns: dict[str, list[str]] = {}
        answered = waited = 0.0
        for minutes, ready, each_per_s, wait_s in phases:
            for _ in range(round(4 * minutes)):
                columns.setdefault(f'up{{job="tritonserver",instance="{one}"}}', []).append(str(int(one < ready)))
                answered += 15 * each_per_s
                waited += 15 * each_per_s * wait_s
                page = {
                    f"vllm:num_requests_waiting{{{where}}}": 0.0,
                    f"nv_inference_request_success{{{where}}}": answered,
                    f"vllm:kv_cache_usage_perc{{{where}}}": 0.1,
                    f"vllm:request_queue_time_seconds_sum{{{where}}}": waited,
                    f"vllm:request_queue_time_seconds_count{{{where}}}": answered,
                    **{
                        f'vllm:time_to_first_token_seconds_bucket{{{where},le="{bound}"}}': answered
                        for bound in ("0.25", "0.5", "+Inf")
                    },
                }
                for name, value in page.items():
                    columns.setdefault(name, []).append(f"{value:g}" if one < ready else "_")
        said += [(name, " ".join(values)) for name, values in columns.items()]
    return said


CROWD = [(10, 2, 3.0, 0.28), (4, 8, 4.0, 0.3), (10, 8, 0.75, 0.27)]
"""The usual wait is 0.54 to 0.6 of its limit. Two replicas are enough, eight stand the crowd, and then the load is what it was."""
TROUBLE = [CROWD[0], (4, 8, 1.0, 0.6), CROWD[2]]
"""Eight replicas are seen in trouble at a load that two have carried."""


@pytest.mark.parametrize(
    ("phases", "load", "replicas"),
    [
        (CROWD[2:], 8, 8),  # nothing else was seen: 8 * 0.54 / 0.5
        ([CROWD[0], CROWD[2]], 2, 4),  # 6 / 3, a tenth more, and the spare
        (CROWD, 1.5, 3),
        (TROUBLE, None, 8),
    ],
)
def test_after_a_crowd_the_load_counts_and_not_the_usual_wait(
    promtool: Path,
    checkout: Path,
    tmp_path: Path,
    phases: Sequence[tuple[float, int, float, float]],
    load: float | None,
    replicas: int,
) -> None:
    services = find_services(checkout / "services", ["text_generation"])
    (tmp_path / "rules.yml").write_text(
        rules.rules_text(rules.scaling_rules(services, Fleet(1, 8, 1)), rules.SCALING_MODULES)
    )
    expected = {series.DESIRED: replicas, **({} if load is None else {f"round({series.CARRIED_LOAD}, 0.01)": load})}
    test = {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in course(phases)],
        "promql_expr_test": [
            {
                "expr": f"sum({name})",
                "eval_time": f"{round(60 * sum(minutes for minutes, *_ in phases)) - 15}s",
                "exp_samples": [{"labels": "{}", "value": value}],
            }
            for name, value in expected.items()
        ],
    }
    with (tmp_path / "tests.yml").open("w") as file:
        YAML().dump({"rule_files": ["rules.yml"], "evaluation_interval": "15s", "tests": [test]}, file)
    assert run_tests(promtool, tmp_path / "tests.yml") == ""


def test_a_mean_wait_is_not_diluted_by_models_that_nobody_asks(
    promtool: Path, checkout: Path, cases: Path, tmp_path: Path
) -> None:
    """Case 39: two requests that waited 3 s together, an idle model beside them, and a restart."""
    renamed = {"a": "image_classifier", "b": "text_embedding"}
    # Every 15 s. The first figures stand for a minute before: what a rate makes up for a window that begins before its
    # series does would otherwise differ between the two counters.
    at = {"39_scrape_t0.prom": (0, 1, 2, 3), "39_scrape_t30.prom": (5,), "39_scrape_after_restart.prom": (7,)}
    course: dict[str, list[str]] = {}
    for file_name, places in at.items():
        for line in (cases / file_name).read_text().splitlines():
            name, value = line.rsplit(" ", 1)
            for short, model in renamed.items():
                name = name.replace(f'model="{short}"', f'job="tritonserver",instance="x",model="{model}"')
            for place in places:
                course.setdefault(name, ["_"] * 8)[place] = value
    labels = '{job="tritonserver",model="image_classifier"}'

    def expected(name: str, at: str, value: float) -> dict[str, Any]:
        return {"expr": f"round({name})", "eval_time": at, "exp_samples": [{"labels": labels, "value": value}]}

    document = {
        "rule_files": [str(checkout / "monitoring" / "rules" / "scaling.yml")],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [{"series": name, "values": " ".join(values)} for name, values in course.items()],
                "promql_expr_test": [
                    expected(series.MEAN_WAIT, "75s", 1_500_000),
                    expected(series.WAITING_SUM + '{model="image_classifier"}', "75s", 9),
                    expected(series.MEAN_WAIT, "120s", 250_000),
                ],
            }
        ],
    }
    with (tmp_path / "case_39.yml").open("w") as file:
        YAML().dump(document, file)
    assert run_tests(promtool, tmp_path / "case_39.yml") == ""


def test_where_there_is_no_promtool_it_is_said_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingTool, match="no promtool runs here: this system has no apt-get"):
        find_promtool(tmp_path / "cache")


APT = """#!/bin/sh
case "$*" in
*indextargets*) echo http://mirror.example/debian/ ;;
*download*) echo "$PWD" > prometheus.deb ;;
esac
"""
DPKG = """#!/bin/sh
mkdir -p "$3/usr/bin"
for program in prometheus promtool; do
  printf '#!/bin/sh\nexit 0\n' > "$3/usr/bin/$program"
  chmod +x "$3/usr/bin/$program"
done
"""


def test_it_is_taken_out_of_the_systems_package_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("apt-get", APT), ("dpkg-deb", DPKG)):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    for name in ("sh", "mkdir", "chmod"):
        (tmp_path / "bin" / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(
        "platform.freedesktop_os_release", lambda: {"ID": "mint", "ID_LIKE": "ubuntu", "VERSION_CODENAME": "noble"}
    )
    said: list[str] = []
    found = find_promtool(tmp_path / "cache", on_progress=said.append)
    assert found == tmp_path / "cache" / "prometheus" / "promtool"
    assert said == ["reading the package list of noble", "fetching prometheus"]
    assert sorted(path.name for path in found.parent.iterdir()) == ["lock", "prometheus", "promtool"]
    assert find_promtool(tmp_path / "cache", on_progress=said.append) == found
    assert len(said) == 2


def test_one_that_is_there_is_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "cache" / "prometheus" / "promtool"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", "/bin")
    assert find_promtool(tmp_path / "cache") == program
