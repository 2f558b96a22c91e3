"""The rules on any configuration at all: they answer, with a place in the file, and never fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from tritonclient.grpc.model_config_pb2 import ModelConfig

from brim.config.textformat import write
from brim.lint import lint_paths
from brim.lint.onnx_file import OnnxFile
from tests.property.test_textformat import configs

ANY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@ANY
@given(config=configs())
def test_rules_answer_on_any_configuration(tmp_path: Path, config: ModelConfig) -> None:
    folder = tmp_path / "m"
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "1" / "model.onnx").write_bytes(OnnxFile(("batch", 16), ("batch", 4)).to_bytes())
    text = write(config)
    (folder / "config.pbtxt").write_text(text, encoding="utf-8")
    found = lint_paths([tmp_path])
    lines = text.split("\n")
    for finding in found:
        assert Path(finding.file).name == "config.pbtxt"
        assert 1 <= finding.line <= len(lines)
        assert 1 <= finding.column <= len(lines[finding.line - 1]) + 1
    assert lint_paths([tmp_path]) == found


@pytest.mark.parametrize("name", ["x" * 5000, "a\\000b", "../../../../etc/passwd", "/", ".", "", "\\n"])
def test_file_names_in_a_configuration_do_no_harm(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(
        f'name: "m" backend: "python" max_batch_size: 8 default_model_filename: "{name}"\n'
        'input { name: "x" data_type: TYPE_FP32 dims: 1 }\n'
        f'output {{ name: "y" data_type: TYPE_FP32 dims: 1 label_filename: "{name}" }}\n'
        f'model_warmup {{ batch_size: 1 inputs {{ key: "x" value {{ input_data_file: "{name}" }} }} }}\n'
    )
    found = lint_paths([folder])
    assert found
    assert all(Path(finding.file).name == "config.pbtxt" and finding.line >= 1 for finding in found)
