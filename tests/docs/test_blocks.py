"""Every code block of the README and of docs/ is run, document by document, in a copy of the checkout.

Shell and Python blocks run in the order in which a reader meets them. Four things are exchanged, since a test cannot do
them as they stand: `make test` and `make bench` are only expanded (`make -n`), `make up` takes the environment as it is (it
is the checkout's own), a line with `brim serve` runs in the background on ports that the system chooses, and the addresses
of later blocks follow it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from brim.paths import Project
from tests.conftest import ROOT

PATIENCE_S = 400
RUN = {"bash", "python"}
SHOWN = {"text", "protobuf"}
"""Blocks that show something. Those of docs/lint.md are the rules' examples, which the linter's own tests run."""
DOCUMENTS = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(document: str) -> list[tuple[str, str]]:
    return BLOCK.findall((ROOT / document).read_text(encoding="utf-8"))


@dataclass
class Reader:
    """Somebody who types a document's blocks into a copy of the checkout."""

    root: Path
    ready: dict[str, str] = field(default_factory=dict)
    servers: list[subprocess.Popen[str]] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {key: value for key, value in {**os.environ, "PATH": tools}.items() if key != "BRIM_ROOT"}

    def follow(self, text: str) -> str:
        """The text with the addresses of the server that runs."""
        for port, name in (("8000", "http"), ("8001", "grpc"), ("8080", "gateway")):
            if name in self.ready:
                text = text.replace(f"127.0.0.1:{port}", self.ready[name])
        return text

    def serve(self, line: str) -> None:
        arguments = re.sub(r"--\w+-port \d+", "", line).split()[1:]
        child = subprocess.Popen(
            [sys.executable, "-m", "brim", *arguments, "--json"],
            cwd=self.root,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.servers.append(child)
        assert child.stdout is not None
        self.ready = json.loads(child.stdout.readline())

    def run(self, command: list[str]) -> None:
        done = subprocess.run(
            command,
            cwd=self.root,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

    def bash(self, text: str) -> None:
        lines = []
        for line in self.follow(text).splitlines():
            if line.startswith("brim serve"):
                self.serve(line)
                continue
            line = re.sub(r"^make (test|bench)", r"make -n \1", line)
            lines.append(re.sub(r"^make up", "make -o .venv/.installed up", line))
        if lines:
            self.run(["bash", "-euo", "pipefail", "-c", "\n".join(lines)])

    def python(self, text: str) -> None:
        self.run([sys.executable, "-c", self.follow(text)])

    def stop(self) -> None:
        for child in self.servers:
            child.send_signal(signal.SIGTERM)
        for child in self.servers:
            child.communicate(timeout=PATIENCE_S)


def copy_of(checkout: Path, place: Path) -> Path:
    """Tracked and new files with their times, the built models, and links to environment and cache.

    A built model is half a gigabyte, and whatever replaces one renames another over it, so it is given a second name where
    the file system allows.
    """
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    built = [
        str(path.relative_to(checkout)) for path in (checkout / "model_repository").glob("*/1/*") if path.is_file()
    ]
    for name in {*listed, *built}:
        if (checkout / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            if name not in built or not _linked(checkout / name, place / name):
                shutil.copy2(checkout / name, place / name)
    for name in (".venv", ".cache"):
        if (checkout / name).exists():
            (place / name).symlink_to(checkout / name)
    return place


def _linked(file: Path, name: Path) -> bool:
    try:
        name.hardlink_to(file)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_has_a_known_language(document: str) -> None:
    assert {language for language, _ in blocks(document)} <= RUN | SHOWN


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if any(kind in RUN for kind, _ in blocks(name))])
def test_blocks_run(document: str, exported: Project, exported_text: Project, tmp_path: Path) -> None:
    reader = Reader(copy_of(exported.root, tmp_path))
    try:
        for language, text in blocks(document):
            if language == "bash":
                reader.bash(text)
            elif language == "python":
                reader.python(text)
    finally:
        reader.stop()
    assert all(server.returncode == 0 for server in reader.servers)


def test_links_lead_somewhere() -> None:
    for document in DOCUMENTS:
        text = (ROOT / document).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#][^)]*)\)", text):
            if not target.startswith("http"):
                path = (ROOT / document).parent / target.partition("#")[0]
                assert path.exists(), f"{document}: {target}"
