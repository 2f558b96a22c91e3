"""``brim bench precision`` on a small model: what is made, timed, refused and reported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from brim.bench.conditions import Conditions
from brim.bench.precision import (
    NAME,
    Candidate,
    Effort,
    PrecisionCheck,
    Speed,
    Timed,
    _speed,
    time_precisions,
)
from brim.bench.verdict import ExitCode, spread_of
from brim.cli.commands.bench_precision import shown
from brim.errors import InputError
from brim.report import bench_result, precisions
from brim.report.build import build_report
from brim.report.run_folder import read_run
from tests.conftest import Brim

QUIET = Conditions("a processor", 2, 0.0, 0.0, 0.0, {})


def speed(batch: int, *ratios: float, base: float = 100.0) -> Speed:
    return _speed(batch, [base * ratio for ratio in ratios], [base] * len(ratios), QUIET)


def check(chosen: str = "fp32", int8: Speed | None = None, refused: tuple[str, ...] = ()) -> PrecisionCheck:
    def timed(name: str, speeds: tuple[Speed, ...], refusals: tuple[str, ...] = ()) -> Timed:
        return Timed(Candidate(name, Path("x"), refusals, {"held-out accuracy": 0.98}), 1_000_000, speeds)

    found = int8 or speed(8, *[1.5] * 9)
    lines = (
        timed("fp32", (speed(8, *[1.0] * 9),)),
        timed("int8", (found,), refused),
        timed("int8-dynamic", (), ("row_independence: rows mix",)),
    )
    return PrecisionCheck("m", chosen, 2, {"sequence": 32}, lines, QUIET, "brim bench precision m")


@pytest.mark.parametrize(
    ("ratios", "word"),
    [([1.2] * 9, "faster"), ([0.8] * 9, "slower"), ([0.9, 1.1] * 5, "unclear"), ([1.2] * 4, "unclear")],
    ids=["faster", "slower", "on both sides", "too few rounds"],
)
def test_a_ratio_says_only_what_its_whole_interval_says(ratios: list[float], word: str) -> None:
    assert speed(1, *ratios).verdict == word
    assert speed(1, *ratios).ratio == spread_of(ratios)


def test_on_a_machine_that_others_use_nothing_is_said() -> None:
    busy = replace(QUIET, other_cores=1.0)
    assert _speed(1, [2.0] * 9, [1.0] * 9, busy).verdict == "unclear"


def test_the_exit_code_is_of_what_the_service_serves() -> None:
    assert check().exit_code is ExitCode.YES, "a refusal of what nobody serves is an answer"
    assert check(chosen="int8", refused=("accuracy: lost",)).exit_code is ExitCode.NO
    assert check(int8=speed(8, 0.9, 1.1)).exit_code is ExitCode.COULD_NOT_TELL


def test_every_precision_sees_the_same_rows_in_every_round(tmp_path: Path) -> None:
    made = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
    )
    graph = tmp_path / "m.onnx"
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), str(graph))
    names = [("fp32", graph), ("int8", graph), ("int8-rows", None)]
    candidates = [Candidate(name, file, () if file else ("none",), {}) for name, file in names]
    feeds = {batch: {"x": np.ones((batch, 4), np.float32)} for batch in (1, 8)}
    timed, _ = time_precisions(candidates, feeds, threads=1, effort=Effort(rounds=3, least_s=0.0))
    assert [[(one.batch, len(one.rows_per_s)) for one in line.speeds] for line in timed] == [[(1, 3), (8, 3)]] * 2 + [
        []
    ]
    assert {one.ratio.median for one in timed[0].speeds} == {1.0}
    assert timed[0].graph_bytes == graph.stat().st_size and timed[2].graph_bytes == 0


def test_the_report_shows_what_the_benchmark_wrote(tmp_path: Path) -> None:
    found = check()
    (tmp_path / bench_result.FILE_NAME).write_text(json.dumps(found.as_json()), encoding="utf-8")
    documents = read_run(tmp_path)
    assert documents.precisions is not None and documents.precisions.benchmark == NAME
    report = build_report(documents, None, source="x")
    assert report.good is None
    (section,) = (one for one in report.sections if one.id == "precision")
    gates, speeds = (figure.table for figure in section.figures)
    assert gates is not None and speeds is not None
    assert [(row[0], row[1], row[-1]) for row in gates.rows] == [
        ("fp32", "yes", "-"),
        ("int8", "yes", "-"),
        ("int8-dynamic", "no", "row_independence: rows mix"),
    ]
    assert [(row[0], row[1], row[4]) for row in speeds.rows] == [("fp32", "-", "1"), ("int8", "faster", "1.5")]
    assert section.sentences == (
        "m serves fp32. int8 runs at 1.50 at 8 rows (faster) of FP32's rate; int8-dynamic is refused.",
    )
    for words in ("int8-dynamic is refused: row_independence: rows mix", "1.50 faster"):
        assert words in shown(found)


def test_a_refused_precision_that_is_served_makes_the_report_bad(tmp_path: Path) -> None:
    document = check(chosen="int8", refused=("accuracy: lost",)).as_json()
    assert bench_result.PRECISION == NAME
    assert precisions.section(precisions.Precisions.model_validate(document)).title == "Precision: m"
    (tmp_path / bench_result.FILE_NAME).write_text(json.dumps(document), encoding="utf-8")
    assert build_report(read_run(tmp_path), None, source="x").good is False
    document["precisions"][0]["speeds"][0]["ratio"]["median"] = 7  # type: ignore[index]
    (tmp_path / bench_result.FILE_NAME).write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InputError, match=r"precisions\.0\.speeds\.0\.ratio: .*median 7 lies outside"):
        read_run(tmp_path)


def test_the_command_refuses_a_language_model_and_foreign_options(brim: Brim) -> None:
    assert brim("bench", "precision", "text_generation").code == 2
    assert brim("bench", "precision", "--points", "3").code == 2


def numbers(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_a_whole_run_of_a_service_of_ones_own(tmp_path: Path, brim: Brim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIM_ROOT", str(tmp_path))
    (tmp_path / "services").mkdir()
    (tmp_path / "model_repository").mkdir()
    made = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Tanh", ["m"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 128])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 16])],
        [numpy_helper.from_array(numbers((128, 16)) / 8, "w")],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, str(tmp_path / "given.onnx"))
    (tmp_path / "services" / "given.yaml").write_text(
        "name: given\nmodel: {onnx: given.onnx}\ninputs: [{name: x, dtype: FP32, shape: [128]}]\n"
        "outputs: [{name: y, dtype: FP32, shape: [16]}]\nmax_batch_size: 8\nruntime: {threads: 1}\n",
        encoding="utf-8",
    )
    done = brim("bench", "precision", "given", "--rounds", "1", "--out", tmp_path / "run", "--json")
    assert done.code == ExitCode.COULD_NOT_TELL, "one round allows no verdict"
    lines = {one["precision"]: one for one in json.loads(done.out)["data"]["precisions"]}
    assert list(lines) == ["fp32", "fp16", "int8", "int8-rows", "int8-dynamic"]
    assert [name for name, line in lines.items() if line["refusals"]] == ["int8-dynamic"]
    assert "output of a row depends on other rows" in lines["int8-dynamic"]["refusals"][0]
    assert all([one["batch"] for one in line["speeds"]] == [1, 8] for line in lines.values())
    assert read_run(tmp_path / "run").precisions is not None
    assert [path.name for path in (tmp_path / ".cache").glob(".precisions-*")] == []
