"""A model from a torch factory: load it, say what is wrong with it, turn it into an ONNX file.

The factory is a function without parameters in an importable module (the working directory counts). It returns

    (module, inputs)                               torch.nn.Module in eval mode, {input name: example tensor}
    (module, inputs, output_names)                 a name for each output, or None for the module's own
    (module, inputs, output_names, dynamic_axes)   axes beside the batch that may vary: {"input_ids": {1: "sequence"}}

Axis 0 of every example is the batch; it becomes symbolic. All other axes keep the example's size unless ``dynamic_axes``
names them; axes of one name share one size. Input names that are all parameters of ``forward`` are given by keyword,
others by position. Outputs are a tensor, a sequence of tensors, or a mapping of names to tensors.

Optional functions beside the factory, in the same module:

    row_samples(rng, rows, axis_sizes) -> {input name: array}   valid inputs, when dtype and index range are not enough:
                                                                rows of different real lengths, consistent masks
    pad_rows(inputs, axis_sizes) -> {input name: array}         the same rows padded to larger axis sizes, as the service
                                                                will pad them; the gate holds padded against unpadded
    write_assets(folder) -> None                                more files to ship with the model (labels, a tokenizer)
    source_files() -> list[Path]                                files that the factory reads (weights), so that a changed
                                                                one is noticed when asked whether an export is up to date
    calibration_rows(rng, rows) -> [{input name: array}]        real inputs, a batch each and ``rows`` rows in all, that an
                                                                INT8 graph takes its scales from
    accuracy(run, reference) -> {figure: (value, least)}        how good the answers of a graph of lower precision are; both
                                                                are functions from inputs to outputs, by name

torch specialises axes of size 0 and 1 while exporting, so examples of one row are given to it as two equal rows.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import onnx_ir
import sympy  # type: ignore[import-untyped]
import torch
from torch import nn
from torch._dynamo.exc import UserError, UserErrorType
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError, GuardOnDataDependentSymNode

from brim.errors import InputError, ModelFileError
from brim.limits import BATCH_LIMIT
from brim.service.schema import LARGEST_RANK
from brim_export.accuracy import AccuracyHook
from brim_export.calibration import CalibrationRows
from brim_export.foreign import foreign, told
from brim_export.gates import BATCH_AXIS_GATE, ROW_INDEPENDENCE, ReferenceFailed
from brim_export.graph import BATCH_AXIS
from brim_export.rows import RowPadder, RowSampler
from brim_export.session import Array, Feed
from brim_export.source import TorchSource

OPSET = 20
"""Version of the ONNX operators written: the newest that torch 2.13 writes without conversion, and ONNX Runtime since 1.17 reads."""

EXTERNAL_DATA_FROM = 2_000_000_000
"""Bytes of weights from which they go to a file of their own: protobuf cannot hold 2 GiB."""

_UNBOUNDED = 2**31
"""torch writes "no bound" as a number near 2**63."""

_BATCH = "batch"
_TORCH_FOLDER = str(Path(torch.__file__).parent) + os.sep
_GUARD = re.compile(r"L\['(\w+)'\]\.size\(\)\[(\d+)\]")
_SERVED = frozenset(
    (
        torch.bool,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.float32,
        torch.float64,
    )
)
"""What both KServe v2 and numpy can carry."""

_HOOKS = ("row_samples", "pad_rows", "write_assets", "source_files", "calibration_rows", "accuracy")


class NotExportable(Exception):
    """The module decides by the batch or by values, so no graph can stand for it: a refusal of ``gate``."""

    def __init__(self, gate: str, fault: str, remedy: str) -> None:
        """Keep what the gate's message is made of."""
        super().__init__(fault)
        self.gate, self.fault, self.remedy = gate, fault, remedy


