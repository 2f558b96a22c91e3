"""From measured runs to the cost model of a service file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ruamel.yaml import YAML

from brim.bench.conditions import Watch
from brim.bench.fit import SHAPES, SLACK, Fit, fit_cost, fit_padding, most_tokens
from brim.errors import InputError
from brim.paths import Project
from brim.runtime.padding import PaddingCost
from brim.service.load import find_service
from brim.service.schema import Padding


def times(cost: PaddingCost, noise: float = 0.0) -> dict[tuple[int, int], float]:
    draw = np.random.default_rng(3)
    return {shape: cost.of(*shape) * (1 + noise * draw.uniform(-1, 1)) for shape in SHAPES}


@pytest.mark.parametrize(
    "cost", [PaddingCost(1_900, 132, 0.05), PaddingCost(2_500, 0.5), PaddingCost(0, 40, 3), PaddingCost(7, 1_000, 0)]
)
def test_the_coefficients_that_made_the_times_are_found(cost: PaddingCost) -> None:
    found = fit_cost(times(cost))
    assert found.fixed_us == pytest.approx(cost.fixed_us, rel=1e-6, abs=1e-6)
    assert found.per_token_us == pytest.approx(cost.per_token_us, rel=1e-6)
    assert found.per_pair_us == pytest.approx(cost.per_pair_us, rel=1e-6, abs=1e-6)


def test_noise_moves_them_little() -> None:
    found = fit_cost(times(PaddingCost(1_900, 132), noise=0.05))
    assert found.fixed_us == pytest.approx(1_900, rel=0.1)
    assert found.per_token_us == pytest.approx(132, rel=0.1)


def test_no_term_is_negative() -> None:
    falling = {(rows, longest): 100.0 * (rows * longest) ** 1.2 for rows, longest in SHAPES}
    found = fit_cost(falling)
    assert found.fixed_us >= 0 and found.per_token_us > 0 and found.per_pair_us >= 0


def test_a_run_ends_where_tokens_get_dearer() -> None:
    slower = {
        (rows, longest): rows * longest * (100.0 if rows * longest <= 512 else 100 * SLACK * 1.01)
        for rows, longest in SHAPES
    }
    assert most_tokens(slower) == 512
    assert most_tokens({shape: 3.0 * shape[0] * shape[1] for shape in SHAPES}) == max(r * n for r, n in SHAPES)


@pytest.mark.parametrize("measured", [{}, {(1, 4): 1.0, (2, 4): 2.0}, {(1, 4): 1.0, (2, 4): 2.0, (1, 8): 0.0}])
def test_too_little_is_refused(measured: dict[tuple[int, int], float]) -> None:
    with pytest.raises(ValueError, match="three at least"):
        fit_cost(measured)


def test_the_block_is_what_a_service_file_takes() -> None:
    cost = PaddingCost(1912.3, 131.87, 0.0512, 1024)
    block = Fit(cost, {(1, 4): 1.0}, 0.01, 2, Watch().stop()).block()
    read = Padding.model_validate(dict(YAML(typ="safe").load(f"runtime:\n{block}")["runtime"]["padding"]))
    assert read == Padding(fixed_us=1912, per_token_us=131.9, per_pair_us=0.0512, max_tokens=1024)


def test_a_measured_fit_of_the_shipped_encoder(exported: Project) -> None:
    shapes = ((1, 4), (1, 16), (4, 16))
    fit = fit_padding(exported, find_service(exported.services, "text_embedding"), repeats=2, shapes=shapes)
    assert set(fit.measured_us) == set(shapes) and min(fit.measured_us.values()) > 0
    assert fit.cost.per_token_us > 0 and fit.cost.max_tokens in {4, 16, 64}


def test_a_model_that_takes_no_tokens_is_refused(exported: Project, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="only token ids can be padded"):
        fit_padding(exported, find_service(exported.services, "image_classifier"))
