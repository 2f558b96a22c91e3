"""ENS: ensembles, alone and against the models of the same repository."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tritonclient.grpc.model_config_pb2 import ModelEnsembling, ModelInput, ModelOutput

from brim.findings import Severity
from brim.lint.fields import elements, full_shape, model_dims, tensors, type_name
from brim.lint.rule import Fault, rule
from brim.lint.subject import ENSEMBLE, Model

STRUCTURE = "core `model_config_utils.cc`, ValidateEnsembleSchedulingConfig and BuildEnsembleGraph"
ACROSS = "core `ensemble_scheduler/ensemble_utils.cc`, ValidateEnsembleConfig"
_STEPS = "ensemble_scheduling.step"

_X = 'input { name: "X" data_type: TYPE_FP32 dims: 4 }\n'
_Y = 'output { name: "Y" data_type: TYPE_FP32 dims: 4 }\n'
_HEAD = 'name: "e"\nplatform: "ensemble"\nmax_batch_size: 100\n'


def _step(inputs: dict[str, str], outputs: dict[str, str], model: str = "m") -> str:
    maps = [f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in inputs.items()]
    maps += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in outputs.items()]
    return f'  step {{ model_name: "{model}" {" ".join(maps)} }}\n'


def _ensemble(*steps: str, head: str = _HEAD) -> str:
    return f"{head}{_X}{_Y}ensemble_scheduling {{\n{''.join(steps)}}}\n"


_ONE = _step({"x": "X"}, {"y": "Y"})
_MEMBER = (
    'name: "m"\nbackend: "python"\nmax_batch_size: 100\n'
    'input { name: "x" data_type: TYPE_FP32 dims: 4 }\noutput { name: "y" data_type: TYPE_FP32 dims: 4 }\n'
)


def _repository(ensemble: str, member: str = _MEMBER) -> dict[str, str]:
    tree = {"e/config.pbtxt": ensemble, "e/1/.keep": ""}
    return tree | {"m/config.pbtxt": member, "m/1/model.py": "class TritonPythonModel: ...\n"}


class _Side(NamedTuple):
    """How one model declares an ensemble tensor: ``dims`` leave out the batch."""

    name: str
    data_type: int
    dims: list[int]
    max_batch_size: int

    @property
    def shape(self) -> list[int]:
        """The full shape, with the batch."""
        return full_shape(self.dims, self.max_batch_size)


@dataclass(frozen=True, slots=True)
class _Use:
    """A mapping of one step: the model's tensor, the ensemble's tensor, and where that is written."""

    inner: str
    outer: str
    path: str


def _steps(model: Model) -> Iterator[tuple[int, ModelEnsembling.Step, list[_Use], list[_Use]]]:
    for index, step in enumerate(model.config.ensemble_scheduling.step):
        path = f"{_STEPS}[{index}]"
        inputs = [_Use(key, step.input_map[key], f'{path}.input_map["{key}"]') for key in sorted(step.input_map)]
        outputs = [_Use(key, step.output_map[key], f'{path}.output_map["{key}"]') for key in sorted(step.output_map)]
        yield index, step, inputs, outputs


@rule(
    "ENS001",
    Severity.ERROR,
    "The ensemble has a setting that ensembles do not take, or lacks one that they need.",
    why='An ensemble has platform: "ensemble", steps with both maps, and no backend, instances, optimization or warm-up.',
    source=STRUCTURE,
    good=_ensemble(_ONE),
    bad=_ensemble(_ONE, head=_HEAD + "instance_group { count: 1 }\n"),
)
def ensemble_structure(model: Model) -> Iterator[Fault]:
    """Fields that must or must not be there."""
    config = model.config
    scheduling = config.HasField("ensemble_scheduling")
    if scheduling != (config.platform == ENSEMBLE):
        hint = 'an ensemble has both platform: "ensemble" and ensemble_scheduling'
        said = (
            "ensemble_scheduling without platform ensemble"
            if scheduling
            else "platform ensemble without ensemble_scheduling"
        )
        yield Fault(said, "ensemble_scheduling" if scheduling else "platform", hint)
        return
    if not scheduling:
        return
    for name, given in (
        ("backend", bool(config.backend)),
        ("instance_group", bool(config.instance_group)),
        ("optimization", config.HasField("optimization")),
        ("model_warmup", bool(config.model_warmup)),
    ):
        if given:
            yield Fault(f"an ensemble takes no {name}", name, "remove it: it belongs to the models of the steps")
    if not config.ensemble_scheduling.step:
        yield Fault("ensemble_scheduling has no step", "ensemble_scheduling", "add a step")
    for index, step, inputs, outputs in _steps(model):
        for name, given in (
            ("model_name", bool(step.model_name)),
            ("input_map", bool(inputs)),
            ("output_map", bool(outputs)),
        ):
            if not given:
                yield Fault(f"step {index} has no {name}", f"{_STEPS}[{index}]", f"add {name}")


@rule(
    "ENS002",
    Severity.ERROR,
    "A step names a model that is not in the repository.",
    why="The ensemble does not load.",
    source=ACROSS,
    good=_repository(_ensemble(_ONE)),
    bad=_repository(_ensemble(_step({"x": "X"}, {"y": "Y"}, "n"))),
)
def unknown_model(model: Model) -> Iterator[Fault]:
    """A ``model_name`` without a folder, or a ``model_version`` that is not there."""
    if model.folder is None:
        return
    for index, step, _, _ in _steps(model):
        if not step.model_name or step.model_namespace:
            continue
        neighbour = model.neighbour(step.model_name)
        if model.neighbour_folder(step.model_name) is None:
            known = sorted(path.name for path in model.folder.absolute().parent.iterdir() if path.is_dir())
            said = f"step {index} runs model {step.model_name!r}, which is not in the repository; known: {', '.join(known)}"
            yield Fault(said, f"{_STEPS}[{index}].model_name", "use the name of a model folder")
        elif neighbour is not None and step.model_version > 0 and step.model_version not in neighbour.versions:
            have = ", ".join(map(str, neighbour.versions)) or "none"
            said = f"step {index} wants version {step.model_version} of {step.model_name!r}; on disk: {have}"
            yield Fault(said, f"{_STEPS}[{index}].model_version", "use -1 for the latest")


@rule(
    "ENS003",
    Severity.ERROR,
    "A step does not match the inputs and outputs of its model.",
    why="Every input that is not optional must be mapped, and nothing that the model does not have.",
    source=ACROSS,
    good=_repository(_ensemble(_ONE)),
    bad=_repository(_ensemble(_step({"x": "X"}, {"z": "Y"}))),
)
def step_tensors(model: Model) -> Iterator[Fault]:
    """Mapped names that the step's model lacks, and inputs that are not mapped."""
    for index, step, inputs, outputs in _steps(model):
        neighbour = model.neighbour(step.model_name)
        if neighbour is None or neighbour.parsed.message is None:
            continue
        for kind, uses, known in (
            ("input", inputs, [tensor.name for tensor in neighbour.config.input]),
            ("output", outputs, [tensor.name for tensor in neighbour.config.output]),
        ):
            if not known:
                continue
            for use in uses:
                if use.inner not in known:
                    said = f"model {step.model_name!r} has no {kind} {use.inner!r}; known: {', '.join(known)}"
                    yield Fault(said, use.path, f"the key is the model's {kind}, the value the ensemble's tensor")
        mapped = {use.inner for use in inputs}
        for tensor in neighbour.config.input:
            if tensor.name not in mapped and not tensor.optional:
                said = f"step {index} maps nothing to input {tensor.name!r} of model {step.model_name!r}"
                yield Fault(said, f"{_STEPS}[{index}]", f'add input_map {{ key: "{tensor.name}" value: "..." }}')


