"""REP: model folder, versions, model files and labels."""

from __future__ import annotations

import math
from collections.abc import Iterator

from brim.findings import Severity
from brim.lint.fields import elements
from brim.lint.rule import HEAD, Check, Example, Fault, rule
from brim.lint.subject import ENSEMBLE, Model, exists, has_file, is_version

VERSIONS = "core `model_lifecycle.cc`, VersionsToLoad"
_MODEL = "class TritonPythonModel: ...\n"
_GOOD = {"m/config.pbtxt": HEAD, "m/1/model.py": _MODEL}


def _with(config: str, **files: str) -> Example:
    return {"m/config.pbtxt": config, "m/1/model.py": _MODEL} | {f"m/{name}": text for name, text in files.items()}


@rule(
    "REP001",
    Severity.ERROR,
    "The name differs from the model folder.",
    why="Triton refuses the model; leave name out and the folder's is used.",
    source="core `model_repository_manager.cc`",
    good=_GOOD,
    bad={"n/config.pbtxt": HEAD, "n/1/model.py": _MODEL},
)
def folder_name(model: Model) -> Iterator[Fault]:
    """``name`` against the folder."""
    if model.folder is not None and model.config.name and model.config.name != model.folder.name:
        said = f"name is {model.config.name!r}, the folder is {model.folder.name!r}"
        yield Fault(said, "name", "rename one of them")


@rule(
    "REP002",
    Severity.ERROR,
    "The model has no version folder.",
    why="A model loads from a folder with a number, such as 1/; ensembles need one too, which may be empty.",
    source=VERSIONS,
    good=_GOOD,
    bad={"m/config.pbtxt": HEAD},
)
def no_version(model: Model) -> Iterator[Fault]:
    """No folder that Triton takes for a version."""
    if model.folder is not None and not model.versions:
        yield Fault(f"{model.folder.name} has no version folder", "name", "create 1/ and put the model there")


@rule(
    "REP003",
    Severity.WARNING,
    "A folder beside the versions is no version.",
    why="Triton reads leading digits only and passes over names with a leading zero: 01 is ignored, 1_old loads as 1.",
    source=VERSIONS,
    good=_GOOD,
    bad=_with(HEAD, **{"01/model.py": _MODEL}),
)
def odd_folder(model: Model) -> Iterator[Fault]:
    """Folders whose name is no version number."""
    for name in model.subfolders:
        if not is_version(name):
            said = f"folder {name!r} is no version: digits without a leading zero"
            yield Fault(said, "name", "rename it, or move it out of the model folder")


@rule(
    "REP004",
    Severity.ERROR,
    "version_policy asks for a version that is not on disk.",
    why="Triton logs it and goes on; when no version is left the model does not load.",
    source=f"{VERSIONS}; server issue 8372",
    good=_with(HEAD + "version_policy { specific { versions: 1 } }\n"),
    bad=_with(HEAD + "version_policy { specific { versions: [ 1, 4 ] } }\n"),
)
def missing_version(model: Model) -> Iterator[Fault]:
    """``specific.versions`` against the folders."""
    if model.folder is None:
        return
    for path, version in elements("version_policy.specific.versions", model.config.version_policy.specific.versions):
        if version not in model.versions:
            have = ", ".join(map(str, model.versions)) or "none"
            said = f"version {version} is not on disk; there: {have}"
            yield Fault(said, path, "correct the list, or add the folder")


@rule(
    "REP005",
    Severity.ERROR,
    "version_policy picks no version.",
    why="latest with 0 versions, which is also what latest { } means, and specific with an empty list load nothing.",
    source=VERSIONS,
    good=HEAD + "version_policy { latest { num_versions: 1 } }\n",
    bad=HEAD + "version_policy { latest { } }\n",
)
def empty_policy(model: Model) -> Iterator[Fault]:
    """A policy under which nothing is loaded."""
    policy = model.config.version_policy
    if policy.HasField("latest") and policy.latest.num_versions == 0:
        yield Fault("version_policy latest has num_versions 0", "version_policy.latest", "write num_versions: 1")
    if policy.HasField("specific") and not policy.specific.versions:
        yield Fault("version_policy specific lists no version", "version_policy.specific", "list one")


@rule(
    "REP006",
    Severity.ERROR,
    "The model file is missing from a version folder.",
    why="The backend looks for it by that name. For a profile in configs/ it is a warning: only that profile needs it.",
    source="core `constants.h`; default_model_filename",
    good=_GOOD,
    bad={"m/config.pbtxt": HEAD, "m/1/model.onnx": _MODEL},
)
def missing_file(model: Model) -> Iterator[Fault]:
    """The file that the backend needs, in each version that the policy picks."""
    name = model.model_filename
    if model.folder is None or not name or model.backend == ENSEMBLE or model.config.cc_model_filenames:
        return
    for version, folder in model.loaded_versions.items():
        if not exists(folder / name):
            have = (
                ", ".join(sorted(path.name for path in folder.iterdir() if not path.name.startswith("__"))) or "nothing"
            )
            said = f"version {version} has no {name}, which backend {model.backend or 'unknown'} loads; there: {have}"
            severity = Severity.WARNING if model.is_profile else None
            yield Fault(said, model.model_filename_path, "build or copy the model file", severity)


