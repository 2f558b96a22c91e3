"""TRT: optimisation profiles of a TensorRT engine against the batches that the configuration allows, and its CUDA graphs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tritonclient.grpc.model_config_pb2 import ModelConfig

from brim.findings import Severity
from brim.lint.fields import elements, full_shape, model_dims
from brim.lint.rule import HEAD, Check, Example, Fault, rule
from brim.lint.subject import Model

Profile: TypeAlias = Mapping[str, Mapping[str, Sequence[int]]]
"""Input name to ``min``, ``opt`` and ``max``: full shapes, batch first."""

PROFILES_NAME = "profiles.json"
BOUNDS = ("min", "opt", "max")
SOURCE = "TensorRT optimisation profiles; server issues 3032, 4445 and 4396"

UNREADABLE = "TRT001"
MAX_TOO_SMALL = "TRT002"
MIN_TOO_LARGE = "TRT003"
RANK = "TRT004"
DIMS = "TRT005"
NAMES = "TRT006"
ORDER = "TRT007"
LOWER_BOUND = "TRT008"


def check_profiles(config: ModelConfig, profile: Profile) -> list[tuple[str, Fault]]:
    """Whether one profile spans every batch of 1..max_batch_size and every shape of the inputs.

    Args:
        config: the configuration; inputs whose ``is_shape_tensor`` is set are passed over.
        profile: shapes of each input, as TensorRT reports them.

    Returns:
        (rule code, fault) of each fault, in the order of the inputs.
    """
    found: list[tuple[str, Fault]] = []
    inputs = {tensor.name: index for index, tensor in enumerate(config.input) if not tensor.is_shape_tensor}
    for name in profile:
        if name not in inputs:
            said = f"the profile has input {name!r}, the configuration does not; known: {', '.join(inputs) or 'none'}"
            found.append((NAMES, Fault(said, "input", "use the engine's own names")))
    for name, index in inputs.items():
        if name not in profile:
            found.append((NAMES, Fault(f"the profile has no shapes for input {name!r}", f"input[{index}].name")))
            continue
        shapes = {bound: list(profile[name].get(bound, ())) for bound in BOUNDS}
        found += _check_input(config, index, name, shapes)
    return found


def _check_input(
    config: ModelConfig, index: int, name: str, shapes: Mapping[str, list[int]]
) -> Iterator[tuple[str, Fault]]:
    most = config.max_batch_size
    tensor = config.input[index]
    dims = model_dims(tensor)
    wanted = full_shape(dims, most)
    where = f"input[{index}].dims"
    low, best, high = (shapes[bound] for bound in BOUNDS)
    if any(len(shape) != len(wanted) for shape in (low, best, high)):
        said = f"input {name!r} has rank {len(high)} in the profile ({high}), the configuration implies {len(wanted)} ({wanted})"
        yield RANK, Fault(said, where, "dims leave out the batch; profile shapes carry it")
        return
    if any(not a <= b <= c for a, b, c in zip(low, best, high, strict=True)):
        said = f"input {name!r}: min {low}, opt {best}, max {high} are not in order"
        yield ORDER, Fault(said, where, "every size of opt must lie between min and max")
    if most > 0:
        if high[0] < most:
            static = (
                "the engine is built for batch 1 only" if low[0] == high[0] == 1 else f"the profile ends at {high[0]}"
            )
            said = f"input {name!r}: {static}: {high[0]} < {most} (max_batch_size)"
            hint = f"build the engine with max batch {most}, or write max_batch_size: {high[0]}"
            yield MAX_TOO_SMALL, Fault(said, "max_batch_size", hint)
        if low[0] > 1:
            said = f"input {name!r}: the profile starts at batch {low[0]}, so a single row cannot run"
            yield MIN_TOO_LARGE, Fault(said, "max_batch_size", "build the engine with min batch 1")
    for position, size in enumerate(dims):
        at = position + (1 if most > 0 else 0)
        if size > 0 and not low[at] <= size <= high[at]:
            said = f"input {name!r}: dims[{position}] is {size}, the profile allows {low[at]}..{high[at]}"
            yield DIMS, Fault(said, f"{where}[{position}]", "build the engine for that size, or correct dims")


def _profiles_path(model: Model) -> Path | None:
    if model.backend != "tensorrt":
        return None
    folders = [*model.loaded_versions.values(), *([model.folder] if model.folder else [])]
    for folder in folders or [model.file.parent / "1", model.file.parent]:
        if (folder / PROFILES_NAME).is_file():
            return folder / PROFILES_NAME
    return None


def _read(path: Path) -> list[tuple[str, Profile]] | str:
    """The profiles of a file, each with its name: one profile, a list of them, or a mapping from names to them."""
    try:
        loaded: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return f"{path.name} cannot be read as JSON: {error}"
    named = (
        list(enumerate(loaded))
        if isinstance(loaded, list)
        else list(loaded.items())
        if isinstance(loaded, dict)
        else []
    )
    profiles = [("", loaded)] if _is_profile(loaded) else [(str(name), value) for name, value in named]
    if not profiles or not all(_is_profile(value) for _, value in profiles):
        return f'{path.name} is no profile: expected {{"INPUT": {{"min": [...], "opt": [...], "max": [...]}}}}'
    return profiles


def _is_profile(value: object) -> bool:
    return isinstance(value, dict) and bool(value) and all(_is_bounds(bounds) for bounds in value.values())


def _is_bounds(bounds: object) -> bool:
    return isinstance(bounds, dict) and all(
        isinstance(bounds.get(name), list)
        and all(isinstance(size, int) and not isinstance(size, bool) for size in bounds[name])
        for name in BOUNDS
    )


def _profile_check(code: str) -> Check:
    def check(model: Model) -> Iterator[Fault]:
        path = _profiles_path(model)
        profiles = _read(path) if path else []
        if isinstance(profiles, str):
            if code == UNREADABLE and path:
                yield Fault(profiles, file=path, line=1, column=1, hint="write it from the engine, at build time")
            return
        for name, profile in profiles:
            for found, fault in check_profiles(model.config, profile):
                if found == code:
                    prefix = f"profile {name}: " if name else ""
                    yield Fault(prefix + fault.message, fault.path, fault.hint)

    return check


_CONFIG = (
    'name: "cam"\nplatform: "tensorrt_plan"\nmax_batch_size: 100\n'
    'input { name: "x" data_type: TYPE_FP32 dims: [ 3, 8 ] }\n'
    'model_warmup { name: "one" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 3, 8 ] zero_data: true } } }\n'
    'model_warmup { name: "all" batch_size: 100 inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 3, 8 ] zero_data: true } } }\n'
)


def _tree(profiles: str, config: str = _CONFIG) -> Example:
    return {"cam/config.pbtxt": config, "cam/1/model.plan": "engine\n", "cam/1/profiles.json": profiles + "\n"}


def _shapes(low: str, best: str, high: str, name: str = "x") -> str:
    return f'{{"{name}": {{"min": [{low}], "opt": [{best}], "max": [{high}]}}}}'


_GOOD = _tree(_shapes("1, 3, 8", "50, 3, 8", "100, 3, 8"))


def _profile_rule(code: str, title: str, why: str, bad: Example) -> None:
    rule(code, Severity.ERROR, title, why=why, source=SOURCE, good=_GOOD, bad=bad)(_profile_check(code))


_profile_rule(
    UNREADABLE,
    "The profiles file cannot be read.",
    "The linter has no GPU and knows an engine only from that file.",
    _tree('{"x": [1, 3, 8]}'),
)
_profile_rule(
    MAX_TOO_SMALL,
    "The engine takes smaller batches than max_batch_size.",
    "Small requests work, and a full batch is refused by the engine.",
    _tree(_shapes("1, 3, 8", "8, 3, 8", "64, 3, 8")),
)
_profile_rule(
    MIN_TOO_LARGE,
    "The engine's smallest batch is above 1.",
    "A lone caller sends one row, and the engine refuses it.",
    _tree(_shapes("4, 3, 8", "50, 3, 8", "100, 3, 8")),
)
_profile_rule(
    RANK,
    "The profile has another rank than the configuration implies.",
    "dims leave out the batch when max_batch_size is above 0.",
    _tree(_shapes("3, 8", "3, 8", "3, 8")),
)
_profile_rule(
    DIMS,
    "A fixed dimension lies outside the profile.",
    "No request of that shape can run.",
    _tree(_shapes("1, 3, 16", "50, 3, 16", "100, 3, 32")),
)
_profile_rule(
    NAMES,
    "The profile and the configuration name different inputs.",
    "An input without a profile cannot be bound.",
    _tree(_shapes("1, 3, 8", "50, 3, 8", "100, 3, 8", "z")),
)
_profile_rule(
    ORDER,
    "min, opt and max of a profile are not in order.",
    "TensorRT refuses such a profile; the file does not describe the engine.",
    _tree(_shapes("1, 3, 8", "101, 3, 8", "100, 3, 8")),
)

_GRAPHS = "optimization { cuda { graphs: true graph_spec { batch_size: 64 %s} } }\n"


@rule(
    LOWER_BOUND,
    Severity.WARNING,
    "A CUDA graph with a lower bound computes rows that nobody sent.",
    why="With graph_lower_bound a graph captured for 64 rows serves 37: the other 27 are what an earlier batch left in the buffer, "
    "other callers' rows among them. What a model makes of them stays with it only if no operation looks across rows.",
    source="common `model_config.proto`, GraphSpec: shapes other than the captured one introduce uninitialized data",
    good=HEAD + _GRAPHS % "",
    bad=HEAD + _GRAPHS % "graph_lower_bound { batch_size: 1 } ",
)
def graph_lower_bound(model: Model) -> Iterator[Fault]:
    """``graph_lower_bound`` of a graph."""
    for path, spec in elements("optimization.cuda.graph_spec", model.config.optimization.cuda.graph_spec):
        if spec.HasField("graph_lower_bound"):
            least, most = spec.graph_lower_bound.batch_size, spec.batch_size
            said = (
                f"the CUDA graph of {most} rows also serves batches from {least} rows on, beside what others left there"
            )
            yield Fault(
                said,
                f"{path}.graph_lower_bound",
                "leave the bound out, and list the batch sizes that are worth a graph",
            )