@dataclass(frozen=True)
class LoadedModule:
    """What a factory gave, checked, with the functions beside it."""

    name: str
    module: nn.Module
    examples: dict[str, torch.Tensor]
    output_names: list[str]
    dynamic_axes: dict[str, dict[int, str]]
    row_samples: RowSampler | None
    pad_rows: RowPadder | None
    write_assets: Callable[[Path], None] | None
    source_files: Callable[[], Sequence[Path]] | None
    calibration_rows: CalibrationRows | None
    accuracy: AccuracyHook | None

    def example_arrays(self) -> Feed:
        """The examples as numpy arrays."""
        return {name: tensor.detach().cpu().numpy() for name, tensor in self.examples.items()}

    def reference(self, feed: Mapping[str, Array]) -> Feed:
        """The module's own answer, by output name.

        Raises:
            ReferenceFailed: the module does not run these rows.
        """
        given = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in feed.items()}
        with foreign(lambda error: ReferenceFailed(told(error))), torch.inference_mode():
            answer = flatten(self.name, _call(self.module, given))
        return {
            name: values.detach().cpu().numpy() for name, values in zip(self.output_names, answer.values(), strict=True)
        }

    def mode_faults(self) -> list[str]:
        """What in the module still behaves as in training."""
        layers = dict(self.module.named_modules())
        training = [name or "the module itself" for name, layer in layers.items() if layer.training]
        faults = []
        if training:
            shown = ", ".join(training[:5]) + (f" and {len(training) - 5} more" if len(training) > 5 else "")
            faults.append(f"layers in train mode, wanted eval mode: {shown}")
        faults += [
            f"layer {name or 'the module itself'} ({type(layer).__name__}) has no running statistics: it normalises over "
            f"the live batch, so the output of a row depends on other rows"
            for name, layer in layers.items()
            if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is None
        ]
        return faults


