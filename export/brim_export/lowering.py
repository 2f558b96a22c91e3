"""A graph in a lower precision, by ONNX Runtime's own converters. Inputs and outputs keep their types.

- ``fp16``: weights and arithmetic in half precision (``onnxruntime.transformers.float16``).
- ``int8``: static quantisation. Every scale is a constant, from calibration rows, so no row can touch another's answer.
- ``int8-rows``: weights in whole numbers, activations quantised for each row by itself, in blocks of ``BLOCK`` values
  (the operator MatMulNBits of ONNX Runtime at accuracy level 4). Matrix products only.
- ``int8-dynamic``: scales are taken anew from each whole batch (the ONNX operator DynamicQuantizeLinear has one scale for
  its whole input), so a row's answer changes with its neighbours. It is made as it is asked for; the row-independence gate
  refuses it where a batch may have neighbours.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.transformers.float16 import convert_float_to_float16

from brim.errors import ModelFileError
from brim.service.schema import Precision
from brim_export.foreign import foreign, told
from brim_export.session import Feed

LARGEST_BYTES = 1_900_000_000
"""Of a graph with its weights: a converter holds it in one protobuf message, which ends at 2 GiB."""

BLOCK = 128
"""Values of a weight, and of a row, that share a scale in ``int8-rows``."""

_BLOCK_OPERATOR = "MatMulNBits"
_INT8_COMPUTE = 4
"""Accuracy level of MatMulNBits at which the row is quantised as well, so that the product is one of whole numbers."""

QUANTISED = ("Conv", "MatMul")
"""Operators that are quantised (Gemm becomes MatMul and Add). Embedding tables, softmax and normalisation stay as they are."""


def lower(plain: Path, lowered: Path, precision: Precision, calibration: Sequence[Feed]) -> None:
    """Write the graph at ``plain`` to ``lowered`` in another precision, its weights inside.

    Args:
        plain: a graph in FP32, its external data beside it.
        lowered: where the result goes.
        precision: which; not FP32.
        calibration: batches that the scales of ``int8`` are taken from.

    Raises:
        ModelFileError: the graph is too large, or the converter does not take it.
    """
    size = sum(file.stat().st_size for file in plain.parent.rglob("*") if file.is_file())
    if size > LARGEST_BYTES:
        raise ModelFileError(
            f"the graph has {size} bytes with its weights; {precision.value} is made of at most {LARGEST_BYTES}, which is "
            "what one protobuf message holds",
            hint="leave model.precision at fp32, or convert the model before it is brought",
        )
    with foreign(
        lambda error: ModelFileError(
            f"ONNX Runtime's converter does not make {precision.value} of this graph: {told(error)}",
            hint="leave model.precision at fp32, or convert the model before it is brought",
        )
    ):
        if precision is Precision.FP16:
            onnx.save(convert_float_to_float16(onnx.load(str(plain)), keep_io_types=True), str(lowered))
            return
        if precision is Precision.INT8_ROWS:
            _by_rows(plain, lowered)
            return
        with tempfile.TemporaryDirectory(prefix="brim-lower-", dir=lowered.parent) as folder:
            prepared = Path(folder) / "prepared.onnx"
            # Folds normalisation into convolutions, and writes down the shapes that the quantiser looks for.
            quant_pre_process(str(plain), str(prepared), skip_symbolic_shape=True)
            if precision is Precision.INT8:
                _static(prepared, lowered, calibration)
            else:
                quantize_dynamic(prepared, lowered, op_types_to_quantize=list(QUANTISED), weight_type=QuantType.QUInt8)


def _by_rows(plain: Path, lowered: Path) -> None:
    # Importing the quantiser sets the root logger up, unless that has a handler.
    mute = logging.NullHandler()
    logging.root.addHandler(mute)
    try:
        from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer
    finally:
        logging.root.removeHandler(mute)
    way = DefaultWeightOnlyQuantConfig(block_size=BLOCK, is_symmetric=True, accuracy_level=_INT8_COMPUTE, bits=8)
    quantiser = MatMulNBitsQuantizer(onnx.load(str(plain)), algo_config=way)
    quantiser.process()
    model = quantiser.model.model
    if not any(node.op_type == _BLOCK_OPERATOR for node in model.graph.node):
        raise ModelFileError(
            "int8-rows quantises products with constant matrices (MatMul), and the graph has none",
            hint="take int8, which quantises convolutions as well",
        )
    onnx.save(model, str(lowered))


def _static(prepared: Path, lowered: Path, calibration: Sequence[Feed]) -> None:
    quantize_static(
        prepared,
        lowered,
        _Reader(calibration),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=[*QUANTISED, "Gemm"],
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        calibrate_method=CalibrationMethod.MinMax,
        # Zero points of 0 are what TensorRT takes. A product of two inputs (attention) stays in floats.
        extra_options={"ActivationSymmetric": True, "WeightSymmetric": True, "MatMulConstBOnly": True},
    )


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    """Batches one by one, as ONNX Runtime's calibrator asks for them."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._feeds: Iterator[Feed] = iter(feeds)

    def get_next(self) -> Feed | None:
        return next(self._feeds, None)
