"""A small convolutional net, trained in seconds on scikit-learn's 8x8 digits, so that every answer can be checked.

Input ``IMAGE``, FP32 [batch, 1, 8, 8], grey values 0..16 as the data set has them; output ``PROBABILITIES``, FP32
[batch, 10]. Training is seeded and runs on one thread: the same machine and versions give the same weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

SIDE = 8
"""Height and width of an image."""

BRIGHTEST = 16.0
"""Largest grey value."""

CLASSES = tuple(str(digit) for digit in range(10))
"""Names of the outputs, in order."""

MOST_LOST = 0.01
"""Share of held-out images that a graph of lower precision may take for others than the one in full precision does."""

_SEED = 20
_HELD_OUT_SHARE = 0.2
_CHANNELS = 16
_EPOCHS = 20
_TRAINING_BATCH = 64

Array = np.ndarray[Any, Any]
Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]


class DigitNet(nn.Module):
    """Three convolutions and a linear layer; scales its input and answers probabilities."""

    def __init__(self) -> None:
        """Random weights from torch's generator."""
        super().__init__()
        self.layers = nn.Sequential(
            *_block(1, _CHANNELS),
            *_block(_CHANNELS, 2 * _CHANNELS),
            nn.MaxPool2d(2),
            *_block(2 * _CHANNELS, 2 * _CHANNELS),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.25),
            nn.Linear(2 * _CHANNELS * (SIDE // 4) ** 2, len(CLASSES)),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """[batch, 1, 8, 8] grey values to [batch, 10] probabilities."""
        return self.logits(images).softmax(dim=1)

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """What training compares with the labels."""
        scores: torch.Tensor = self.layers(images / BRIGHTEST)
        return scores


def _block(channels_in: int, channels_out: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(channels_in, channels_out, 3, padding=1), nn.BatchNorm2d(channels_out), nn.ReLU()


def factory() -> tuple[nn.Module, dict[str, torch.Tensor], list[str]]:
    """The trained net, in eval mode, and two images."""
    images, _ = held_out()
    return _trained(), {"IMAGE": torch.from_numpy(images[:2])}, ["PROBABILITIES"]


def row_samples(rng: np.random.Generator, rows: int, axis_sizes: Mapping[str, int]) -> dict[str, Array]:
    """Images that were held out of training."""
    images, _ = held_out()
    return {"IMAGE": images[rng.integers(len(images), size=rows)]}


def write_assets(folder: Path) -> None:
    """Write ``labels.txt``: one class name a line, in output order."""
    (folder / "labels.txt").write_text("".join(f"{name}\n" for name in CLASSES), encoding="utf-8")


def held_out() -> tuple[Array, Array]:
    """Images [n, 1, 8, 8] FP32 of grey values 0..16 and labels [n] INT64 that training never sees."""
    _, images, _, labels = _split()
    return images.copy(), labels.copy()


def reference(images: Array) -> Array:
    """Probabilities by torch, FP32 [n, 10], one image at a time."""
    net = _trained()
    with torch.inference_mode():
        rows = [net(torch.from_numpy(image[np.newaxis].astype(np.float32)))[0].numpy() for image in images]
    return np.stack(rows) if rows else np.empty((0, len(CLASSES)), np.float32)


def known_answers(count: int, seed: int) -> tuple[list[dict[str, Array]], list[dict[str, Array]]]:
    """Requests to the service and the answers that torch gives: FP32 [1, 1, 8, 8] and FP32 [1, 10] each."""
    images, _ = held_out()
    chosen = images[np.random.default_rng(seed).integers(0, len(images), count)]
    answers = reference(chosen)
    return [{"IMAGE": image[np.newaxis]} for image in chosen], [{"PROBABILITIES": row[np.newaxis]} for row in answers]


def calibration_rows(rng: np.random.Generator, rows: int) -> list[dict[str, Array]]:
    """Images of the training set, so that what accuracy is measured on stays unseen."""
    images, _, _, _ = _split()
    return [{"IMAGE": images[rng.integers(len(images), size=rows)]}]


def accuracy(run: Run, reference: Run) -> dict[str, tuple[float, float]]:
    """Share of the held-out images that are recognised; a lower precision may lose ``MOST_LOST`` of it."""
    images, labels = held_out()
    right, at_best = (
        float((answer({"IMAGE": images})["PROBABILITIES"].argmax(axis=1) == labels).mean())
        for answer in (run, reference)
    )
    return {"held-out accuracy": (right, at_best - MOST_LOST)}


@functools.cache
def _split() -> tuple[Array, Array, Array, Array]:
    digits = load_digits()
    images = digits.images.astype(np.float32)[:, np.newaxis]
    training, held, training_labels, held_labels = train_test_split(
        images, digits.target.astype(np.int64), test_size=_HELD_OUT_SHARE, random_state=_SEED, stratify=digits.target
    )
    return training, held, training_labels, held_labels


@functools.cache
def _trained() -> DigitNet:
    """Train once a process, on one thread and with a generator of its own, leaving torch's settings as they were."""
    images, _, labels, _ = _split()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            return _fit(DigitNet(), torch.from_numpy(images), torch.from_numpy(labels))
    finally:
        torch.set_num_threads(threads)


def _fit(net: DigitNet, images: torch.Tensor, labels: torch.Tensor) -> DigitNet:
    optimiser = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, _EPOCHS)
    net.train()
    for _ in range(_EPOCHS):
        order = torch.randperm(len(images))
        for first in range(0, len(order), _TRAINING_BATCH):
            chosen = order[first : first + _TRAINING_BATCH]
            optimiser.zero_grad()
            nn.functional.cross_entropy(net.logits(images[chosen]), labels[chosen]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        schedule.step()
    return net.eval()
