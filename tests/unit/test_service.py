"""Service files: every fault at once, each with its place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from brim.errors import ServiceFileError, UnknownService
from brim.service.load import check_text, find_services, load_service
from brim.service.page import blocks, page
from brim.service.samples import random_rows, sample_rows
from brim.service.schema import Service

GOOD = """name: m
model: {onnx: m.onnx}
inputs:
  - {name: X, dtype: FP32, shape: [2]}
outputs:
  - {name: Y, dtype: FP32, shape: [1]}
"""


def places(text: str) -> list[tuple[int, int, str]]:
    service, findings = check_text(text, "services/m.yaml")
    assert service is None
    assert findings
    return [(finding.line, finding.column, finding.message) for finding in findings]


def test_smallest_service_gets_every_default() -> None:
    service, findings = check_text(GOOD, "services/m.yaml")
    assert findings == []
    assert service is not None
    assert service.max_batch_size == 100
    assert service.batching.preferred == ()
    assert [group.count for group in service.instances] == [1]


def test_all_faults_at_once_in_the_order_of_the_file() -> None:
    text = """name: m
model: {torch: "a:b", onx: 3}
inputs:
  - name: A
    dtype: FLOAT
    shape: [0]
  - {name: B, dtype: FP32, shape: [1], finit: true}
outputs:
  - {name: Y, dtype: FP32, shape: [1]}
slo: {latency_ms: -3}
batching:
  preferred: [50, 20]
  max_queue_delay: 3
