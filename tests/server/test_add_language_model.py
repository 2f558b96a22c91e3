"""A language model of one's own in one command: gates, service file, configurations, and torch's own text from the server."""

from __future__ import annotations

import errno
import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import openvino_genai
import pytest

from brim.cli.commands.export import put_gates
from brim.engine.tokenise import TOKENIZER_FILES, Tokenizer
from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint
from brim.server.options import ServerOptions
from brim.service.load import find_service, find_services
from brim.service.samples import sample_rows
from brim_export import language_model_gates
from brim_export.bring_language_model import bring_language_model
from brim_export.gates import GateResult
from brim_export.llama_reference import LlamaReference
from tests.conftest import Brim
from tests.server.test_hostile_input import assert_clear, tree
from tests.server.text_callers import WAIT_S
from tests.tiny_language_model import CONTEXT_TOKENS, Tiny, gguf_tensors, save_gguf, tiny

LENGTH = 24
PROMPT = "Once upon a time, 7 seas"


@pytest.fixture(scope="module")
def model() -> Tiny:
    return tiny("qwen3", padding=7)


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file of a llama whose layers are in 8 bits, linked as the cache of the Hugging Face hub links its files."""
    llama = tiny()
    kinds = {
        name: gguf.GGMLQuantizationType.Q8_0
        for name, values in gguf_tensors(llama.module).items()
        if values.ndim == 2 and name.startswith("blk.")
    }
    folder = tmp_path_factory.mktemp("file")
    save_gguf(folder / "0123abcd", llama, kinds=kinds)
    (folder / "tiny.gguf").symlink_to("0123abcd")
    return folder / "tiny.gguf"


def empty_project(root: Path) -> Project:
    project = Project(root)
    project.services.mkdir(parents=True)
    project.model_repository.mkdir()
    return project


def graph_of(exported: Path, place: Path) -> Path:
    """The exported model as a folder in OpenVINO's format."""
    place.mkdir()
    shutil.copy(exported / "model.gguf", place / "model.gguf")
    scheduling = openvino_genai.SchedulerConfig()
    scheduling.num_kv_blocks = 1
    openvino_genai.ContinuousBatchingPipeline(
        str(place / "model.gguf"),
        openvino_genai.Tokenizer(str(exported)),
        scheduling,
        "CPU",
        enable_save_ov_model=True,
    )
    (place / "model.gguf").unlink()
    for name in TOKENIZER_FILES:
        for part in (name, name.replace(".xml", ".bin")):
            shutil.copy(exported / part, place / part)
    return place


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return empty_project(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def gates(project: Project, model: Tiny, quantised: Path) -> dict[str, dict[str, GateResult]]:
    """Three models added, one of each kind; what their gates said."""
    found = {}
    sources = {
        "folder": lambda: model.save(project.root / "hugging"),
        "file": lambda: quantised,
        "graph": lambda: graph_of(project.model_repository / "folder" / "1", project.root / "graph"),
    }
    for name, source in sources.items():
        answers, files = bring_language_model(project, name, str(source()))
        assert files[0] == project.services / f"{name}.yaml", answers
        found[name] = {answer.gate: answer for answer in answers}
    return found


@pytest.fixture(scope="module")
def endpoint(
    project: Project, checkout: Path, gates: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Endpoint]:
    """The three models served."""
    services = find_services(project.services, [])
    with EmbeddedServer(
        project.model_repository,
        [service.name for service in services],
        cache=Project(checkout).cache,
        log_file=tmp_path_factory.mktemp("own-log") / "triton.log",
        canaries={service.name: sample_rows(service)[0] for service in services},
        options=ServerOptions(exit_timeout_s=5),
    ) as server:
        yield server.endpoint


def test_gates_tell_what_was_compared_and_what_was_not(gates: dict[str, dict[str, GateResult]]) -> None:
    total = language_model_gates.PARITY_TOKENS
    for name in ("folder", "file"):
        parity = gates[name]["parity"]
        assert f" of {total} greedy tokens are those of torch" in parity.message
        # Without rounding there is nothing to be put down to it.
        assert parity.seen["others"] == 0 or (name == "file" and "rounding to half precision" in parity.message)
        assert not any(gate.skipped for gate in gates[name].values())
    assert "those of tokenizer.json" in gates["folder"]["vocabulary"].message
    assert gates["folder"]["weights"].seen["rounding"] == 0 < gates["file"]["weights"].seen["rounding"]
    assert gates["graph"]["parity"].skipped and "not checked against torch" in gates["graph"]["parity"].message
    assert gates["graph"]["together"].message.startswith(f"{total} greedy tokens are the same")


def test_a_gate_that_had_nothing_to_try_shows(
    gates: dict[str, dict[str, GateResult]], capsys: pytest.CaptureFixture[str]
) -> None:
    put_gates(list(gates["graph"].values()))
    answers = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert answers == [["ok", "weights:"], ["ok", "vocabulary:"], ["SKIPPED", "parity:"], ["ok", "together:"]]


def test_a_record_keeps_what_was_not_checked(project: Project, gates: object) -> None:
    record = json.loads((project.model_repository / "graph" / "1" / "language_model.json").read_text(encoding="utf-8"))
    assert {gate["gate"]: gate["skipped"] for gate in record["gates"]} == {
        "weights": False,
        "vocabulary": False,
        "parity": True,
        "together": False,
    }
    assert set(record["files"]) > {"model/openvino_model.xml", "model/openvino_model.bin"}


def test_defaults_come_from_the_model(project: Project, gates: object) -> None:
    for name, context in (("folder", CONTEXT_TOKENS), ("file", CONTEXT_TOKENS), ("graph", 4096)):
        generation = find_service(project.services, name).generation
        assert generation is not None and generation.context_tokens == context
    text = (project.services / "folder.yaml").read_text(encoding="utf-8")
    assert f"context_tokens: {CONTEXT_TOKENS} # the model was made for {CONTEXT_TOKENS}\n" in text.replace("  #", " #")
    assert "llm: hugging\n" in text


@pytest.mark.parametrize("name", ["folder", "graph", "file"])
def test_the_server_says_what_torch_says(
    endpoint: Endpoint, project: Project, model: Tiny, quantised: Path, name: str
) -> None:
    if name == "file":
        tokenizer = Tokenizer.load(project.model_repository / "file" / "1" / "model.gguf")
        tokens = LlamaReference(quantised).rounded().greedy(tokenizer.tokens_of(PROMPT, most=64), LENGTH)
        wanted = b"".join(tokenizer.table[token] for token in tokens).decode("utf-8", "replace")
    else:
        wanted = model.text(PROMPT, LENGTH)
    options = {"temperature": 0, "ignore_eos": True, "max_tokens": LENGTH, "exclude_input_in_output": True}
    body = json.dumps({"text_input": PROMPT, "return_num_output_tokens": True, **options}).encode()
    request = urllib.request.Request(f"http://{endpoint.http}/v2/models/{name}/generate", body)
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        found = json.loads(answer.read())
    assert (found["text_output"], found["num_output_tokens"]) == (wanted, LENGTH)


def test_commands_take_it_like_any_other(
    project: Project, gates: object, brim: Brim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIM_ROOT", str(project.root))
    assert brim("config", "--check").code == 0
    assert brim("lint", project.model_repository).code == 0
    for name in ("folder", "file", "graph"):
        exported = brim("export", name, "--json")
        assert (exported.code, json.loads(exported.out)["data"]["up_to_date"]) == (0, True), exported.err
    service = project.services / "folder.yaml"
    text = service.read_text(encoding="utf-8")
    service.write_text(text.replace(f"context_tokens: {CONTEXT_TOKENS}", "context_tokens: 1024"), encoding="utf-8")
    done = brim("export", "folder")
    service.write_text(text, encoding="utf-8")
    assert done.code == 2
    assert_clear(done.err)
    assert f"context_tokens is 1024, and the model was made for {CONTEXT_TOKENS}" in done.err


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A checkout without a service."""
    project = empty_project(tmp_path / "checkout")
    project.cache_folder()
    monkeypatch.setenv("BRIM_ROOT", str(project.root))
    monkeypatch.chdir(project.root)
    return project


def test_the_command_says_what_it_did(bare: Project, brim: Brim, model: Tiny, tmp_path: Path) -> None:
    llama = tiny(halved=False)
    folder = llama.save(tmp_path / "hugging")
    done = brim("add", "mine", "--llm", folder, "--json")
    assert done.code == 0, done.err
    data = json.loads(done.out)["data"]
    parity = next(gate for gate in data["gates"] if gate["gate"] == "parity")
    assert "which is rounding to half precision" in parity["message"] or parity["message"].startswith("393 of 393")
    assert set(data["files"]) >= {"services/mine.yaml", "model_repository/mine/1/model.gguf"}
    assert (bare.model_repository / "mine" / "1" / "model.py").read_text(encoding="utf-8").count("TextModel") == 2
    before = tree(bare)
    again = brim("add", "mine", "--llm", folder)
    assert (again.code, tree(bare)) == (2, before)
    assert "services/mine.yaml exists already" in again.err


BAD: dict[str, tuple[list[str], str]] = {
    "no such file": (["--llm", "nowhere.gguf"], "no file nowhere.gguf"),
    "no model": (["--llm", "services"], "no folder of a language model"),
    "two sources": (["--llm", "cut.gguf", "--onnx", "a.onnx"], "exactly one of --torch, --onnx and --llm"),
    "cut": (["--llm", "cut.gguf"], "no whole GGUF file"),
    "embedding": (["--llm", "embedding.gguf"], "an embedding model"),
    "SentencePiece": (["--llm", "sentencepiece.gguf"], "SentencePiece"),
    "package": (["--llm", "no_such_package_here:a.gguf"], "is not installed"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_served_leaves_nothing_behind(bare: Project, brim: Brim, model: Tiny, name: str) -> None:
    llama = tiny()
    whole = save_gguf(bare.root / "cut.gguf", llama)
    whole.write_bytes(whole.read_bytes()[:-1000])
    save_gguf(bare.root / "embedding.gguf", llama, changes={"llama.pooling_type": 1})
    save_gguf(bare.root / "sentencepiece.gguf", llama, changes={"tokenizer.ggml.model": "llama"})
    arguments, said = BAD[name]
    before = tree(bare)
    done = brim("add", "mine", *arguments)
    assert done.code == 2
    assert_clear(done.err)
    assert said in done.err
    assert tree(bare) == before


def test_a_model_that_says_something_else_than_torch_is_refused(
    bare: Project, brim: Brim, quantised: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(LlamaReference):
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            self._module.model.layers[1].mlp.down_proj.weight.data *= -1

    monkeypatch.setattr("brim_export.llama_reference.LlamaReference", Other)
    before = tree(bare)
    done = brim("add", "mine", "--llm", quantised)
    assert (done.code, tree(bare)) == (1, before)
    assert "REFUSED parity: after 'Once upon a time' token" in done.out


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_full_disk_or_an_interruption_leaves_nothing_behind(
    bare: Project, brim: Brim, quantised: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    def fail(*_: Any) -> None:
        raise failure

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", fail)
    before = tree(bare)
    done = brim("add", "mine", "--llm", quantised)
    assert done.code == (2 if isinstance(failure, OSError) else 130)
    assert tree(bare) == before
