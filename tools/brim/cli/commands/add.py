"""``brim add``: a model of the user's own, ready to serve."""

from __future__ import annotations

from typing import Annotated

import typer

from brim.cli.app import JsonFlag
from brim.cli.commands.export import OnnxOption, TorchOption, one_source, put_gates
from brim.cli.output import put, put_answer, say
from brim.paths import find_project
from brim_export.bring import bring


def add(
    name: Annotated[str, typer.Argument(help="What the model is called on the server.")],
    torch: TorchOption = None,
    onnx: OnnxOption = None,
    as_json: JsonFlag = False,
) -> int:
    """Bring a model: gates, service file, configurations, adapter. Exit 1 when a gate refuses; nothing is written then."""
    project = find_project()
    result, files = bring(project, name, one_source(torch, onnx), on_progress=say)
    shown = [str(path.relative_to(project.root)) for path in files]
    if as_json:
        put_answer("add", {"gates": [gate.as_json() for gate in result.gates], "files": shown}, ok=result.ok)
        return 0 if result.ok else 1
    put_gates(result.gates)
    if not result.ok:
        say("nothing was written")
        return 1
    for path in shown:
        put(path)
    say(f"answer the questions in services/{name}.yaml, then `brim serve {name}`")
    return 0
