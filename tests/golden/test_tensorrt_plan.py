"""The commands that build an engine, for every shipped model, and the linter's word on their profiles."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest
from polygraphy.tools.convert.convert import Convert

from brim.config.generate import Profile, model_configs, native_name
from brim.config.shapes import tuned_rows
from brim.config.tensorrt_plan import (
    EnginePrecision,
    optimisation_profile,
    polygraphy_command,
    profile_document,
    trtexec_command,
)
from brim.errors import InputError
from brim.limits import BATCH_LIMIT
from brim.lint.tensorrt import MAX_TOO_SMALL, MIN_TOO_LARGE, check_profiles
from brim.service.load import find_services, load_service
from brim.service.schema import Service

GRAPH, PLAN, TIMINGS = Path("model.onnx"), Path("model.plan"), Path("timings")
SHAPES = {
    "image_classifier": ("IMAGE:1x1x8x8", "IMAGE:100x1x8x8", "IMAGE:100x1x8x8"),
    "text_embedding": (
        "input_ids:1x1,attention_mask:1x1",
        "input_ids:100x128,attention_mask:100x128",
        "input_ids:100x512,attention_mask:100x512",
    ),
}
FLAGS = {"fp32": [], "fp16": ["--fp16"], "bf16": ["--bf16"], "fp8": ["--fp8", "--fp16"], "int8": ["--int8", "--fp16"]}


def shipped(checkout: Path, name: str) -> Service:
    return load_service(checkout / "services" / f"{name}.yaml")


def test_every_shipped_model_is_covered(checkout: Path) -> None:
    names = {service.name for service in find_services(checkout / "services", []) if service.generation is None}
    assert names == set(SHAPES)


@pytest.mark.parametrize("precision", EnginePrecision)
@pytest.mark.parametrize("name", SHAPES)
def test_trtexec_takes_one_row_to_the_largest_batch(checkout: Path, name: str, precision: EnginePrecision) -> None:
    least, best, most = SHAPES[name]
    assert trtexec_command(optimisation_profile(shipped(checkout, name)), precision, GRAPH, PLAN, TIMINGS) == [
        "trtexec",
        "--onnx=model.onnx",
        "--saveEngine=model.plan",
        f"--minShapes={least}",
        f"--optShapes={best}",
        f"--maxShapes={most}",
        *FLAGS[precision.value],
        "--noTF32",
        "--timingCacheFile=timings",
        "--skipInference",
    ]


def test_polygraphy_builds_the_same_engine(checkout: Path) -> None:
    profile = optimisation_profile(shipped(checkout, "text_embedding"))
    assert " ".join(polygraphy_command(profile, EnginePrecision.INT8, GRAPH, PLAN, TIMINGS)) == (
        "polygraphy convert model.onnx --convert-to trt --output model.plan "
        "--trt-min-shapes input_ids:[1,1] attention_mask:[1,1] "
        "--trt-opt-shapes input_ids:[100,128] attention_mask:[100,128] "
        "--trt-max-shapes input_ids:[100,512] attention_mask:[100,512] "
        "--int8 --fp16 --load-timing-cache timings --save-timing-cache timings"
    )


@pytest.mark.parametrize("precision", EnginePrecision)
def test_polygraphy_itself_reads_the_command(checkout: Path, precision: EnginePrecision) -> None:
    profile = optimisation_profile(shipped(checkout, "text_embedding"))
    _, *words = polygraphy_command(profile, precision, GRAPH, PLAN, TIMINGS)
    parser = argparse.ArgumentParser()
    Convert().setup_parser(parser.add_subparsers())
    read = vars(parser.parse_args(words))
    for bound, shapes in zip(("min", "opt", "max"), SHAPES["text_embedding"], strict=True):
        given = [re.sub(r"[\[\]]", "", one).replace(",", "x") for one in read[f"trt_{bound}_shapes"][0]]
        assert ",".join(given) == shapes
    assert [f"--{flag}" for flag in ("fp8", "int8", "bf16", "fp16") if read[flag]] == FLAGS[precision.value]
    assert (read["convert_to"], read["output"], read["load_timing_cache"]) == ("trt", "model.plan", "timings")
    assert not read["tf32"]


def test_the_optimum_is_the_tuned_batch(checkout: Path) -> None:
    service = shipped(checkout, "image_classifier")
    assert tuned_rows(service) == BATCH_LIMIT
    tuned = service.model_copy(update={"batching": service.batching.model_copy(update={"preferred": (16, 50)})})
    span = optimisation_profile(tuned)["IMAGE"]
    assert [shape[0] for shape in (span.minimum, span.optimum, span.maximum)] == [1, 50, BATCH_LIMIT]


def test_a_language_model_is_refused_by_name(checkout: Path) -> None:
    with pytest.raises(InputError, match=r"text_generation is a language model: .* vLLM"):
        optimisation_profile(shipped(checkout, "text_generation"))


@pytest.mark.parametrize("name", SHAPES)
def test_the_linter_accepts_the_profile_and_refuses_one_that_does_not_span_every_batch(
    checkout: Path, name: str
) -> None:
    service = shipped(checkout, name)
    config = model_configs(service, Profile.TENSORRT)[native_name(service)]
    assert config.max_batch_size == BATCH_LIMIT
    document = json.loads(json.dumps(profile_document(optimisation_profile(service))))
    assert check_profiles(config, document) == []
    for bound, rows, code in (("max", BATCH_LIMIT - 1, MAX_TOO_SMALL), ("min", 2, MIN_TOO_LARGE)):
        spoilt = {
            tensor: {**shapes, bound: [rows, *shapes[bound][1:]], **({"opt": shapes["min"]} if bound == "max" else {})}
            for tensor, shapes in document.items()
        }
        assert {found for found, _ in check_profiles(config, spoilt)} == {code}
