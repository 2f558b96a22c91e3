"""What the linter says about whole files, folders and repositories: the stated answers of the reported faults."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from brim.config.textformat import parse
from brim.errors import InputError
from brim.findings import Finding, has_errors
from brim.lint import lint_paths
from brim.lint.onnx_file import OnnxFile, read_signature
from brim.lint.releases import DEFECTS, RELEASES
from brim.lint.tensorrt import check_profiles

CASES = Path(__file__).parents[1] / "cases"
CONFLICTS = [json.loads(line) for line in (CASES / "11_conflicts.jsonl").read_text(encoding="utf-8").splitlines()]
PROFILES = json.loads((CASES / "05_profiles.json").read_text(encoding="utf-8"))
BATTERY = [json.loads(line) for line in (CASES / "08_syntax_battery.jsonl").read_text(encoding="utf-8").splitlines()]
RAGGED = CASES / "15_kitchen_sink.pbtxt"


def lint_text(tmp_path: Path, text: str, release: str = "24.10") -> list[Finding]:
    path = tmp_path / "given.pbtxt"
    path.write_text(text, encoding="utf-8")
    return lint_paths([path], release=release)


def errors(found: list[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.severity == "error"]


def by_code(found: list[Finding], code: str) -> Finding:
    (only,) = [finding for finding in found if finding.code == code]
    return only


@pytest.mark.parametrize("case", BATTERY, ids=lambda case: case["id"])
def test_syntax_battery(tmp_path: Path, case: dict[str, object]) -> None:
    found = errors(lint_text(tmp_path, str(case["text"])))
    assert bool(found) is not case["ok"]
    assert all(finding.line == 1 and finding.column >= 1 for finding in found)


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("too_small", "TRT002", ["64 < 100"]),
        ("min_not_one", "TRT003", ["batch 4"]),
        ("static_one", "TRT002", ["batch 1 only", "1 < 100"]),
        ("rank", "TRT004", ["rank 3", "implies 4"]),
        ("ok", None, []),
    ],
)
def test_tensorrt_profiles(tmp_path: Path, name: str, code: str | None, words: list[str]) -> None:
    model = tmp_path / "cam"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.plan").write_text("engine")
    (model / "config.pbtxt").write_bytes((CASES / "05_config.pbtxt").read_bytes())
    (model / "profiles.json").write_text(json.dumps(PROFILES[name]))
    found = errors(lint_paths([tmp_path]))
    assert [finding.code for finding in found] == ([code] if code else [])
    for finding in found:
        assert all(word in finding.message for word in words)
        assert (finding.line, finding.column) in [(3, 1), (4, 42)]
    config = parse((model / "config.pbtxt").read_bytes(), "f").message
    assert config is not None
    assert [found_code for found_code, _ in check_profiles(config, PROFILES[name])] == ([code] if code else [])


def test_every_profile_of_a_file_is_checked(tmp_path: Path) -> None:
    model = tmp_path / "cam"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.plan").write_text("engine")
    (model / "config.pbtxt").write_bytes((CASES / "05_config.pbtxt").read_bytes())
    (model / "1" / "profiles.json").write_text(json.dumps(PROFILES))
    found = errors(lint_paths([model]))
    assert [finding.message.split(":")[0] for finding in found if finding.code == "TRT002"] == [
        "profile static_one",
        "profile too_small",
    ]


def onnx_model(root: Path, config: bytes | str, model: OnnxFile) -> Path:
    name = "doubled"
    (root / name / "1").mkdir(parents=True)
    (root / name / "1" / "model.onnx").write_bytes(model.to_bytes())
    data = config if isinstance(config, bytes) else config.encode()
    (root / name / "config.pbtxt").write_bytes(data)
    return root / name


def test_batch_written_twice(tmp_path: Path) -> None:
    config = (CASES / "06_dims_with_batch.pbtxt").read_bytes()
    found = lint_paths([onnx_model(tmp_path, config, OnnxFile(("batch", 16), ("batch", 4)))])
    (finding,) = errors(found)
    assert (finding.code, finding.line, finding.column) == ("ONX001", 5, 43)
    assert "rank 2" in finding.message and "rank 3 ([-1, -1, 16])" in finding.message
    assert "dims: [16]" in finding.hint


def test_batch_written_twice_is_suspected_without_a_model() -> None:
    finding = by_code(lint_paths([CASES / "06_dims_with_batch.pbtxt"]), "CFG036")
    assert (finding.line, finding.column) == (5, 43)
    assert "dims: [16]" in finding.hint


def test_model_with_a_fixed_batch(tmp_path: Path) -> None:
    case = json.loads((CASES / "06_fixed_model.json").read_text(encoding="utf-8"))
    given = case["config"]
    config = f"max_batch_size: {given['max_batch_size']}\n" + "".join(
        f'{kind} {{ name: "{tensor["name"]}" data_type: {tensor["data_type"]} dims: {tensor["dims"]} }}\n'
        for kind in ("input", "output")
        for tensor in given[kind]
    )
    shapes = {"x": tuple(case["onnx_inputs"]["x"][1]), "y": tuple(case["onnx_outputs"]["y"][1])}
    found = errors(lint_paths([onnx_model(tmp_path, config, OnnxFile(**shapes))]))
    assert {finding.code for finding in found} == {"ONX002"}
    assert all("batch dim is 1" in finding.message and "cannot batch" in finding.message for finding in found)
    assert all("max_batch_size: 0" in finding.hint and "export" in finding.hint for finding in found)
    assert {(finding.line, finding.column) for finding in found} == {(1, 1)}


def test_model_beside_a_lone_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(OnnxFile(("batch", 16), ("batch", 4)).to_bytes())
    (tmp_path / "doubled.pbtxt").write_bytes((CASES / "06_dims_with_batch.pbtxt").read_bytes())
    assert by_code(lint_paths([tmp_path / "doubled.pbtxt"]), "ONX001").line == 5


def test_external_weights_are_not_needed(tmp_path: Path) -> None:
    import onnx

    model = onnx.load_from_string(OnnxFile(("batch", 16), ("batch", 4)).to_bytes())
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").unlink()
    assert read_signature(tmp_path / "m.onnx").inputs["x"].dims == ("batch", 16)


def test_64_bit_priorities() -> None:
    found = lint_paths([CASES / "07_uint64_priorities.pbtxt"])
    assert errors(found) == []
    assert "18446744073709551615" in by_code(found, "QUE007").message


def test_bounded_queue() -> None:
    found = lint_paths([CASES / "09_bounded_queue.pbtxt"])
    assert errors(found) == []
    bound = by_code(found, "QUE006")
    assert (bound.line, bound.column) == (10, 26)
    assert "8" in bound.message and "100" in bound.message
    stall = by_code(found, "TRI001")
    assert (stall.line, stall.column) == (10, 26)


def test_queue_bound_outside_the_batcher_is_sent_home(tmp_path: Path) -> None:
    text = 'name: "m"\nbackend: "python"\nmax_batch_size: 100\ndefault_queue_policy { max_queue_size: 8 }\n'
    finding = by_code(lint_text(tmp_path, text), "CFG007")
    assert (finding.line, finding.column) == (4, 1)
    assert "belongs inside dynamic_batching" in finding.hint


def test_omitted_preferred_sizes_mean_the_maximum(tmp_path: Path) -> None:
    text = 'name: "m" backend: "python" max_batch_size: 100 dynamic_batching { default_queue_policy { max_queue_size: 99 } }'
    assert "100" in by_code(lint_text(tmp_path, text), "QUE006").message
    assert "QUE006" not in {finding.code for finding in lint_text(tmp_path, text.replace("99", "100"))}


CONFLICT_PLACES = {
    "a": ("BAT001", "priority_levels"),
    "b": ("BAT002", "timeout_action"),
    "d": ("QUE001", "priority_levels"),
    "e": ("QUE002", "priority_queue_policy"),
    "f": ("CFG012", "sequence_batching"),
    "g": ("BAT005", "4 ]"),
    "h": ("BAT004", "128"),
    "i": ("BAT003", "0 ]"),
}


@pytest.mark.parametrize("case", CONFLICTS, ids=lambda case: case["id"])
def test_conflicts(tmp_path: Path, case: dict[str, str]) -> None:
    found = errors(lint_text(tmp_path, case["text"]))
    if case["ok"]:
        assert found == []
        return
    code, word = CONFLICT_PLACES[case["id"]]
    (finding,) = found
    assert (finding.code, finding.line, finding.column) == (code, 1, case["text"].index(word) + 1)
    assert all(name in finding.message for name in case["names"])


@pytest.mark.parametrize("path", ["13_repo_refs", "13_repo_refs/clf", "13_repo_refs/clf/config.pbtxt"])
def test_dangling_references_are_all_found(path: str) -> None:
    found = errors(lint_paths([CASES / path]))
    folder = CASES / "13_repo_refs" / "clf"
    places = {(f.code, Path(f.file).relative_to(folder).as_posix(), f.line, f.column) for f in found}
    assert places == {
        ("REP009", "config.pbtxt", 5, 60),
        ("REP010", "labels.txt", 1, 4),
        ("REP004", "config.pbtxt", 6, 42),
        ("WRM001", "config.pbtxt", 10, 3),
        ("REP007", "config.pbtxt", 2, 1),
    }
    assert "2 labels for 3 classes" in by_code(found, "REP009").message
    assert "'cat\\r'" in by_code(found, "REP010").message
    assert "version 4" in by_code(found, "REP004").message and "there: 1" in by_code(found, "REP004").message
    assert "'input'" in by_code(found, "WRM001").message and "known: pixels" in by_code(found, "WRM001").message
    assert "model.onnx is empty" in by_code(found, "REP007").message


def test_kitchen_sink_has_no_errors() -> None:
    found = lint_paths([RAGGED])
    assert errors(found) == []
    duplicate = by_code(found, "CFG015")
    assert (duplicate.line, duplicate.column) == (18, 86)


SINK = RAGGED.read_text(encoding="utf-8")
BATCH_INPUT = next(line for line in SINK.splitlines() if line.startswith("batch_input"))


@pytest.mark.parametrize(
    ("edited", "code", "place", "word"),
    [
        (SINK.replace('source_input: "ids"', 'source_input: "idz"'), "RAG002", (13, 110), "idz"),
        (SINK.replace(BATCH_INPUT, BATCH_INPUT.replace("TYPE_INT32", "TYPE_INT64")), "RAG003", (13, 88), "TYPE_INT64"),
        (SINK.replace(' source_input: "ids"', ""), "RAG001", (13, 15), "got 0"),
        (SINK.replace("enable: false", "enable: true"), "BAT006", (21, 18), "decoupled"),
    ],
    ids="abce",
)
def test_ragged_negatives(tmp_path: Path, edited: str, code: str, place: tuple[int, int], word: str) -> None:
    assert edited != SINK
    (finding,) = errors(lint_text(tmp_path, edited))
    assert (finding.code, finding.line, finding.column) == (code, *place)
    assert word in finding.message


def test_ragged_rows_without_lengths_are_a_warning(tmp_path: Path) -> None:
    found = lint_text(tmp_path, SINK.replace(BATCH_INPUT, ""))
    assert errors(found) == []
    finding = by_code(found, "RAG004")
    assert (finding.line, finding.column) == (6, 53)
    assert "'ids'" in finding.message


QUEUES = {
    "default_timeout_microseconds": "default_queue_policy { default_timeout_microseconds: 5000000 }",
    "allow_timeout_override": "default_queue_policy { allow_timeout_override: true }",
    "max_queue_size": "default_queue_policy { max_queue_size: 400 }",
    "priority_levels": "priority_levels: 2 default_priority_level: 1",
}


@pytest.mark.parametrize("setting", QUEUES)
@pytest.mark.parametrize(
    ("group", "stalls"),
    [
        ("", True),
        ("instance_group { }", True),
        ("instance_group { count: 1 kind: KIND_GPU gpus: 0 }", True),
        ("instance_group { count: 1 } instance_group { count: 2 passive: true }", True),
        ("instance_group { count: 2 }", False),
        ("instance_group [ { count: 1 }, { count: 1 } ]", False),
        ("instance_group { kind: KIND_GPU gpus: [ 0, 1 ] }", False),
    ],
)
def test_bounded_queue_stalls_on_one_instance(tmp_path: Path, setting: str, group: str, stalls: bool) -> None:
    text = f'name: "m" backend: "python" max_batch_size: 100 {group} dynamic_batching {{ {QUEUES[setting]} }}'
    found = [finding for finding in lint_text(tmp_path, text) if finding.code == "TRI001"]
    assert len(found) == int(stalls)
    assert all(setting in finding.message for finding in found)


def test_native_onnx_on_the_cpu_has_two_instances_by_default(tmp_path: Path) -> None:
    text = (
        'name: "m" backend: "onnxruntime" max_batch_size: 100 instance_group { kind: KIND_CPU }'
        " dynamic_batching { default_queue_policy { max_queue_size: 400 } }"
    )
    assert "TRI001" not in {finding.code for finding in lint_text(tmp_path, text)}


def test_defects_follow_the_release(tmp_path: Path) -> None:
    text = (
        'name: "m" backend: "python" max_batch_size: 100 instance_group { count: 2 } dynamic_batching {'
        " max_queue_delay_microseconds: 2000 default_queue_policy { max_queue_size: 400 } }"
    )
    drifting = [release for release in RELEASES if "TRI003" in {f.code for f in lint_text(tmp_path, text, release)}]
    assert drifting == [release for release in RELEASES if release <= "26.06"]
    assert all(affected.first in RELEASES and affected.last in RELEASES for affected in DEFECTS.values())


def test_unknown_release_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"'19\.99' is unknown; known: 24\.10, 24\.11"):
        lint_paths([RAGGED], release="19.99")


def test_paths_without_configuration_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        lint_paths([tmp_path / "nothing"])
    with pytest.raises(InputError, match="holds no configuration"):
        lint_paths([tmp_path])
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(InputError, match="holds no configuration"):
        lint_paths([tmp_path / "notes.txt"])


def make_model(root: Path, name: str, config: str = "") -> Path:
    folder = root / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text("class TritonPythonModel: ...\n")
    (folder / "config.pbtxt").write_text(f'name: "{name}"\nbackend: "python"\nmax_batch_size: 100\n{config}')
    return folder


def test_repository_model_folder_and_profiles_give_the_same_findings_once(tmp_path: Path) -> None:
    folder = make_model(tmp_path, "m")
    (folder / "configs").mkdir()
    profile = folder / "configs" / "gpu.pbtxt"
    profile.write_text('name: "other"\nbackend: "onnxruntime"\nmax_batch_size: 101\n')
    expected = {("CFG040", "error"), ("REP001", "error"), ("REP006", "warning"), ("WRM007", "warning")}
    for paths in ([tmp_path], [folder], [profile], [tmp_path, folder, profile]):
        found = lint_paths(paths)
        assert {(finding.code, finding.severity.value) for finding in found} == expected
        assert len(found) == len(expected)
        assert {Path(finding.file).name for finding in found} == {"gpu.pbtxt"}


def test_configuration_named_by_itself_needs_no_repository_around_it(tmp_path: Path) -> None:
    (tmp_path / "config.pbtxt").write_text('name: "elsewhere"\nbackend: "python"\nmax_batch_size: 8\n')
    assert lint_paths([tmp_path / "config.pbtxt"]) == []
    assert {finding.code for finding in lint_paths([tmp_path])} == {"REP001", "REP002"}


def test_ensemble_is_checked_against_its_neighbours_even_alone(tmp_path: Path) -> None:
    make_model(tmp_path, "m", 'input { name: "x" data_type: TYPE_FP32 dims: 4 }\n')
    ensemble = tmp_path / "e"
    (ensemble / "1").mkdir(parents=True)
    (ensemble / "config.pbtxt").write_text(
        'name: "e"\nplatform: "ensemble"\nmax_batch_size: 100\n'
        'input { name: "X" data_type: TYPE_FP32 dims: 4 }\noutput { name: "Y" data_type: TYPE_FP32 dims: 4 }\n'
        "ensemble_scheduling { step [\n"
        '  { model_name: "m" input_map { key: "x" value: "X" } output_map { key: "y" value: "t" } },\n'
        '  { model_name: "gone" input_map { key: "x" value: "t" } output_map { key: "y" value: "Y" } }\n'
        "] }\n"
    )
    (finding,) = lint_paths([ensemble])
    assert (finding.code, finding.line, finding.column) == ("ENS002", 8, 5)
    assert "'gone'" in finding.message and "known: e, m" in finding.message


def test_shapes_in_an_ensemble_may_move_the_batch_into_dims(tmp_path: Path) -> None:
    tensors = 'input {{ name: "x" data_type: TYPE_FP32 dims: {dims} }} output {{ name: "y" data_type: TYPE_FP32 dims: {dims} }}'
    folder = make_model(tmp_path, "m")
    (folder / "config.pbtxt").write_text(f'name: "m" backend: "python" {tensors.format(dims="[ -1, 4 ]")}')
    ensemble = tmp_path / "e"
    (ensemble / "1").mkdir(parents=True)
    text = (
        'name: "e" platform: "ensemble" max_batch_size: 100 '
        + tensors.format(dims="4")
        + ' ensemble_scheduling { step { model_name: "m" input_map { key: "x" value: "x" }'
        ' output_map { key: "y" value: "y" } } }'
    )
    (ensemble / "config.pbtxt").write_text(text)
    assert lint_paths([tmp_path]) == []
    (folder / "config.pbtxt").write_text(f'name: "m" backend: "python" {tensors.format(dims="[ 2, 4 ]")}')
    assert {finding.code for finding in lint_paths([tmp_path])} == set()
    (folder / "config.pbtxt").write_text(f'name: "m" backend: "python" {tensors.format(dims="[ -1, 5 ]")}')
    assert {finding.code for finding in lint_paths([tmp_path])} == {"ENS004"}


def test_text_faults_keep_the_other_rules_quiet(tmp_path: Path) -> None:
    found = lint_text(tmp_path, "max_batchsize: 100\ndynamic_batching { preferred_batch_size: [ 4, ] }")
    assert [(finding.code, finding.line) for finding in found] == [("CFG007", 1), ("CFG005", 2)]


def test_the_repository_of_this_checkout_has_no_errors_but_missing_builds() -> None:
    repository = Path(__file__).parents[2] / "model_repository"
    if not list(repository.glob("*/config.pbtxt")):
        pytest.skip("no model in the repository yet")
    # What the export makes: the model file and the labels.
    built = {"REP006", "REP007", "REP008"}
    found = [finding for finding in errors(lint_paths([repository])) if finding.code not in built]
    assert [finding.render() for finding in found] == []


def test_lint_loads_no_heavy_library() -> None:
    program = "import sys, brim.lint; print([m for m in ('torch', 'onnxruntime', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_every_finding_of_many_models_is_reported(tmp_path: Path) -> None:
    for number in range(100):
        make_model(tmp_path, f"m{number:03d}", "dynamic_batching { preferred_batch_size: 128 }\n")
    found = lint_paths([tmp_path])
    assert has_errors(found)
    assert [finding.code for finding in found] == ["BAT004"] * 100
    assert found == sorted(found, key=lambda finding: finding.file)
