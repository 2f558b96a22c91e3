"""Graphs of lower precision: what may be served, and what the gates refuse."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from brim.errors import InputError, ModelFileError
from brim.paths import Project
from brim.service.load import load_service
from brim.service.schema import Precision
from brim_export import accuracy, pipeline, precision_trial
from brim_export.accuracy import Figure, least_cosine
from brim_export.artifact import MODEL_NAME, Artifact
from brim_export.calibration import ROWS, calibration_feeds
from brim_export.lowering import lower
from brim_export.models import image_classifier, text_embedding
from brim_export.precision import parity_allowed, rows_allowed
from brim_export.precision_trial import Trials, try_precisions
from brim_export.service_export import source_of
from brim_export.session import RunFailed, Session
from brim_export.source import OnnxSource, TorchSource
from tests.unit.test_export_gates import DOUBLED

LOWER = [one for one in Precision if one is not Precision.FP32]
ISOLATED = [one for one in LOWER if one is not Precision.INT8_DYNAMIC]


def product(path: Path, width: int = 128) -> OnnxSource:
    weights = np.random.default_rng(0).standard_normal((width, 8)).astype(np.float32) / 8
    made = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Tanh", ["m"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, str(path))
    return OnnxSource(path)


@pytest.fixture
def source(tmp_path: Path) -> OnnxSource:
    return product(tmp_path / "given.onnx")


@pytest.mark.parametrize("precision", ISOLATED)
def test_a_lower_precision_passes_every_gate_and_is_recorded(
    source: OnnxSource, tmp_path: Path, precision: Precision
) -> None:
    result = pipeline.export(source, tmp_path / "out", precision=precision)
    artifact = pipeline.require(result)
    assert [gate.gate for gate in artifact.gates] == [
        "inference_mode",
        "batch_axis",
        "rows_preserved",
        "parity",
        "row_independence",
        "deterministic",
        "accuracy",
    ]
    assert artifact.precision is precision
    assert artifact.accuracy["y least cosine"] > 0.99
    assert artifact.parity is not None and artifact.parity.asked == parity_allowed(precision, 1e-4) > 1e-4
    assert artifact.row_independence.asked == rows_allowed(precision, 1e-5) > 1e-5
    assert [(one.datatype, one.shape) for one in (*artifact.inputs, *artifact.outputs)] == [
        ("FP32", [-1, 128]),
        ("FP32", [-1, 8]),
    ]
    assert artifact.guard is not None, "native backends serve it, too"
    assert (tmp_path / "out" / MODEL_NAME).stat().st_size != source.path.stat().st_size
    assert pipeline.up_to_date(source, tmp_path / "out", precision=precision)
    assert not pipeline.up_to_date(source, tmp_path / "out")
    answers = Session(tmp_path / "out" / MODEL_NAME).run({"x": np.ones((3, 128), np.float32)})["y"]
    plain = Session(source.path).run({"x": np.ones((3, 128), np.float32)})["y"]
    assert 0 < np.abs(answers - plain).max() < 0.1, "it is another graph, and answers alike"


def test_scales_of_the_whole_batch_are_refused_wherever_rows_have_neighbours(
    source: OnnxSource, tmp_path: Path
) -> None:
    result = pipeline.export(source, tmp_path / "out", precision=Precision.INT8_DYNAMIC)
    (refused,) = (gate for gate in result.gates if not gate.ok)
    assert refused.gate == "row_independence"
    assert "output of a row depends on other rows" in refused.message
    assert not (tmp_path / "out").exists()
    assert pipeline.export(source, tmp_path / "out", precision=Precision.INT8_DYNAMIC, batch_limit=1).ok


def test_a_tolerance_that_was_asked_wider_stays_wider() -> None:
    assert parity_allowed(Precision.INT8, 0.5) == 0.5
    assert parity_allowed(Precision.FP32, 1e-6) == 1e-6
    assert rows_allowed(Precision.FP16, 1e-1) == 1e-1


def test_a_graph_without_products_has_no_int8_rows(tmp_path: Path) -> None:
    path = tmp_path / "given.onnx"
    onnx.save(DOUBLED, str(path))
    with pytest.raises(ModelFileError, match="the graph has none"):
        pipeline.export(OnnxSource(path), tmp_path / "out", precision=Precision.INT8_ROWS)


def test_what_a_converter_cannot_do_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "given").mkdir()
    path = tmp_path / "given" / "m.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(ModelFileError, match="converter does not make int8 of this graph"):
        lower(path, tmp_path / "out.onnx", Precision.INT8, [])
    monkeypatch.setattr("brim_export.lowering.LARGEST_BYTES", 3)
    with pytest.raises(ModelFileError, match="8 bytes with its weights; fp16 is made of at most 3"):
        lower(path, tmp_path / "out.onnx", Precision.FP16, [])


def test_the_quantiser_leaves_logging_as_it_was(source: OnnxSource, tmp_path: Path) -> None:
    before = list(logging.root.handlers), logging.root.level
    lower(source.path, tmp_path / "lowered.onnx", Precision.INT8_ROWS, [])
    assert (list(logging.root.handlers), logging.root.level) == before


def test_cosines_of_rows() -> None:
    rows = np.array([[1.0, 0.0], [0.0, 0.0]])
    assert least_cosine(rows, rows) == 1.0
    assert least_cosine(np.array([[1.0, 1.0]]), np.array([[1.0, 0.0]])) == pytest.approx(0.5**0.5)
    assert least_cosine(np.array([[0.0, 0.0]]), np.array([[1.0, 0.0]])) == 0.0
    assert least_cosine(np.array([[np.nan, 0.0]]), np.array([[1.0, 0.0]])) == 0.0
    assert Figure("x", float("nan"), 0.5).ok is False


@pytest.fixture(scope="module")
def digits(exported: Project, tmp_path_factory: pytest.TempPathFactory) -> Trials:
    service = load_service(exported.services / "image_classifier.yaml")
    return try_precisions(service, source_of(exported, service), tmp_path_factory.mktemp("digits"))


def test_digits_are_recognised_in_every_precision_and_mixed_in_one(digits: Trials) -> None:
    trials = {one.precision: one for one in digits.trials}
    assert list(trials) == list(Precision)
    for precision in (Precision.FP32, Precision.FP16, Precision.INT8):
        assert not trials[precision].refusals
        assert trials[precision].accuracy["held-out accuracy"] >= 0.97
    assert trials[Precision.INT8_ROWS].graph is None
    (refusal,) = trials[Precision.INT8_DYNAMIC].refusals
    assert refusal.startswith("row_independence: output PROBABILITIES")


def test_a_neighbour_moves_an_answer_with_scales_of_the_batch_and_no_bit_with_static_ones(digits: Trials) -> None:
    images, _ = image_classifier.held_out()
    bright = np.full_like(images[:1], 1e6)
    for precision, moved in ((Precision.INT8_DYNAMIC, True), (Precision.INT8, False)):
        (graph,) = (one.graph for one in digits.trials if one.precision is precision)
        assert graph is not None
        session = Session(graph)
        alone = session.run({"IMAGE": images[:1]})["PROBABILITIES"][0]
        beside = session.run({"IMAGE": np.concatenate([images[:1], bright])})["PROBABILITIES"][0]
        assert bool(np.abs(alone - beside).max() > 0.1) is moved
        assert bool((alone != beside).any()) is moved


def test_scales_come_from_images_that_accuracy_is_not_measured_on(digits: Trials) -> None:
    held, _ = image_classifier.held_out()
    seen = {image.tobytes() for image in held}
    feeds = calibration_feeds(digits.subject, image_classifier.calibration_rows)
    assert sum(len(feed["IMAGE"]) for feed in feeds) == ROWS
    assert not any(image.tobytes() in seen for feed in feeds for image in feed["IMAGE"])


def test_rows_to_time_with_are_the_same_at_every_call(digits: Trials) -> None:
    assert digits.feed(8)["IMAGE"].shape == (8, 1, 8, 8)
    assert (digits.feed(8)["IMAGE"] == digits.feed(8)["IMAGE"]).all()


def test_text_embeddings_keep_their_direction_with_scales_of_each_row(exported: Project, tmp_path: Path) -> None:
    folder = exported.model_repository / "text_embedding" / "1"
    lower(folder / MODEL_NAME, tmp_path / MODEL_NAME, Precision.INT8_ROWS, [])
    plain, rows = Session(folder / MODEL_NAME), Session(tmp_path / MODEL_NAME)
    figures = text_embedding.accuracy(rows.run, plain.run)
    assert all(value >= least for value, least in figures.values()), figures
    feed = text_embedding.row_samples(np.random.default_rng(0), 5, {"sequence": 12})
    whole = rows.run(feed)["sentence_embedding"]
    for index in range(5):
        alone = rows.run({name: values[[index]] for name, values in feed.items()})["sentence_embedding"][0]
        np.testing.assert_allclose(alone, whole[index], atol=1e-5)


class TestHooks:
    def test_a_hook_that_fails_or_gives_something_else_is_explained(self, digits: Trials) -> None:
        subject, session = digits.subject, digits.subject.session
        for hook, message in (
            (lambda run, reference: 1 / 0, "accuracy raised ZeroDivisionError"),
            (lambda run, reference: {}, "at least one figure"),
            (lambda run, reference: {"x": 3}, r"accuracy gave 'x' as 3, expected \(value, least\)"),
        ):
            with pytest.raises(InputError, match=message):
                accuracy.measure(subject, session, hook)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="calibration_rows gave no rows"):
            calibration_feeds(subject, lambda rng, rows: [])

    def test_a_graph_that_does_not_run_is_no_bug_of_the_hook(self, digits: Trials) -> None:
        result = accuracy.gate(digits.subject, digits.subject.session, lambda run, _: run({"IMAGE": np.ones(3)}))  # type: ignore[arg-type,return-value]
        assert not result.ok and "not run" in result.message
        with pytest.raises(RunFailed):
            digits.subject.session.run({"IMAGE": np.ones(3)})

    def test_figures_below_the_least_are_refused_and_kept(self, digits: Trials) -> None:
        result = accuracy.gate(
            digits.subject, digits.subject.session, lambda *_: {"good": (0.9, 0.8), "bad": (0.5, 0.6)}
        )
        assert not result.ok
        assert result.message.startswith("bad is 0.5, at least 0.6 is wanted. Remedy")
        assert result.seen == {"good": 0.9, "bad": 0.5}


def test_an_artifact_of_before_is_of_full_precision(source: OnnxSource, tmp_path: Path) -> None:
    pipeline.export(source, tmp_path / "out")
    path = tmp_path / "out" / "artifact.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    assert (data.pop("precision"), data.pop("accuracy")) == ("fp32", {})
    path.write_text(json.dumps(data), encoding="utf-8")
    assert Artifact.load(path).precision is Precision.FP32


def test_a_model_that_is_no_graph_is_refused_whole(checkout: Path, tmp_path: Path) -> None:
    service = load_service(checkout / "services" / "image_classifier.yaml")
    mixing = TorchSource("tests.unit.test_export_torch:branch_on_values")
    with pytest.raises(precision_trial.GateRefused, match="row_independence"):
        try_precisions(service, mixing, tmp_path)
