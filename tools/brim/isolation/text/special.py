"""A second server with other settings of the model's host: fewer seats, or a smaller KV cache."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from brim.adapter_parameter import PARAMETER
from brim.server.embedded import EmbeddedServer, ServerOptions

CONFIG_NAME = "config.pbtxt"
VERSION_NAME = "1"
BOUNDS = ("ttft_ms", "gives_up_ms")
"""Settings by which the host refuses who waits too long."""


def settings_of(repository: Path, model: str) -> dict[str, Any]:
    """The settings of the model's host in its configuration; empty where it has none, such as vLLM's."""
    parameters = _config(repository / model).parameters
    found: dict[str, Any] = json.loads(parameters[PARAMETER].string_value) if PARAMETER in parameters else {}
    return found


def no_special(own: EmbeddedServer | None, model: str) -> str:
    """Why no server with other settings can be started; empty when one can."""
    if own is None:
        return "the server is not the suite's own, so none with other settings can be started"
    if not settings_of(own.repository, model):
        return f"the model's configuration has no parameter {PARAMETER!r} that could be changed"
    return ""


@contextmanager
def patient_repository(repository: Path, model: str, **changes: Any) -> Iterator[Path]:
    """A changed copy of the model alone, whose host refuses nobody for having waited; the version folder is the same one.

    How long a slow machine takes beside thousands of bad requests is not the question here.

    Args:
        repository: where the model is.
        model: which.
        changes: further settings of its host.
    """
    source = repository / model
    config, settings = _config(source), settings_of(repository, model)
    if settings:
        classes = [{**one, "deadline_ms": None} for one in settings.get("classes", [])]
        bounds = {name: None for name in BOUNDS if name in settings}
        config.parameters[PARAMETER].string_value = json.dumps({**settings, **bounds, "classes": classes, **changes})
    with tempfile.TemporaryDirectory(prefix="brim-isolation-") as folder:
        copy = Path(folder) / model
        copy.mkdir()
        (copy / CONFIG_NAME).write_text(text_format.MessageToString(config), encoding="utf-8")
        (copy / VERSION_NAME).symlink_to((source / VERSION_NAME).resolve())
        yield Path(folder)


@contextmanager
def special_server(own: EmbeddedServer, model: str, **changes: Any) -> Iterator[EmbeddedServer]:
    """A running server of such a copy.

    Raises:
        ServerFailed: it does not come up.
    """
    options = ServerOptions(exit_timeout_s=own.options.exit_timeout_s, extra_environment=own.options.extra_environment)
    log_file = own.log_file.with_name(f"{own.log_file.stem}-special.log")
    with (
        patient_repository(own.repository, model, **changes) as repository,
        EmbeddedServer(repository, [model], cache=own.cache, log_file=log_file, options=options) as server,
    ):
        yield server


def _config(folder: Path) -> pb.ModelConfig:
    return text_format.Parse((folder / CONFIG_NAME).read_text(encoding="utf-8"), pb.ModelConfig())
