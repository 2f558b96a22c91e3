"""tests/gpu/run.sh without a GPU: its plan, and its way through steps that say yes, no, or nothing, with a stand-in for `brim`."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.dry_parse import fault_of

SCRIPT = ROOT / "tests" / "gpu" / "run.sh"
LIMIT_S = 8 * 60
NOWHERE = "/nowhere"
PER_SERVICE = ("isolate", "device", "tune", "report-isolate", "report-device", "report-tune")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in ("OUT", "VENV", "PROVIDER", "SERVICES", "PYTHON", "WHEELS")
    }
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**kept, **environment},
    )


def plan(provider: str) -> dict[str, tuple[int, list[str]]]:
    rows = [line.split("\t") for line in run("--check", PROVIDER=provider, OUT=NOWHERE).stdout.splitlines()]
    return {row[0]: (int(row[1]), shlex.split(row[2])) for row in rows if len(row) == 3}


@pytest.mark.parametrize("provider", ["cuda", "cpu"])
def test_every_command_of_the_plan_is_one_that_brim_takes(provider: str) -> None:
    steps = plan(provider)
    services = ("image_classifier", "text_embedding")
    assert list(steps) == [
        "environment",
        "parity",
        "provider",
        *(f"{kind}-{service}" for service in services for kind in PER_SERVICE),
    ]
    commands = {name: words[1:] for name, (_, words) in steps.items() if words[0].endswith("/bin/brim")}
    assert set(steps) - set(commands) == {"environment", "provider"}
    assert {name: fault for name, words in commands.items() if (fault := fault_of(words))} == {}
    assert not Path(NOWHERE).exists()


def test_the_whole_stays_below_eight_minutes() -> None:
    (line,) = (line for line in SCRIPT.read_text().splitlines() if line.startswith("BUDGET_S="))
    assert int(line.rpartition("-")[2].rstrip("}")) + 10 <= LIMIT_S


def test_the_gpu_s_onnx_runtime_is_no_newer_than_the_one_that_is_tested() -> None:
    def pinned(file: str, package: str) -> tuple[int, ...]:
        (version,) = re.findall(rf"^{package}(?:\[[\w,]+\])?==([\d.]+)$", (ROOT / file).read_text(), re.MULTILINE)
        return tuple(map(int, version.split(".")))

    assert pinned("requirements-gpu.lock", "onnxruntime-gpu") <= pinned("requirements.lock", "onnxruntime")
    for user in (SCRIPT, ROOT / "deploy" / "image" / "Dockerfile"):
        assert "-r requirements-gpu.lock" in user.read_text()


def test_a_check_says_that_there_is_no_gpu(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    done = run("--check", PATH=f"{tmp_path}:{os.environ['PATH']}", OUT=NOWHERE)
    assert done.returncode == 3 and "no GPU answers here" in done.stderr
    assert run("--check", PROVIDER="cpu", OUT=NOWHERE).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        ((), {"PROVIDER": "rocm"}, "PROVIDER is rocm"),
        ((), {"SERVICES": "image_clasifier"}, "no service image_clasifier"),
        ((), {"BUDGET_S": "8m"}, "BUDGET_S is 8m"),
        (("--chek",), {}, "unknown argument --chek"),
    ],
)
def test_what_is_wrong_is_named(arguments: tuple[str, ...], environment: dict[str, str], said: str) -> None:
    done = run(*arguments, OUT=NOWHERE, **environment)
    assert done.returncode == 2 and said in done.stderr and "hint:" in done.stderr


STAND_IN = """#!/bin/bash
echo "$@" >> "$RECORD"
case "$1" in
  up) echo "model image_classifier: model.onnx on $RUNS_ON, 1 threads" > "$LOGS/triton-1.log" ;;
  $FAILS) echo "what $1 found"; exit $WITH ;;