@rule(
    "REP007",
    Severity.ERROR,
    "The model file is empty.",
    why="A copy that failed, or a large file that was never fetched.",
    source="inferred; no backend loads an empty file",
    good=_GOOD,
    bad={"m/config.pbtxt": HEAD, "m/1/model.py": ""},
)
def empty_file(model: Model) -> Iterator[Fault]:
    """A model file of 0 bytes."""
    if model.folder is None or not model.model_filename or model.backend == ENSEMBLE:
        return
    for folder in model.loaded_versions.values():
        file = folder / model.model_filename
        if has_file(file) and file.stat().st_size == 0:
            severity = Severity.WARNING if model.is_profile else None
            said = f"{folder.name}/{file.name} is empty"
            yield Fault(said, model.model_filename_path, "build or copy the model file again", severity)


_LABELLED = HEAD + 'output { name: "p" data_type: TYPE_FP32 dims: 3 label_filename: "l.txt" }\n'
_LABELS = _with(_LABELLED, **{"l.txt": "cat\ndog\nowl\n"})
LABEL_READER = "core `label_provider.cc`, AddLabels; `infer_response.cc`, ClassificationLabel"

LABELS_MISSING = "REP008"
LABELS_COUNT = "REP009"
LABELS_RETURNS = "REP010"
LABELS_BLANK = "REP011"


def _label_faults(model: Model) -> Iterator[tuple[str, Fault]]:
    for output_path, output in elements("output", model.config.output):
        if model.folder is None or not output.label_filename:
            continue
        path = f"{output_path}.label_filename"
        file = model.folder / output.label_filename
        if not has_file(file):
            said = f"output {output.name!r}: label file {output.label_filename!r} is not in {model.folder.name}"
            yield LABELS_MISSING, Fault(said, path, "put it into the model folder, beside the configuration")
            continue
        lines = file.read_bytes().split(b"\n")
        if lines[-1] == b"":
            lines.pop()
        filled = len(lines)
        while filled and not lines[filled - 1].strip():
            filled -= 1
        classes = math.prod(output.dims) if all(size > 0 for size in output.dims) else 0
        if classes and filled != classes:
            said = f"output {output.name!r}: {output.label_filename} has {filled} labels for {classes} classes"
            yield LABELS_COUNT, Fault(said, path, "one line for each class, in the order of the output")
        returns = [number for number, line in enumerate(lines, 1) if line.endswith(b"\r")]
        if returns:
            text = lines[returns[0] - 1].decode("utf-8", "replace")
            said = f"{len(returns)} labels end with a carriage return, the first is {text!r}"
            hint = "save the file with Unix line ends (sed -i 's/\\r$//')"
            yield LABELS_RETURNS, Fault(said, hint=hint, file=file, line=returns[0], column=len(text))
        blank = [number for number, line in enumerate(lines, 1) if not line.strip()]
        if blank:
            said = f"line {blank[0]} is blank: that class has no label"
            yield LABELS_BLANK, Fault(said, hint="remove blank lines", file=file, line=blank[0], column=1)


def _label_check(code: str) -> Check:
    def check(model: Model) -> Iterator[Fault]:
        return (fault for found, fault in _label_faults(model) if found == code)

    return check


def _label_rule(code: str, severity: Severity, title: str, why: str, bad: Example) -> None:
    rule(code, severity, title, why=why, source=LABEL_READER, good=_LABELS, bad=bad)(_label_check(code))


_label_rule(
    LABELS_MISSING,
    Severity.ERROR,
    "A label file is missing.",
    "Triton does not load the model.",
    _with(_LABELLED),
)
_label_rule(
    LABELS_COUNT,
    Severity.ERROR,
    "A label file has fewer or more lines than the output has classes.",
    "Labels go by line number; a wrong count means that they are shifted or belong to another model.",
    _with(_LABELLED, **{"l.txt": "cat\ndog\n"}),
)
_label_rule(
    LABELS_RETURNS,
    Severity.ERROR,
    "Labels end with a carriage return.",
    "Triton splits the file at line feeds only, so callers get the label cat\\r.",
    _with(_LABELLED, **{"l.txt": "cat\r\ndog\r\nowl\r\n"}),
)
_label_rule(
    LABELS_BLANK,
    Severity.WARNING,
    "A label file has blank lines.",
    "Each is an empty label of the class with that number.",
    _with(_LABELLED, **{"l.txt": "cat\ndog\nowl\n\n"}),
)
