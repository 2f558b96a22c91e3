"""Bring a user's own language model: past the gates, then its service file, configurations and adapter."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from brim.config.files import VERSION, write_configs
from brim.engine.template import MODEL_PY
from brim.errors import InputError
from brim.paths import Project
from brim.service.load import check_text
from brim_export.bring import check_name, from_checkout, put_in_place
from brim_export.gates import GateResult
from brim_export.generation_defaults import GenerationDefaults, generation_defaults
from brim_export.language_model import export_language_model
from brim_export.language_model_source import PACKAGED, LanguageModelSource, find_source
from brim_export.model_shape import shape_of
from brim_export.placement import staging

QUESTIONS = """# {name}: brought by `brim add`. The values below are defaults: answer these before you trust them.
#   slo            how long may a caller wait for its first token, for each further one, and for the whole text?
#   traffic        how much, steady or in bursts?
#   callers        are all equal, or are there classes with priorities and deadlines?
#   samples        a few real prompts; the first one is the canary, and load tests draw from them
#   generation     how many texts at once, and how long? The profile vllm {vllm}
# Every key: docs/service-file.md. After a change: `brim config {name} --write`.
"""
_VLLM = {
    "gguf": "loads the exported file",
    "openvino": "reads no OpenVINO folder: name another one with vllm_model",
    "hugging_face": "needs vllm_model: this folder, by its path there",
}
PROMPTS = ("Once upon a time", "The capital of France is")


def bring_language_model(
    project: Project, name: str, written: str, *, on_progress: Callable[[str], None] = lambda _: None
) -> tuple[list[GateResult], list[Path]]:
    """Add a language model called ``name``. Returns the gates' answers and the files that were written: none when one
    refused.

    Everything is made beside and moved into place at the end, the service file last.

    Args:
        project: the checkout.
        name: of the service.
        written: a path, a relative one counted from the working directory, or ``package:file.gguf``.
        on_progress: told what is being done.

    Raises:
        InputError: the name is taken or unfit, or the machine has no memory for the model's KV cache.
        ModelFileError: the model cannot be read, or is none that can be served.
        CouldNotTell: the machine has not the memory to check it.
        NoSpace: the disk is full.
    """
    check_name(project, name)
    if not PACKAGED.fullmatch(written):
        written = _recorded(project, Path(written))
    if not written.isprintable():
        raise InputError(f"the path {written!r} cannot stand in a service file", hint="rename the file or its folder")
    source = find_source(written, project.root)
    project.model_repository.mkdir(parents=True, exist_ok=True)
    project.services.mkdir(parents=True, exist_ok=True)
    with staging(project.cache_folder() / f"adding-{name}") as temporary:
        staged = temporary / name
        gates, record = export_language_model(source, staged / VERSION, on_progress=on_progress)
        if record is None:
            return gates, []
        defaults = generation_defaults(shape_of(source), psutil.virtual_memory().available)
        text = service_text(name, source, defaults)
        service, findings = check_text(text, f"services/{name}.yaml")
        if service is None:
            raise InputError("\n".join(finding.render() for finding in findings), hint="give it another name or path")
        (staged / VERSION / "model.py").write_text(MODEL_PY, encoding="utf-8")
        write_configs(temporary, service)
        return gates, put_in_place(project, name, temporary, [name], text)


def _recorded(project: Project, path: Path) -> str:
    # A linked file keeps its own name: the cache of the Hugging Face hub links files to others without a suffix.
    whole = path.resolve() if path.is_dir() else path.parent.resolve() / path.name
    return from_checkout(project, whole)


def service_text(name: str, source: LanguageModelSource, defaults: GenerationDefaults) -> str:
    """The service file, with the questions that only a person can answer on top."""
    generation = CommentedMap(context_tokens=defaults.context_tokens, kv_blocks=defaults.kv_blocks)
    generation.yaml_add_eol_comment(defaults.context_reason, "context_tokens")
    generation.yaml_add_eol_comment(defaults.kv_reason, "kv_blocks")
    greedy = [json.dumps({"max_tokens": length, "temperature": 0}) for length in (1, 8)]
    document: dict[str, Any] = {
        "name": name,
        "model": {"llm": source.written},
        "generation": generation,
        "slo": {
            "ttft_ms": 2000,
            "tpot_ms": 200,
            "latency_ms": 30_000,
            "percentile": 99,
            "caller_gives_up_ms": 60_000,
        },
        "traffic": {"rate_per_s": 1, "arrival": "bursty"},
        "samples": [
            {"inputs": {"text_input": prompt, "sampling_parameters": options}}
            for prompt, options in zip(PROMPTS, greedy, strict=True)
        ],
    }
    yaml = YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = 140
    written = StringIO()
    yaml.dump(document, written)
    return QUESTIONS.format(name=name, vllm=_VLLM[source.kind]) + written.getvalue()
