"""docker-compose.yml: Docker's own compose takes it, and every image, command, path, port and address is the code's."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from brim.errors import MissingTool
from brim.measure.attempt import AttemptFailed, run_bounded
from brim.paths import Project
from brim.plan.promtool import find_promtool
from tests.conftest import ROOT, Brim
from tests.golden.compose_checks import findings
from tests.golden.docker_compose import resolved, said

FILE = ROOT / "docker-compose.yml"
STACKS = ("gpu", "tensorrt", "cpu", "token")
SERVERS = {
    "gpu": "tritonserver",
    "tensorrt": "tritonserver-tensorrt",
    "cpu": "tritonserver-cpu",
    "token": "tritonserver-token",
}

Document = MutableMapping[str, Any]


@pytest.fixture(scope="module")
def documents() -> dict[str, Document]:
    """The stack of each profile, with the two tools that go with any of the batch models."""
    beside = ("--profile", "perf", "--profile", "load")
    return {one: resolved(FILE, "--profile", one, *(() if one == "token" else beside)) for one in STACKS}


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_says_what_the_code_says(documents: dict[str, Document], stack: str) -> None:
    services = documents[stack]["services"]
    assert findings(services) == []
    assert [name for name in services if name.startswith("tritonserver")] == [SERVERS[stack]]
    on_gpus = {name for name, one in services.items() if "deploy" in one}
    assert on_gpus == {"cpu": set(), "tensorrt": {SERVERS[stack], "engines"}}.get(stack, {SERVERS[stack]})


def test_without_a_word_it_is_the_gpu_s() -> None:
    """By the file .env, which compose reads by itself."""
    plain = resolved(FILE)["services"]
    assert set(plain) == set(resolved(FILE, "--profile", "gpu")["services"])
    assert {"export", "tritonserver", "gateway", "exporter", "prometheus", "grafana"} == set(plain)


def test_what_env_names_is_what_the_file_asks_for() -> None:
    names = [line.partition("=")[0] for line in (ROOT / ".env").read_text().splitlines() if line and line[0] != "#"]
    text = FILE.read_text(encoding="utf-8")
    assert [name for name in names if name != "COMPOSE_PROFILES" and f"${{{name}:-" not in text] == []
    opened = resolved(FILE, environment={"BRIM_BIND": "0.0.0.0", "BRIM_GATEWAY_PORT": "80", "BRIM_GPU": "3"})[
        "services"
    ]
    (port,) = opened["gateway"]["ports"]
    assert (port["host_ip"], port["published"]) == ("0.0.0.0", "80")
    (device,) = opened["tritonserver"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["device_ids"] == ["3"]


def test_whoever_waits_waits_for_somebody(documents: dict[str, Document]) -> None:
    """Nothing that is needed is missing from a stack, and the server starts on a repository that is whole."""
    for stack, document in documents.items():
        services = document["services"]
        for one in services.values():
            for name, condition in (one.get("depends_on") or {}).items():
                assert name in services or not condition.get("required", True)
        waits = services[SERVERS[stack]]["depends_on"]
        assert {condition["condition"] for condition in waits.values()} == {"service_completed_successfully"}


def _replaced(old: str, new: str) -> Callable[[Document], None]:
    """A slip of the pen: ``old`` stands as ``new`` wherever a service says it."""

    def slip(services: Document) -> None:
        def over(value: Any) -> Any:
            if isinstance(value, str):
                return value.replace(old, new)
            if isinstance(value, dict):
                return {key: over(one) for key, one in value.items()}
            return [over(one) for one in value] if isinstance(value, list) else value

        for name, one in list(services.items()):
            services[name] = over(one)

    return slip


def _set(name: str, key: str, value: object) -> Callable[[Document], None]:
    def slip(services: Document) -> None:
        services[name][key] = value

    return slip


def _without(name: str, key: str) -> Callable[[Document], None]:
    def slip(services: Document) -> None:
        del services[name][key]

    return slip


def _publish(target: int) -> Callable[[Document], None]:
    def slip(services: Document) -> None:
        services["gateway"]["ports"][0]["target"] = target

    return slip


def _grafana(services: Document) -> None:
    """A folder that is there, and provisions nothing of ours."""
    for mount in services["grafana"]["volumes"]:
        mount["source"] = mount["source"].replace("/monitoring/grafana", "/monitoring/rules")


def _writable(services: Document) -> None:
    for mount in services["prometheus"]["volumes"]:
        mount.pop("read_only", None)


@pytest.mark.parametrize(
    ("stack", "slip", "told"),
    [
        ("gpu", _replaced("tritonserver:25.05-py3", "tritonserver:latest"), "not pinned"),
        ("gpu", _replaced("prometheus:v3.5.0", "prometheus:v3"), "not pinned"),
        ("gpu", _replaced("/deploy/gateway", "/deploy/gatway"), "which is not there"),
        ("gpu", _replaced("canary.py", "canery.py"), "canery.py"),
        ("gpu", _replaced("/monitoring/rules", "/monitoring/rule"), "which is not there"),
        ("gpu", _replaced("/compose/export.sh", "/compose/exports.sh"), "exports.sh"),
        ("gpu", _replaced("--config-path", "--config_path"), "on which nothing answers"),
        ("gpu", _replaced("/etc/brim/envoy.json", "/etc/brim/envoi.json"), "envoi.json"),
        ("gpu", _replaced("/etc/prometheus/prometheus.yml", "/etc/prometheus.yml"), "prometheus.yml"),
        ("gpu", _replaced("--model-repository=/models", "--model-repository=/model"), "the code starts it with"),
        ("gpu", _replaced("text_embedding", "text_embeding"), "text_embeding"),
        (
            "gpu",
            _replaced("--load-model=image_classifier-native", "--load-model=image_classifier"),
            "the code starts it",
        ),
        ("gpu", _replaced("onnx-gpu", "onnx-gpus"), "onnx-gpus"),
        ("cpu", _replaced("onnx-cpu", "onnx-gpu"), "its profile wants a GPU"),
        ("gpu", _replaced("exporter", "exportr"), "exportr"),
        ("gpu", _replaced("--gateway-admin", "--gateway-admn"), "gateway-admn"),
        ("gpu", _replaced("tritonserver:8000", "tritonserver:8080"), "does not answer at port 8080"),
        ("gpu", _replaced("127.0.0.1:9901", "127.0.0.1:9902"), "nothing answers at 127.0.0.1:9902"),
        ("gpu", _replaced("--port=9464", "--port=9465"), "job brim: gateway does not answer at port 9464"),
        ("gpu", _replaced("--duration=60", "--duration=sixty"), "sixty"),
        ("gpu", _replaced("tritonserver:8001", "triton:8001"), "there is no triton"),
        ("tensorrt", _replaced("maxShapes=IMAGE:100x1", "maxShapes=IMAGE:64x1"), "builds an engine by"),
        (
            "tensorrt",
            _replaced("image_classifier-native/1/model.plan", "image_classifier/1/model.plan"),
            "builds an engine",
        ),
        ("token", _replaced("--model-config-name=vllm", "--model-config-name=onnx-gpu"), "text_generation"),
        ("gpu", _publish(8081), "on which nothing answers"),
        ("gpu", _grafana, "provisions no datasource"),
        ("gpu", _writable, "can write to the checkout"),
        ("gpu", _without("grafana", "healthcheck"), "has no health check"),
        ("gpu", _without("gateway", "logging"), "no limit on its log"),
        ("gpu", _without("gateway", "cap_drop"), "keeps privileges"),
        ("gpu", _set("prometheus", "user", "0:0"), "runs as root"),
        ("gpu", _set("exporter", "restart", "always"), "restart is always"),
        ("gpu", _set("exporter", "network_mode", "service:prometheus"), "nothing answers at 127.0.0.1:9901"),
    ],
)
def test_a_slip_is_found(
    documents: dict[str, Document], stack: str, slip: Callable[[Document], None], told: str
) -> None:
    services = copy.deepcopy(documents[stack]["services"])
    slip(services)
    found = findings(services)
    assert any(told in one for one in found), found


def test_a_misspelt_key_is_refused_by_compose(tmp_path: Path) -> None:
    for right, slip in (
        ("healthcheck:", "healthchek:"),
        ("<<: *gateway", "<<: *gatway"),
        ("stop_grace_period: 75s", "stop_grace_period: soon"),
    ):
        place = tmp_path / "docker-compose.yml"
        place.write_text(FILE.read_text(encoding="utf-8").replace(right, slip), encoding="utf-8")
        assert said(place, "--profile", "gpu").returncode != 0, slip


def test_the_token_gateway_is_generated(brim: Brim, tmp_path: Path) -> None:
    """docs/compose.md has the command that makes it anew."""
    place = tmp_path / "made.json"
    at = ("--http", "tritonserver:8000", "--grpc", "tritonserver:8001")
    assert brim("gateway", "text_generation", "--profile", "vllm", *at, "--out", place).code == 0
    assert (ROOT / "deploy" / "gateway" / "envoy-vllm.json").read_text() == place.read_text()


def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    try:
        promtool = find_promtool(Project(ROOT).cache_folder())
    except MissingTool as missing:
        pytest.skip(missing.message)
    text = (ROOT / "deploy" / "compose" / "prometheus.yml").read_text(encoding="utf-8")
    place = tmp_path / "prometheus.yml"
    place.write_text(text.replace("/etc/prometheus/rules", str(ROOT / "monitoring" / "rules")), encoding="utf-8")
    run_bounded([str(promtool), "check", "config", str(place)], timeout_s=60)
    place.write_text(text.replace("scrape_interval", "scrape_intervall"), encoding="utf-8")
    with pytest.raises(AttemptFailed, match="scrape_intervall"):
        run_bounded([str(promtool), "check", "config", str(place)], timeout_s=60)


def _fake(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
    (folder / name).chmod(0o755)


def _script(name: str, *arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(ROOT / "deploy" / "compose" / name), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=folder,
        env={**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", **environment},
    )


def test_the_export_fills_the_repository(tmp_path: Path) -> None:
    """With a stand-in for `brim export`, which has its own tests."""
    checkout, work, adapters, packages = (tmp_path / name for name in ("checkout", "work", "adapters", "packages"))
    for folder in (checkout / "model_repository", work, adapters, packages):
        folder.mkdir(parents=True)
    shutil.copytree(ROOT / "services", checkout / "services")
    (packages / "brim.py").touch()
    _fake(
        tmp_path / "bin",
        "brim",
        'test -d "$BRIM_ROOT/services" && echo "$@" >> "$BRIM_ROOT/model_repository/exported" && test "$2" != bad',
    )
    places = {"CHECKOUT": str(checkout), "WORK": str(work), "ADAPTERS": str(adapters), "SITE_PACKAGES": str(packages)}
    done = _script("export.sh", "image_classifier", "text_embedding", folder=tmp_path, **places)
    assert done.returncode == 0, done.stderr
    assert (work / "model_repository" / "exported").read_text() == "export image_classifier\nexport text_embedding\n"
    assert (adapters / "brim.py").is_file()
    (adapters / "brim.py").unlink()
    assert _script("export.sh", "bad", "text_embedding", folder=tmp_path, **places).returncode != 0
    assert not (adapters / "brim.py").exists()
    assert "bad" in (work / "model_repository" / "exported").read_text().splitlines()[-1]
    assert _script("export.sh", folder=tmp_path, **places).returncode == 2


TRTEXEC = """test "$1" = --help && { echo "TensorRT.trtexec [TensorRT v$VERSION]"; exit; }
echo "$@" >> built
test -z "${BROKEN:-}" || exit 1
for word in "$@"; do case $word in --saveEngine=*) echo engine > "${word#*=}" ;; esac; done"""


def test_an_engine_is_built_once_for_each_gpu_tool_and_graph(tmp_path: Path) -> None:
    """With stand-ins for the GPU's own tools."""
    _fake(tmp_path / "bin", "trtexec", TRTEXEC)
    _fake(tmp_path / "bin", "nvidia-smi", 'echo "$GPU"')
    (tmp_path / "model.onnx").write_text("graph")
    line = "trtexec --onnx=model.onnx --saveEngine=model.plan --minShapes=x:1"
    here = {"VERSION": "1", "GPU": "A, 9.0"}

    def builds(command: str = line, **changed: str) -> int:
        before = len((tmp_path / "built").read_text().splitlines()) if (tmp_path / "built").exists() else 0
        done = _script("engines.sh", command, folder=tmp_path, **{**here, **changed})
        assert done.returncode == (1 if "BROKEN" in changed else 0), done.stderr
        return len((tmp_path / "built").read_text().splitlines()) - before

    assert builds() == 1
    assert (tmp_path / "model.plan").read_text() == "engine\n"
    assert builds() == 0
    assert builds(VERSION="2") == 1
    assert builds(VERSION="2", GPU="B, 9.0") == 1
    assert builds(VERSION="2", GPU="B, 9.0") == 0
    assert builds(f"{line} --fp16", VERSION="2", GPU="B, 9.0") == 1
    (tmp_path / "model.onnx").write_text("another graph")
    assert builds(BROKEN="yes") == 1
    # The engine of before is whole, and is not taken for one of this graph.
    assert (tmp_path / "model.plan").read_text() == "engine\n"
    assert builds() == 1 and builds() == 0
    assert _script("engines.sh", "trtexec --onnx=model.onnx", folder=tmp_path, **here).returncode != 0
    assert _script("engines.sh", folder=tmp_path, **here).returncode == 2
