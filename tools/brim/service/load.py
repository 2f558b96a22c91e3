"""Read service files. Every fault is reported at once, each with its line and column."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from brim.errors import ServiceFileError, UnknownService
from brim.findings import Finding, Severity
from brim.service.samples import sample_faults
from brim.service.schema import Service

LARGEST_FILE_BYTES = 1_000_000
MOST_VALUES = 500_000
"""Values of a file with its aliases written out. A file of the largest size cannot hold more without aliases."""
DEEPEST = 40
"""Blocks inside one another; a service needs six, and a sample one for each of its tensor's axes."""
MOST_FINDINGS = 30
"""Faults that an error lists; how many more there are is said."""
LONGEST_SHOWN = 80
"""Characters of a wrong value that a message repeats."""


class _TooMuch(Exception):
    """The document is deeper or larger than any service file; ``str()`` says which."""


def _plain(document: Any) -> Any:
    """The document as plain dicts and lists, every alias written out.

    Raises:
        _TooMuch: it is nested too deeply (an alias inside its own anchor has no end), or aliases multiply it too often.
    """
    values = 0

    def plain(node: Any, depth: int) -> Any:
        nonlocal values
        values += 1
        if values > MOST_VALUES:
            raise _TooMuch(f"more than {MOST_VALUES} values, aliases written out")
        if depth > DEEPEST:
            raise _TooMuch(f"nested more than {DEEPEST} deep, or an alias inside its own anchor")
        if isinstance(node, dict):
            return {key: plain(value, depth + 1) for key, value in node.items()}
        if isinstance(node, list):
            return [plain(item, depth + 1) for item in node]
        return node

    return plain(document, 0)


def _place(document: Any, path: Sequence[str | int]) -> tuple[int, int]:
    """1-based line and column of the innermost part of the path that the document has."""
    line, column = 1, 1
    node = document
    for step in path:
        try:
            if isinstance(node, CommentedMap):
                position = node.lc.key(step)
            elif isinstance(node, CommentedSeq):
                position = node.lc.item(step)
            else:
                break
            node = node[step]
        except (KeyError, IndexError, TypeError):
            break
        line, column = position[0] + 1, position[1] + 1
    return line, column


def _shown(value: object) -> str:
    """The value in at most ``LONGEST_SHOWN`` characters."""
    try:
        text = repr(value)
    except ValueError:
        # Python writes no integer of more than 4300 digits.
        text = f"a {type(value).__name__} too long to write"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}... ({len(text)} characters)"


def _inside(path: Sequence[str | int], block: Sequence[str | int]) -> bool:
    return len(path) > len(block) and path[: len(block)] == block


def _known_keys(path: Sequence[str | int]) -> list[str]:
    """Keys that the schema knows in the block that holds ``path``'s last step."""
    model: Any = Service
    for step in path[:-1]:
        if isinstance(step, int):
            continue
        field = model.model_fields.get(step) if isinstance(model, type) and issubclass(model, BaseModel) else None
        model = next((kind for kind in _models_in(field.annotation)), None) if field else None
    return list(model.model_fields) if model else []


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models_in(part)]


def _finding(file: str, document: Any, error: Any) -> Finding:
    path = [step for step in error["loc"] if isinstance(step, str | int)]
    line, column = _place(document, path)
    dotted = ".".join(str(step) for step in path) or "service"
    kind = error["type"]
    hint = ""
    if kind == "extra_forbidden":
        known = _known_keys(path)
        close = difflib.get_close_matches(str(path[-1]), known, n=1)
        message = f"unknown key {path[-1]!r}"
        hint = f"did you mean {close[0]!r}?" if close else f"known keys here: {', '.join(known)}"
    elif kind == "missing":
        message = f"{dotted} is missing"
        hint = "docs/service-file.md lists every key"
    else:
        message = error["msg"].removeprefix("Value error, ")
        given = error.get("input")
        if not isinstance(given, dict | list | Service) and kind != "value_error":
            message = f"{message}; got {_shown(given)}"
        message = f"{dotted}: {message}" if path else message
    return Finding(
        "SVC001" if kind == "extra_forbidden" else "SVC002", Severity.ERROR, file, line, column, message, hint
    )