"""
    found = places(text)
    assert [(line, column) for line, column, _ in found] == [
        (2, 23),
        (5, 5),
        (6, 5),
        (7, 40),
        (10, 7),
        (12, 3),
        (13, 3),
    ]
    assert "unknown key 'onx'" in found[0][2]
    assert "'FLOAT'" in found[1][2]
    assert "got 0" in found[2][2]
    assert "[50, 20]" in found[5][2]


def test_misspelt_key_gets_the_nearest_known_one() -> None:
    _, findings = check_text(GOOD + "batching: {max_queue_delay: 3}\n", "services/m.yaml")
    assert [finding.hint for finding in findings] == ["did you mean 'max_queue_delay_ms'?"]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, "found nothing"),
        ("- 1\n", 1, "expected a mapping"),
        ("name: m\nname: n\n", 2, "duplicate key"),
        ("a: b: c\n", 1, "not valid YAML"),
        ("name: [\n", 2, "not valid YAML"),
        ("name: !!python/object:os.system {}\n", 1, ""),
    ],
)
def test_what_is_not_a_service_file(text: str, line: int, said: str) -> None:
    found = places(text)
    assert found[0][0] == line
    assert said in found[0][2]


@pytest.mark.parametrize(
    ("addition", "said"),
    [
        ("max_batch_size: 101\n", "less than or equal to 100"),
        ("max_batch_size: 8\nbatching: {preferred: [4, 16]}\n", "16, above max_batch_size 8"),
        ("slo: {latency_ms: 100, caller_gives_up_ms: 50}\n", "below latency_ms"),
        ("traffic: {rate_per_s: 10, peak_per_s: 5}\n", "below rate_per_s"),
        ("traffic: {rate_per_s: .nan}\n", "finite number"),
        ("instances: []\n", "instances is empty"),
        ("instances: [{kind: CPU, gpus: [0]}]\n", "kind is CPU"),
        ("callers: [{name: a, share: 0.5}]\n", "add up to 0.5"),
        ("callers: [{name: a, share: 0.5}, {name: a, share: 0.5}]\n", "more than once"),
        ("samples: [{inputs: {Z: 1}}]\n", "unknown input Z"),
        ("batching: {priority_queue_policy: {1: {max_queue_size: 4294967296}}}\n", "4294967295"),
    ],
)
def test_contradictions_are_named(addition: str, said: str) -> None:
    assert said in " ".join(message for _, _, message in places(GOOD + addition))


def test_variable_input_needs_variable_traffic() -> None:
    assert "traffic.size says fixed" in places(GOOD.replace("shape: [2]", "shape: [-1]"))[0][2]


def test_both_sources_or_none_is_refused() -> None:
    for model in ("{}", '{torch: "a:b", onnx: m.onnx}'):
        assert "exactly one" in places(GOOD.replace("{onnx: m.onnx}", model))[0][2]


def test_name_must_be_the_files(tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text(GOOD, encoding="utf-8")
    with pytest.raises(ServiceFileError, match=r"name is 'm'.*other\.yaml"):
        load_service(path)


def test_not_utf8_and_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_bytes(b"name: \xff\n")
    with pytest.raises(ServiceFileError, match=r"not UTF-8 \(byte 6\)"):
        load_service(path)
    with pytest.raises(ServiceFileError, match="cannot be read"):
        load_service(tmp_path / "missing.yaml")


@pytest.mark.parametrize("name", ["nope", "../m", "/etc/passwd", "", "../{folder}/m"])
def test_unknown_service(tmp_path: Path, name: str) -> None:
    name = name.format(folder=tmp_path.name)
    (tmp_path / "m.yaml").write_text(GOOD, encoding="utf-8")
    with pytest.raises(UnknownService, match="known: m"):
        find_services(tmp_path, [name])
    assert [service.name for service in find_services(tmp_path, [])] == ["m"]


def with_samples(samples: str, dtype: str = "FP32", shape: str = "[2]") -> Service:
    text = GOOD.replace("dtype: FP32, shape: [2]", f"dtype: {dtype}, shape: {shape}") + samples
    service, findings = check_text(text + ("traffic: {size: variable}\n" if "-1" in shape else ""), "m.yaml")
    assert service is not None, findings
    return service


def test_samples_become_rows_with_a_batch_of_one() -> None:
    rows = sample_rows(with_samples("samples: [{inputs: {X: [1, 2]}}, {inputs: {X: [3.5, -4]}}]\n"))
    np.testing.assert_array_equal(rows[1]["X"], np.array([[3.5, -4]], np.float32))
    assert rows[0]["X"].dtype == np.float32


def test_text_sample_is_utf8_bytes() -> None:
    rows = sample_rows(with_samples("samples: [{inputs: {X: héllo}}]\n", "BYTES", "[1]"))
    assert rows[0]["X"].tolist() == [["héllo".encode()]]


@pytest.mark.parametrize(
    ("sample", "dtype", "shape"),
    [
        ("[1, 2, 3]", "FP32", "[2]"),
        ("[[1, 2]]", "FP32", "[2]"),
        ("hello", "FP32", "[1]"),
        ("[300]", "UINT8", "[1]"),
        ("[-1]", "UINT64", "[1]"),
        ("[1.5]", "INT32", "[1]"),
        ("[2]", "BOOL", "[1]"),
        ("[.nan]", "INT8", "[1]"),
    ],
)
def test_samples_that_do_not_fit_are_refused(sample: str, dtype: str, shape: str) -> None:
    text = GOOD.replace("dtype: FP32, shape: [2]", f"dtype: {dtype}, shape: {shape}")
    service, (finding,) = check_text(f"{text}samples: [{{inputs: {{X: {sample}}}}}]\n", "m.yaml")
    assert service is None
    assert "samples[0].inputs.X: " in finding.message
    assert (finding.line, finding.column) == (len(text.splitlines()) + 1, 21)


@pytest.mark.parametrize("dtype", ["FP32", "INT64", "UINT8", "BOOL", "BYTES", "FP16"])
def test_random_rows_fit_their_input_and_repeat(dtype: str) -> None:
    service = with_samples("", dtype, "[3, -1]")
    rows = random_rows(service, 20, seed=3)
    assert {row["X"].shape[:2] for row in rows} == {(1, 3)}
    assert len({row["X"].shape[2] for row in rows}) > 1
    again = random_rows(service, 20, seed=3)
    assert all(np.array_equal(one["X"], other["X"]) for one, other in zip(rows, again, strict=True))


def test_page_is_up_to_date_and_every_key_is_explained(checkout: Path) -> None:
    assert (checkout / "docs" / "service-file.md").read_text(encoding="utf-8") == page()
    silent = [
        f"{block.__name__}.{key}"
        for block in blocks()
        for key, field in block.model_fields.items()
        if not field.description
    ]
    assert silent == []


@pytest.mark.parametrize(
    ("native", "said"),
    [
        ("{precision: fp16}", "only provider tensorrt may choose"),
        ("{cuda_graphs: [8, 4]}", "sizes must ascend and differ"),
        ("{cuda_graphs: [1, 200]}", "less than or equal to 100"),
        ("{provider: openvino}", "'cuda' or 'tensorrt'"),
        ("{cuda_graph: [1]}", "cuda_graph"),
    ],
)
def test_what_a_gpu_cannot_be_told_is_refused(native: str, said: str) -> None:
    (found,) = places(f"{GOOD}native: {native}\n")
    assert said in found[2]


def test_cuda_graphs_fit_the_batches_and_the_shapes() -> None:
    graphs = "native: {cuda_graphs: [1, 50]}\n"
    assert check_text(GOOD + graphs, "services/m.yaml")[1] == []
    ((_, _, message),) = places(f"{GOOD}max_batch_size: 8\n{graphs}")
    assert "native.cuda_graphs has 50, above max_batch_size 8" in message
    variable = GOOD.replace("{name: X, dtype: FP32, shape: [2]}", "{name: X, dtype: FP32, shape: [-1]}")
    ((_, _, message),) = places(f"{variable}traffic: {{size: variable}}\n{graphs}")
    assert "native.cuda_graphs and input X of variable size" in message


def test_a_language_model_has_no_native_profile() -> None:
    ((_, _, message),) = places("name: m\nmodel: {llm: m.gguf}\nnative: {pinned_memory: false}\n")
    assert "native is for a model that answers a batch at once" in message