def import_factory_module(source: TorchSource) -> ModuleType:
    """Import the factory's module; the working directory is searched last.

    Raises:
        InputError: there is no such module, or it fails while being imported.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    with foreign(lambda error: _import_failed(source, error)):
        return importlib.import_module(source.module)


def _import_failed(source: TorchSource, error: BaseException) -> InputError:
    if not isinstance(error, ModuleNotFoundError):
        return InputError(
            f"torch factory {source.factory}: importing {source.module} raised {told(error)}",
            hint="import the module in python to see the whole traceback",
        )
    if error.name and (source.module == error.name or source.module.startswith(error.name + ".")):
        return InputError(
            f"torch factory {source.factory}: there is no module {error.name}",
            hint="the module must be installed, or lie below the working directory",
        )
    return InputError(
        f"torch factory {source.factory}: importing it needs the module {error.name}, which is not installed",
        hint=f"install what {source.module} imports",
    )


def load(source: TorchSource) -> LoadedModule:
    """Call the factory and check its answer.

    Raises:
        InputError: the module or the function is not there, or the answer has another form than documented above.
        ModelFileError: the factory raised, or the module cannot run its own example.
    """
    holder = import_factory_module(source)
    factory = getattr(holder, source.function, None)
    if not callable(factory):
        callables = [
            name for name, value in vars(holder).items() if inspect.isfunction(value) and not name.startswith("_")
        ]
        raise InputError(
            f"torch factory {source.factory}: {source.module} has no function {source.function}",
            hint=f"functions there: {', '.join(callables) or 'none'}",
        )
    with foreign(
        lambda error: ModelFileError(
            f"torch factory {source.factory} raised {told(error)}", hint="call it in python to see the whole traceback"
        )
    ):
        answer = factory()
        if inspect.iscoroutine(answer):
            answer.close()
    module, examples, names, dynamic_axes = _checked(source.factory, answer)
    with (
        foreign(
            lambda error: ModelFileError(
                f"torch factory {source.factory}: the module does not run its own example: {told(error)}",
                hint="the examples are given by keyword when their names are parameters of forward(), else in their order",
            )
        ),
        torch.inference_mode(),
    ):
        outputs = flatten(source.factory, _call(module, examples))
    if names and len(names) != len(outputs):
        raise InputError(
            f"torch factory {source.factory}: {len(names)} output names for {len(outputs)} outputs",
            hint="name every output once, in the module's order, or leave the names out",
        )
    output_names = names or list(outputs)
    clash = set(output_names) & set(examples) or {name for name in output_names if output_names.count(name) > 1}
    if clash:
        raise InputError(
            f"torch factory {source.factory}: the name {sorted(clash)[0]} stands for more than one tensor",
            hint="name the outputs in the factory's third item, each unlike every input and every other output",
        )
    hooks = {hook: getattr(holder, hook, None) for hook in _HOOKS}
    for hook, found in hooks.items():
        if found is not None and not callable(found):
            raise InputError(
                f"torch factory {source.factory}: {hook} in {source.module} is a {type(found).__name__}, not a function",
                hint=f"rename it: the name {hook} is kept for the function that brim_export.torch_source documents",
            )
    return LoadedModule(source.factory, module, examples, output_names, dynamic_axes, **hooks)


def export_program(loaded: LoadedModule) -> ExportedProgram:
    """The module as a graph with a symbolic batch.

    Raises:
        NotExportable: what the module does depends on the number of rows, or on the values of the whole batch.
        ModelFileError: torch cannot export the module for another reason.
    """
    scalars = [name for name, tensor in loaded.examples.items() if not tensor.dim()]
    if scalars:
        raise NotExportable(
            BATCH_AXIS_GATE,
            f"input {', '.join(scalars)} has no axes (a scalar), wanted axis 0 symbolic",
            "give every input one entry a row, so that each caller sends its own",
        )
    examples = {
        name: torch.cat([tensor, tensor]) if len(tensor) == 1 else tensor for name, tensor in loaded.examples.items()
    }
    batch = Dim(_BATCH)
    shapes = {
        name: {BATCH_AXIS: batch} | dict.fromkeys(loaded.dynamic_axes.get(name, {}), Dim.AUTO) for name in examples
    }
    positional = not _by_keyword(loaded.module, examples)
    branches: list[_Branch] = []
    with foreign(lambda error: _explained(error, loaded, examples)), torch.no_grad(), _branches(branches):
        program = torch.export.export(
            loaded.module,
            tuple(examples.values()) if positional else (),
            None if positional else examples,
            dynamic_shapes=tuple(shapes.values()) if positional else shapes,
            strict=False,
        )
    for name, axes in loaded.dynamic_axes.items():
        for axis, symbol in axes.items():
            size = _placeholder_shapes(loaded, program)[name][axis]
            if isinstance(size, int):
                raise NotExportable(
                    BATCH_AXIS_GATE,
                    f"input {name} axis {axis} is {size}, wanted symbolic ({symbol})",
                    f"give an example with at least two entries along axis {axis}, and write no size of it into forward()",
                )
    symbols = _batch_symbols(loaded, program)
    for branch in branches:
        limited = branch.limits(symbols)
        if limited:
            raise NotExportable(
                BATCH_AXIS_GATE,
                f"input {next(iter(examples))} axis 0 is {limited}, wanted symbolic: forward() decides by the number "
                f"of rows ({branch.text(symbols)} at {branch.place}), and a graph keeps only one arm of a branch",
                "compute the same thing for every number of rows, without a branch on the size of axis 0",
            )
    return program


def axis_limits(loaded: LoadedModule, program: ExportedProgram) -> dict[str, int]:
    """Largest size that torch derived for each named axis (a table of 512 positions, say); unbounded ones are left out."""
    limits: dict[str, int] = {}
    for name, axes in loaded.dynamic_axes.items():
        for axis, symbol in axes.items():
            size = _placeholder_shapes(loaded, program)[name][axis]
            known = program.range_constraints.get(size.node.expr) if isinstance(size, torch.SymInt) else None
            if known is not None and isinstance(known.upper, sympy.Integer) and known.upper < _UNBOUNDED:
                limits[symbol] = min(int(known.upper), limits.get(symbol, int(known.upper)))
    return limits


def write_onnx(loaded: LoadedModule, program: ExportedProgram, path: Path) -> None:
    """Write ``program`` to ``path``; weights of 2 GB and more go to ``model.onnx.data`` beside it.

    What torch notes about itself (stack traces with local paths) is left out, so equal models give equal bytes.

    Raises:
        ModelFileError: an operator has no ONNX form.
    """
    with foreign(
        lambda error: ModelFileError(
            f"torch factory {loaded.name}: torch cannot write the module as ONNX: {told(error)}",
            hint="replace the operator that is named, or export the model yourself and give it with --onnx",
        )
    ):
        written = torch.onnx.export(
            program,
            (),
            None,
            dynamo=True,
            input_names=list(loaded.examples),
            output_names=loaded.output_names,
            opset_version=OPSET,
            verbose=False,
        )
    if written is None:
        raise ModelFileError(
            f"torch factory {loaded.name}: torch.onnx.export gave nothing",
            hint="export the model yourself and give it with --onnx",
        )
    model = written.model
    names = _dim_names(loaded, program)
    for value in (*model.graph.inputs, *model.graph.outputs):
        _rename_axes(value, names)
        value.metadata_props.clear()
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            _rename_axes(value, names)
            value.metadata_props.clear()
    for initializer in model.graph.initializers.values():
        initializer.metadata_props.clear()
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    weights = sum(
        value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None
    )
    written.save(str(path), external_data=weights >= EXTERNAL_DATA_FROM)


def flatten(name: str, answer: object) -> dict[str, torch.Tensor]:
    """A module's answer as named tensors: ``output``, or ``output_0`` and so on, or a mapping's own names.

    Raises:
        InputError: the answer holds something else than tensors.
    """
    if isinstance(answer, torch.Tensor):
        found: dict[str, Any] = {"output": answer}
    elif isinstance(answer, Mapping):
        found = {str(key): value for key, value in answer.items()}
    elif isinstance(answer, list | tuple):
        found = {f"output_{index}": value for index, value in enumerate(answer)}
    else:
        found = {"output": answer}
    for key, value in found.items():
        if not isinstance(value, torch.Tensor):
            raise InputError(
                f"torch factory {name}: the module's {key} is a {type(value).__name__}, not a tensor",
                hint="return a tensor, a tuple of tensors, or a dict of names to tensors",
            )
    if not found:
        raise InputError(
            f"torch factory {name}: the module returns no tensor",
            hint="return a tensor, a tuple of tensors, or a dict of names to tensors",
        )
    return found


@dataclass(frozen=True, slots=True)
class _Branch:
    """A place in ``forward`` that decided by a symbolic size."""

    condition: sympy.Basic
    place: str

    def limits(self, symbols: set[sympy.Symbol]) -> str:
        """The numbers of rows (of 1 to the batch limit) on the smaller arm; empty when the batch alone does not decide."""
        if len(self.condition.free_symbols) != 1 or not self.condition.free_symbols <= symbols:
            return ""
        symbol = next(iter(self.condition.free_symbols))
        arms: dict[bool, list[int]] = {True: [], False: []}
        for rows in range(1, BATCH_LIMIT + 1):
            arms[bool(self.condition.subs(symbol, rows))].append(rows)
        smaller = min(arms.values(), key=len)
        if not smaller:
            return ""
        return str(smaller[0]) if len(smaller) == 1 else f"one of {smaller[0]}..{smaller[-1]}"

    def text(self, symbols: set[sympy.Symbol]) -> str:
        """The condition, with the batch called ``rows``."""
        return str(self.condition.subs({symbol: sympy.Symbol("rows") for symbol in symbols}))


@contextmanager
def _branches(found: list[_Branch]) -> Iterator[None]:
    """Note where code outside torch turns a comparison of symbolic sizes into a yes or no.

    torch assumes sizes of at least two while exporting, so ``if x.shape[0] == 1`` is decided without leaving a guard,
    and no public interface tells of it.
    """
    truth: Any = torch.SymBool
    original = truth.__bool__

    def noting(self: Any) -> bool:
        frame = sys._getframe(1)
        if not frame.f_code.co_filename.startswith(_TORCH_FOLDER):
            found.append(_Branch(self.node.expr, _place(frame)))
        return bool(original(self))

    truth.__bool__ = noting
    try:
        yield
    finally:
        truth.__bool__ = original


def _place(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _placeholder_shapes(loaded: LoadedModule, program: ExportedProgram) -> dict[str, tuple[Any, ...]]:
    """Shape of each input in the exported program: integers, and symbolic ones."""
    shapes = {
        node.name: node.meta["val"].shape
        for node in program.graph.nodes
        if node.op == "placeholder" and "val" in node.meta
    }
    wanted = program.graph_signature.user_inputs
    return {name: shapes[str(node_name)] for name, node_name in zip(loaded.examples, wanted, strict=True)}


def _batch_symbols(loaded: LoadedModule, program: ExportedProgram) -> set[sympy.Symbol]:
    """The symbols that stand for the size of axis 0 of the inputs."""
    sizes = [shape[BATCH_AXIS] for shape in _placeholder_shapes(loaded, program).values()]
    return {symbol for size in sizes if isinstance(size, torch.SymInt) for symbol in size.node.expr.free_symbols}


def _dim_names(loaded: LoadedModule, program: ExportedProgram) -> dict[str, str]:
    """torch's symbols (``s77``) to the names that the axes were given."""
    return {
        str(shape[axis]): symbol
        for name, shape in _placeholder_shapes(loaded, program).items()
        for axis, symbol in ({BATCH_AXIS: _BATCH} | loaded.dynamic_axes.get(name, {})).items()
    }


