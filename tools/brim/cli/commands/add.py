"""``brim add``: a model of the user's own, ready to serve."""

from __future__ import annotations

from typing import Annotated

import typer

from brim.cli.app import JsonFlag
from brim.cli.commands.export import OnnxOption, TorchOption, one_source, put_gates
from brim.cli.output import put, put_answer, say
from brim.errors import InputError
from brim.paths import find_project
from brim_export.bring import bring

LlmOption = Annotated[
    str | None,
    typer.Option(
        "--llm", metavar="PATH", help="A GGUF file, an OpenVINO folder, a Hugging Face folder, or package:file.gguf."
    ),
]


def add(
    name: Annotated[str, typer.Argument(help="What the model is called on the server.")],
    torch: TorchOption = None,
    onnx: OnnxOption = None,
    llm: LlmOption = None,
    as_json: JsonFlag = False,
) -> int:
    """Bring a model: gates, service file, configurations, adapter. Exit 1 when a gate refuses; nothing is written then."""
    project = find_project()
    if llm is None:
        result, files = bring(project, name, one_source(torch, onnx), on_progress=say)
        ok, gates = result.ok, result.gates
    elif torch is None and onnx is None:
        # Late: the engine takes seconds to import, and no other model needs it.
        from brim_export.bring_language_model import bring_language_model

        gates, files = bring_language_model(project, name, llm, on_progress=say)
        ok = bool(files)
    else:
        raise InputError("give exactly one of --torch, --onnx and --llm", hint="a service has one model")
    shown = [str(path.relative_to(project.root)) for path in files]
    if as_json:
        put_answer("add", {"gates": [gate.as_json() for gate in gates], "files": shown}, ok=ok)
        return 0 if ok else 1
    put_gates(gates)
    if not ok:
        say("nothing was written")
        return 1
    for path in shown:
        put(path)
    say(f"answer the questions in services/{name}.yaml, then `brim serve {name}`")
    return 0