def check_text(text: str, file: str) -> tuple[Service | None, list[Finding]]:
    """Parse and validate the text of a service file. Either the service or at least one finding comes back."""
    yaml = YAML(typ="rt")
    yaml.allow_duplicate_keys = False
    try:
        document = yaml.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        problem = (error.problem or "not valid YAML").strip().splitlines()[0]
        return None, [Finding("SVC000", Severity.ERROR, file, line, column, f"not valid YAML: {problem}")]
    except (YAMLError, ValueError, RecursionError) as error:
        return None, [Finding("SVC000", Severity.ERROR, file, 1, 1, f"not valid YAML: {str(error).splitlines()[0]}")]
    if not isinstance(document, CommentedMap):
        found = "nothing" if document is None else "a list" if isinstance(document, list) else "a single value"
        return None, [Finding("SVC000", Severity.ERROR, file, 1, 1, f"expected a mapping of keys, found {found}")]
    try:
        service = Service.model_validate(_plain(document))
    except _TooMuch as error:
        hint = "write out what is repeated, and keep data in files of its own"
        return None, [Finding("SVC000", Severity.ERROR, file, 1, 1, f"{error}: no service needs that", hint)]
    except ValidationError as error:
        details = error.errors(include_url=False)
        faulty = [detail["loc"] for detail in details]
        findings = [
            _finding(file, document, detail)
            for detail in details
            # A list whose items are faulty counts as empty for pydantic; the items' own faults say it better.
            if not (detail["type"] == "too_short" and any(_inside(loc, detail["loc"]) for loc in faulty))
        ]
        return None, sorted(findings, key=lambda finding: (finding.line, finding.column))
    faults = [
        Finding(
            "SVC003",
            Severity.ERROR,
            file,
            *_place(document, ["samples", fault.index, "inputs", fault.name]),
            str(fault),
            "a sample is one row, without the batch dimension",
        )
        for fault in sample_faults(service)
    ]
    return (None, faults) if faults else (service, [])


def load_service(path: Path, *, display: str | None = None) -> Service:
    """Read one service file.

    Raises:
        ServiceFileError: it cannot be read, or has faults: all of them, with line and column, in the message.
    """
    shown = display or str(path)
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise ServiceFileError(
                f"{shown}: larger than {LARGEST_FILE_BYTES} bytes, which no service file is",
                hint="keep a few short samples in it; weights and data belong in files of their own",
            )
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ServiceFileError(f"{shown}: not UTF-8 (byte {error.start})", hint="save the file as UTF-8") from error
    except OSError as error:
        raise ServiceFileError(
            f"{shown}: cannot be read: {error.strerror}", hint="make it a text file that this user may read"
        ) from error
    service, findings = check_text(text, shown)
    if service is None:
        raise ServiceFileError(
            "\n".join([finding.render() for finding in findings[:MOST_FINDINGS]] + _rest(findings)),
            hint="correct those lines; docs/service-file.md lists every key and what it takes",
        )
    if service.name != path.stem:
        raise ServiceFileError(
            f"{shown}: name is {service.name!r}, and the file is called {path.name}",
            hint=f"call it {service.name}.yaml, or set name: {path.stem}",
        )
    return service


def _rest(findings: Sequence[Finding]) -> list[str]:
    more = len(findings) - MOST_FINDINGS
    return [f"and {more} more"] if more > 0 else []


def service_names(folder: Path) -> list[str]:
    """Names of the services that have a file, in order.

    Raises:
        OSError: the folder cannot be read.
    """
    try:
        return sorted(
            path.stem for path in folder.iterdir() if path.suffix == ".yaml" and not path.name.startswith(".")
        )
    except FileNotFoundError:
        return []


def _is_own(path: Path, name: str) -> bool:
    """Whether ``path`` is a file called ``name``; False for a link out of its folder, or a name that no file system takes."""
    try:
        return path.name == name and path.is_file() and path.parent.resolve() == path.resolve().parent
    except (OSError, ValueError):
        return False


def find_service(folder: Path, name: str) -> Service:
    """The service of that name.

    Raises:
        UnknownService: no file of that name; the message lists those that exist.
        ServiceFileError: it is no file, or has faults.
    """
    path = folder / f"{name}.yaml"
    if not _is_own(path, f"{name}.yaml"):
        known = service_names(folder)
        if name in known:
            raise ServiceFileError(
                f"{folder.name}/{path.name} is no file of that folder: a folder, a device, or a link that leads elsewhere",
                hint="put the service file itself there",
            )
        close = difflib.get_close_matches(name[:LONGEST_SHOWN], known, n=1)
        hint = f"did you mean {close[0]}?" if close else "`brim add` brings a model of your own"
        listed = ", ".join(known) or "none"
        raise UnknownService(f"no service {_shown(name)} in {folder.name}/; known: {listed}", hint=hint)
    return load_service(path, display=f"{folder.name}/{path.name}")


def find_services(folder: Path, names: Sequence[str]) -> list[Service]:
    """The named services, or all when none is named.

    Raises:
        UnknownService: a name has no file, or there is no service at all.
        ServiceFileError: a file has faults.
    """
    wanted = list(dict.fromkeys(names)) or service_names(folder)
    if not wanted:
        raise UnknownService(f"no service file in {folder.name}/", hint="`brim add NAME --onnx FILE` makes one")
    return [find_service(folder, name) for name in wanted]