@rule(
    "ENS004",
    Severity.ERROR,
    "One ensemble tensor has two types or shapes.",
    why="What a step writes must be what the next one reads; a variable size matches every size.",
    source=ACROSS,
    good=_repository(_ensemble(_ONE)),
    bad=_repository(_ensemble(_ONE), _MEMBER.replace('"y" data_type: TYPE_FP32', '"y" data_type: TYPE_FP16')),
)
def tensor_consistency(model: Model) -> Iterator[Fault]:
    """Data types and dims of every tensor, as each side declares them."""
    seen: dict[str, _Side] = {}
    config = model.config
    if not config.HasField("ensemble_scheduling"):
        return
    for path, tensor in tensors(model):
        part = path.partition("[")[0]
        side = _Side(f"{part} of the ensemble", tensor.data_type, model_dims(tensor), config.max_batch_size)
        seen.setdefault(tensor.name, side)
    for _, step, inputs, outputs in _steps(model):
        neighbour = model.neighbour(step.model_name)
        if neighbour is None:
            continue
        for uses, known in ((inputs, neighbour.config.input), (outputs, neighbour.config.output)):
            declared: dict[str, ModelInput | ModelOutput] = {tensor.name: tensor for tensor in known}
            for use in uses:
                found = declared.get(use.inner)
                if found is None:
                    continue
                name = f"{use.inner!r} of model {step.model_name!r}"
                here = _Side(name, found.data_type, list(found.dims), neighbour.config.max_batch_size)
                first = seen.setdefault(use.outer, here)
                difference = _difference(first, here)
                if difference:
                    said = f"ensemble tensor {use.outer!r}: {difference}"
                    yield Fault(said, use.path, "make both sides agree, or put a converting model between them")


def _difference(first: _Side, here: _Side) -> str:
    if first.data_type != here.data_type:
        return f"{type_name(first.data_type)} as {first.name}, {type_name(here.data_type)} as {here.name}"
    if _fits(first.dims, here.dims) or _fits(first.shape, here.shape):
        return ""
    return f"shape {first.shape} as {first.name}, {here.shape} as {here.name}"