esac
"""


def walk(tmp_path: Path, **environment: str) -> tuple[int, dict[str, str], str]:
    """The steps' answers by name, the exit code and what was printed."""
    folder = tmp_path / "venv" / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "brim").write_text(STAND_IN)
    (folder / "brim").chmod(0o755)
    given = {
        "PROVIDER": "cpu",
        "SERVICES": "image_classifier",
        "VENV": str(tmp_path / "venv"),
        "LOGS": str(tmp_path),
        "RECORD": str(tmp_path / "record"),
        "RUNS_ON": "CPUExecutionProvider",
        "FAILS": "nothing",
        "WITH": "0",
        "OUT": str(tmp_path / "out"),
        **environment,
    }
    done = run(**given)
    rows = [line.split("\t") for line in (tmp_path / "out" / "summary.tsv").read_text().splitlines()]
    return done.returncode, {row[0]: row[1] for row in rows}, done.stdout


def test_a_walk_in_which_all_is_well(tmp_path: Path) -> None:
    code, answers, _ = walk(tmp_path)
    assert code == 0 and set(answers.values()) == {"yes"}
    assert list(answers) == ["environment", "parity", "provider", *(f"{kind}-image_classifier" for kind in PER_SERVICE)]
    first = [line.split()[0] for line in (tmp_path / "record").read_text().splitlines()]
    assert first == ["up", "isolate", "bench", "tune", "report", "report", "report"]


MAKE = """#!/bin/bash
echo "make $* with PYTHON=${PYTHON-none}, index=${PIP_NO_INDEX-yes}" >> "$RECORD"
mkdir -p "$VENV/bin"
printf '#!/bin/bash\necho "$@" >> "$RECORD"\n' > "$VENV/bin/python"
chmod +x "$VENV/bin/python"
"""


def test_on_a_gpu_its_own_onnx_runtime_takes_the_other_s_place_once(tmp_path: Path) -> None:
    """With stand-ins for make, pip and the driver's tool."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("make", MAKE), ("nvidia-smi", "#!/bin/sh\necho 'A, 580'\n")):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    given = {"PROVIDER": "cuda", "PATH": f"{tools}:{os.environ['PATH']}", "RUNS_ON": "CUDAExecutionProvider"}
    code, answers, _ = walk(tmp_path, **given)
    assert code == 0 and set(answers.values()) == {"yes"}
    assert (tmp_path / "out" / "gpu.txt").read_text() == "A, 580\n"
    before = (tmp_path / "record").read_text().splitlines()
    assert before[:3] == [
        f"make VENV={tmp_path / 'venv'} env with PYTHON=none, index=yes",
        "-m pip uninstall --quiet --yes onnxruntime",
        "-m pip install --quiet --constraint requirements.lock -r requirements-gpu.lock",
    ]
    assert "--cpu" not in " ".join(before)
    assert walk(tmp_path, **given, WHEELS="wheels", PYTHON="python3.12")[0] == 0
    again = (tmp_path / "record").read_text().splitlines()[len(before) :]
    assert again[0].endswith("with PYTHON=python3.12, index=1") and again[1].startswith("up ")


def test_a_no_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    code, answers, said = walk(tmp_path, FAILS="isolate", WITH="1")
    assert code == 1
    assert [name for name, answer in answers.items() if answer != "yes"] == ["isolate-image_classifier"]
    assert answers["isolate-image_classifier"] == "no" and "what isolate found" in said


@pytest.mark.parametrize("status", ["2", "3", "70", "124"])
def test_whatever_else_goes_wrong_tells_nothing(tmp_path: Path, status: str) -> None:
    code, answers, _ = walk(tmp_path, FAILS="tune", WITH=status)
    assert code == 3 and answers["tune-image_classifier"] == "could not tell"


def test_a_server_that_took_the_cpu_ends_it(tmp_path: Path) -> None:
    code, answers, said = walk(tmp_path, RUNS_ON="OtherExecutionProvider")
    assert code == 3 and "image_classifier did not run on CPUExecutionProvider" in said
    assert list(answers) == ["environment", "parity", "provider"]


def test_no_step_begins_after_the_budget(tmp_path: Path) -> None:
    code, answers, _ = walk(tmp_path, BUDGET_S="0")
    assert code == 3 and answers == {"environment": "could not tell"}
    assert not (tmp_path / "record").exists()