def _rename_axes(value: onnx_ir.Value, names: Mapping[str, str]) -> None:
    if value.shape is not None:
        value.shape = onnx_ir.Shape(
            [size if isinstance(size, int) else names.get(str(size.value), size.value) for size in value.shape]
        )


def _explained(error: BaseException, loaded: LoadedModule, examples: Mapping[str, torch.Tensor]) -> Exception:
    first = next(iter(examples))
    if isinstance(error, GuardOnDataDependentSymNode) or (
        isinstance(error, UserError) and error.error_type is UserErrorType.DYNAMIC_CONTROL_FLOW
    ):
        return NotExportable(
            ROW_INDEPENDENCE,
            f"output {loaded.output_names[0]} axis 0: output of a row depends on other rows: forward() branches on values of "
            f"the whole batch{_user_place(error)}, wanted the same operators for every row",
            "choose by row with torch.where instead of a Python branch on a tensor's value",
        )
    rows = len(examples[first])
    specialised = (
        isinstance(error, ConstraintViolationError)
        or (isinstance(error, UserError) and error.error_type is UserErrorType.CONSTRAINT_VIOLATION)
        or (isinstance(error, ValueError) and "user-specified" in str(error))
    )
    if specialised:
        lines = [line.strip(" -") for line in str(error).splitlines()]
        fixed = [line.removeprefix(f"{_BATCH} = ") for line in lines if re.fullmatch(rf"{_BATCH} = \d+", line)]
        guards = [
            _GUARD.sub(r"\1 axis \2", line.partition(" generated guard ")[2].rstrip("."))
            for line in lines
            if " guard " in line
        ]
        found = f"is {fixed[0]}" if fixed else "is tied to certain sizes"
        needs = f"forward() needs {'; '.join(guards[:2])}" if guards else "forward() works for that number of rows only"
        return NotExportable(
            BATCH_AXIS_GATE,
            f"input {', '.join(examples)} axis 0 {found}, wanted symbolic: {needs}",
            "write no row count into forward(): view(-1, ...) or x.shape[0] instead of a number, no Python loop over rows, "
            "no slice along axis 0",
        )
    failing = _failing_rows(loaded, rows)
    if failing:
        return NotExportable(
            BATCH_AXIS_GATE,
            f"input {', '.join(examples)} axis 0: wanted symbolic, found that forward() {failing}",
            "write no row count into forward() (view(-1, ...) or x.shape[0] instead of a number)",
        )
    return ModelFileError(
        f"torch factory {loaded.name}: torch cannot export the module: {told(error)}{_user_place(error)}",
        hint="rewrite the part that is named, or export the model yourself and give it with --onnx",
    )


