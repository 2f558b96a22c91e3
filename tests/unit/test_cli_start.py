"""A command loads what it needs itself, and the list of commands is whole and in order."""

from __future__ import annotations

import subprocess
import sys

import pytest

from brim.cli.commands import NAMES, find_command
from tests.conftest import ROOT, Brim

SLOW = frozenset(
    {"aiohttp", "grpc", "locust", "matplotlib", "numpy", "onnx", "onnxruntime", "openvino_genai", "pydantic", "torch"}
)
"""Libraries that take long to load."""
PROGRAM = """
import sys
from brim.cli import main
try:
    main()
except SystemExit as ended:
    assert ended.code == 0
print(*sorted({{name.partition(".")[0] for name in sys.modules}} & {slow}))
"""


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (["--version"], set()),
        (["report", "--help"], {"grpc", "numpy", "pydantic"}),
        (["config", "--help"], {"grpc", "numpy", "pydantic"}),
        (["serve", "--help"], {"grpc", "numpy", "pydantic"}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_loads_no_library_that_it_does_not_need(words: list[str], needed: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(slow=set(SLOW)), *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()[-1].split()) <= needed


def test_every_command_is_listed_in_the_order_of_the_flow(brim: Brim) -> None:
    shown = brim("--help")
    assert shown.code == 0
    listed = [line.split()[0] for line in shown.out.partition("Commands:")[2].splitlines() if line.startswith("  ")]
    assert [word for word in listed if word in NAMES] == list(NAMES)
    assert all(find_command(name).__doc__ for name in NAMES)


def test_a_command_that_does_not_exist_is_one_clear_error(brim: Brim) -> None:
    done = brim("mesure")
    assert (done.code, done.out) == (2, "")
    assert "mesure" in done.err and "measure" in done.err, "the nearest one is named"


def test_commands_follow_each_other_in_one_process(brim: Brim) -> None:
    assert brim("--version").out.startswith("brim ")
    for name in ("lint", "plan", "lint"):
        done = brim(name, "--help")
        assert done.code == 0 and f"brim {name} " in done.out.splitlines()[0]