def _fits(one: Sequence[int], other: Sequence[int]) -> bool:
    return len(one) == len(other) and all(a == b or -1 in (a, b) for a, b in zip(one, other, strict=True))


@rule(
    "ENS005",
    Severity.ERROR,
    "An ensemble tensor is read and never written, or the steps form a circle.",
    why="A step runs when all its inputs are there; these never are.",
    source=STRUCTURE,
    good=_ensemble(_step({"x": "X"}, {"y": "t"}), _step({"x": "t"}, {"y": "Y"})),
    bad=_ensemble(_step({"x": "X", "w": "Y"}, {"y": "t"}), _step({"x": "t"}, {"y": "Y"})),
)
def unwritten(model: Model) -> Iterator[Fault]:
    """Steps that can never run, and outputs that nothing writes."""
    config = model.config
    if not config.ensemble_scheduling.step:
        return
    ready = {tensor.name for tensor in config.input}
    written = {use.outer for _, _, _, outputs in _steps(model) for use in outputs}
    waiting = list(_steps(model))
    while True:
        runnable = [entry for entry in waiting if all(use.outer in ready for use in entry[2])]
        if not runnable:
            break
        ready |= {use.outer for entry in runnable for use in entry[3]}
        waiting = [entry for entry in waiting if entry not in runnable]
    for index, step, inputs, _ in waiting:
        for use in inputs:
            if use.outer not in ready and use.outer not in written:
                said = f"step {index} ({step.model_name}) reads {use.outer!r}, which no input and no step provides"
                yield Fault(said, use.path, "map it to an input of the ensemble or to the output of another step")
    if waiting and all(use.outer in written or use.outer in ready for entry in waiting for use in entry[2]):
        names = ", ".join(f"{index} ({step.model_name})" for index, step, _, _ in waiting)
        said = f"steps {names} wait for each other: their tensors form a circle"
        yield Fault(said, f"{_STEPS}[{waiting[0][0]}]", "break the circle")
    for path, output in elements("output", config.output):
        if output.name not in written and output.name not in ready:
            yield Fault(f"output {output.name!r} is written by no step", f"{path}.name", "map a step's output to it")


@rule(
    "ENS006",
    Severity.ERROR,
    "An ensemble tensor is never used.",
    why="Triton refuses the ensemble: an input that no step reads, or a step's output that nobody wants.",
    source=STRUCTURE,
    good=_ensemble(_ONE),
    bad=_ensemble(_step({"x": "X"}, {"y": "Y", "z": "t"})),
)
def unused(model: Model) -> Iterator[Fault]:
    """Inputs and step outputs without a reader."""
    config = model.config
    if not config.ensemble_scheduling.step:
        return
    read = {use.outer for _, _, inputs, _ in _steps(model) for use in inputs}
    wanted = read | {tensor.name for tensor in config.output}
    for path, tensor in elements("input", config.input):
        if tensor.name not in read:
            yield Fault(f"ensemble input {tensor.name!r} is read by no step", f"{path}.name", "map it, or remove it")
    for index, step, _, outputs in _steps(model):
        for use in outputs:
            if use.outer not in wanted:
                said = f"step {index} ({step.model_name}) writes {use.outer!r}, which is neither read nor an output"
                yield Fault(said, use.path, "remove the mapping: a step need not map every output")


@rule(
    "ENS007",
    Severity.ERROR,
    "Two steps write the same ensemble tensor.",
    why="A tensor has one writer.",
    source=STRUCTURE,
    good=_ensemble(_ONE),
    bad=_ensemble(_ONE, _ONE),
)
def written_twice(model: Model) -> Iterator[Fault]:
    """An ensemble tensor in two output maps."""
    first: dict[str, int] = {}
    for index, _, _, outputs in _steps(model):
        for use in outputs:
            if use.outer in first:
                said = f"{use.outer!r} is written by step {first[use.outer]} and by step {index}"
                yield Fault(said, use.path, "give each its own tensor")
            first.setdefault(use.outer, index)


@rule(
    "ENS008",
    Severity.ERROR,
    "A step's model takes smaller batches than the ensemble.",
    why="A batch that the ensemble accepts could not be run. Models without batching are allowed.",
    source=ACROSS,
    good=_repository(_ensemble(_ONE)),
    bad=_repository(_ensemble(_ONE), _MEMBER.replace("100", "8")),
)
def step_batch_limit(model: Model) -> Iterator[Fault]:
    """``max_batch_size`` of a step's model below that of the ensemble."""
    for index, step, _, _ in _steps(model):
        neighbour = model.neighbour(step.model_name)
        if neighbour is not None and 0 < neighbour.config.max_batch_size < model.config.max_batch_size:
            said = (
                f"max_batch_size of the ensemble is {model.config.max_batch_size},"
                f" step {index} ({step.model_name}) takes {neighbour.config.max_batch_size}"
            )
            yield Fault(said, f"{_STEPS}[{index}].model_name", "lower the ensemble's, or raise the model's")