def _failing_rows(loaded: LoadedModule, example_rows: int) -> str:
    """How the module fails in torch itself at another number of rows than its example's; empty when it does not."""
    for rows in (1, 2, 3, example_rows + 1):
        feed = {name: tensor[:1].expand(rows, *tensor.shape[1:]).clone() for name, tensor in loaded.examples.items()}
        try:
            with torch.inference_mode():
                _call(loaded.module, feed)
        except Exception as error:  # noqa: BLE001 - a foreign forward()
            return f"fails at {rows} rows: {told(error)}{_user_place(error)}"
    return ""


def _user_place(error: BaseException) -> str:
    """`` at file:line`` of the last frame outside torch and this package."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_TORCH_FOLDER) and Path(frame.filename).parent != Path(__file__).parent
    ]
    return f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def _by_keyword(module: nn.Module, examples: Mapping[str, object]) -> bool:
    parameters = inspect.signature(module.forward).parameters
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return all(name in parameters and parameters[name].kind in kinds for name in examples)


def _call(module: nn.Module, examples: Mapping[str, torch.Tensor]) -> object:
    return module(**examples) if _by_keyword(module, examples) else module(*examples.values())


def _checked(
    name: str, answer: object
) -> tuple[nn.Module, dict[str, torch.Tensor], list[str], dict[str, dict[int, str]]]:
    form = "(module, {input name: example tensor}[, output names[, dynamic axes]])"
    if not isinstance(answer, tuple) or not 2 <= len(answer) <= 4:
        size = f" of {len(answer)}" if isinstance(answer, tuple) else ""
        raise InputError(
            f"torch factory {name} returned a {type(answer).__name__}{size}, expected {form}",
            hint='for example: return net.eval(), {"FEATURES": torch.zeros(1, 4)}',
        )
    module, examples, names, axes = (*answer, None, None)[:4]
    if not isinstance(module, nn.Module):
        raise InputError(
            f"torch factory {name}: the first item is a {type(module).__name__}, expected a torch.nn.Module",
            hint="return the module first: return net.eval(), {...}; a plain function can be wrapped in a Module's forward",
        )
    if not isinstance(examples, Mapping) or not examples:
        raise InputError(
            f"torch factory {name}: the second item is no mapping of input names to example tensors",
            hint='name each input with one example, the batch first: {"FEATURES": torch.zeros(1, 4)}',
        )
    for key, tensor in examples.items():
        if not isinstance(key, str) or not key or not key.isprintable() or not isinstance(tensor, torch.Tensor):
            raise InputError(
                f"torch factory {name}: input {key!r} has a {type(tensor).__name__}, expected a tensor",
                hint='name each input with one example, the batch first: {"FEATURES": torch.zeros(1, 4)}',
            )
        fault = _example_fault(tensor)
        if fault:
            raise InputError(
                f"torch factory {name}: the example of input {key} {fault}",
                hint="give what a caller could send: a dense tensor on the CPU, of a type that numpy has",
            )
    with foreign(
        lambda error: InputError(
            f"torch factory {name}: the module cannot list its weights: {told(error)}",
            hint="call super().__init__() first in the module's own __init__",
        )
    ):
        _check_device(name, module)
    listed = isinstance(names, list | tuple) and all(
        isinstance(item, str) and item and item.isprintable() for item in names
    )
    if not listed and names is not None:
        raise InputError(
            f"torch factory {name}: the third item must list output names, it is {names!r}",
            hint='for example ["SCORES"], or None for the module\'s own names',
        )
    checked = dict(examples)
    counts = {key: tensor.shape[BATCH_AXIS] for key, tensor in checked.items() if tensor.dim()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        raise InputError(
            f"torch factory {name}: the examples need the same number of rows, at least one; found {counts}",
            hint="make axis 0 of every example the batch; one row is enough",
        )
    return module, checked, list(names or ()), _checked_axes(name, axes, checked)


def _example_fault(tensor: torch.Tensor) -> str:
    """Why no caller could send the example; empty when one could."""
    if tensor.is_nested or tensor.is_quantized or tensor.layout is not torch.strided:
        return "is nested, quantized or sparse, expected a dense tensor"
    if tensor.device.type != "cpu":
        return f"is on {tensor.device}, expected on the CPU"
    if tensor.dtype not in _SERVED:
        return f"is of {tensor.dtype}, which cannot be served"
    if tensor.dim() > LARGEST_RANK + 1:
        return f"has {tensor.dim()} axes, more than numpy's {LARGEST_RANK + 1}"
    return ""


def _check_device(name: str, module: nn.Module) -> None:
    """Refuse weights that lie elsewhere than on the CPU.

    Raises:
        InputError: see above; names the first.
    """
    for weight, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.device.type != "cpu":
            raise InputError(
                f"torch factory {name}: the module's {weight} is on {tensor.device}, expected on the CPU",
                hint="the exporter works on the CPU: return module.cpu(); load weights that are still on meta",
            )


def _checked_axes(name: str, axes: object, examples: Mapping[str, torch.Tensor]) -> dict[str, dict[int, str]]:
    if axes is None:
        return {}
    if not isinstance(axes, Mapping) or not all(isinstance(item, Mapping) for item in axes.values()):
        raise InputError(
            f"torch factory {name}: dynamic axes must look like {{'input': {{1: 'name'}}}}, found {axes!r}",
            hint="map an input to the axes that may vary, each with a name; leave it out when all sizes are fixed",
        )
    for key, named in axes.items():
        if key not in examples:
            raise InputError(
                f"torch factory {name}: dynamic axes name {key!r}, which is no input; inputs are {', '.join(examples)}",
                hint="use the input's name as the second item spells it",
            )
        for axis, symbol in named.items():
            if not isinstance(axis, int) or not 0 < axis < examples[key].dim():
                raise InputError(
                    f"torch factory {name}: dynamic axis {axis!r} of {key}, expected 1..{examples[key].dim() - 1} "
                    f"(axis 0 is the batch already)",
                    hint="count axes from 0, the batch included, and name only those that vary",
                )
            if not isinstance(symbol, str) or not symbol.isidentifier() or symbol == _BATCH:
                raise InputError(
                    f"torch factory {name}: axis {axis} of {key} needs a name other than {_BATCH!r}: {symbol!r}",
                    hint="give it a word such as 'sequence'; axes of one name share one size",
                )
    return {key: dict(named) for key, named in axes.items()}
