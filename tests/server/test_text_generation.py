"""The shipped language model on the real server: torch's text, in pieces, by the contract of Triton's vLLM backend."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import psutil
import pytest

from brim.cli.text_clients import text_curl_lines, text_python_lines
from brim.cli.text_self_check import text_self_check
from brim.config.generation import MODEL_NAMES
from brim.engine.admission import Policy
from brim.engine.engine import Sampling
from brim.engine.engine_process import EngineArguments, EngineProcess
from brim.engine.lifecycle import Delta, Request
from brim.engine.patience import Patience
from brim.engine.scheduler import Scheduler
from brim.engine.tokenise import Tokenizer
from brim.errors import CouldNotTell, ModelFileError, ServerFailed
from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint
from brim.server.options import ServerOptions
from brim.service.load import find_service
from brim.service.samples import sample_rows
from brim_export.language_model_record import LanguageModelRecord
from brim_export.language_model_source import find_source
from brim_export.llama_reference import LlamaReference
from brim_export.service_export import out_folder
from tests.server.text_callers import MODEL, WAIT_S, Stream, metric, post

GREEDY = {"temperature": 0, "ignore_eos": True}
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n",
)
LENGTH = 12


class Text(NamedTuple):
    """What torch says after a prompt."""

    prompt: str
    text: str


@pytest.fixture(scope="module")
def project(exported_text: Project) -> Project:
    """The checkout with the language model exported."""
    return exported_text


@pytest.fixture(scope="module")
def references(project: Project) -> list[Text]:
    """Greedy continuations by torch in float32, with the weights as they were before the export."""
    service = find_service(project.services, MODEL)
    tokenizer = Tokenizer.load(out_folder(project, service) / MODEL_NAMES["gguf"])
    torch_model = LlamaReference(find_source(str(service.model.llm), project.root).path)
    texts = []
    for prompt in PROMPTS:
        tokens = torch_model.greedy(tokenizer.tokens_of(prompt, most=64), LENGTH)
        texts.append(Text(prompt, b"".join(tokenizer.table[token] for token in tokens).decode("utf-8", "replace")))
    return texts


@pytest.fixture(scope="module")
def endpoint(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """The model served."""
    service = find_service(project.services, MODEL)
    with EmbeddedServer(
        project.model_repository,
        [MODEL],
        cache=project.cache,
        log_file=tmp_path_factory.mktemp("text") / "triton.log",
        canaries={MODEL: sample_rows(service)[0]},
        options=ServerOptions(exit_timeout_s=5),
    ) as server:
        yield server.endpoint


def ask(endpoint: Endpoint, prompt: str, **parameters: Any) -> Stream:
    return Stream(endpoint, prompt.encode(), {**GREEDY, **parameters})


def test_a_stream_is_torchs_text_piece_by_piece(endpoint: Endpoint, references: list[Text]) -> None:
    with ExitStack() as stack:
        streams = [stack.enter_context(ask(endpoint, one.prompt, max_tokens=LENGTH)) for one in references]
        for stream, one in zip(streams, references, strict=True):
            stream.finish()
            assert (stream.error, stream.text) == (None, one.text)
            assert sum(stream.tokens) == LENGTH
            assert stream.reasons == ["None"] * (len(stream.reasons) - 1) + ["length"]
            assert len(stream.texts) > LENGTH // 2


def test_generate_and_generate_stream_say_the_same(endpoint: Endpoint, references: list[Text]) -> None:
    one = references[0]
    body = {"text_input": one.prompt, "max_tokens": LENGTH, **GREEDY}
    code, answer = post(endpoint, "generate", body)
    assert (code, json.loads(answer)["text_output"]) == (200, one.prompt + one.text)
    code, answer = post(endpoint, "generate", {**body, "exclude_input_in_output": True})
    assert (code, json.loads(answer)["text_output"]) == (200, one.text)
    told = {"return_num_input_tokens": True, "return_num_output_tokens": True}
    code, answer = post(endpoint, "generate_stream", {**body, **told, "stream": True})
    lines = [line for line in answer.split("\n") if line]
    assert code == 200 and all(line.startswith("data: ") for line in lines)
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert "".join(event["text_output"] for event in events) == one.text
    assert sum(event["num_output_tokens"] for event in events) == LENGTH
    assert {event["num_input_tokens"] for event in events} == {5}


def test_a_stop_string_never_shows(endpoint: Endpoint, references: list[Text]) -> None:
    one = references[0]
    middle = len(one.text) // 2
    stop = one.text[middle : middle + 4]
    options = json.dumps({"stop": [stop, "never"], "max_tokens": LENGTH, **GREEDY})
    body = {"text_input": one.prompt, "sampling_parameters": options, "exclude_input_in_output": True}
    code, answer = post(endpoint, "generate", {**body, "return_finish_reason": True})
    found = json.loads(answer)
    assert (code, found["text_output"], found["finish_reason"]) == (200, one.text[: one.text.index(stop)], "stop")


def test_callers_finish_in_the_order_of_their_lengths(endpoint: Endpoint) -> None:
    lengths = (40, 4, 30, 12)
    ended: queue.Queue[int] = queue.Queue()
    with ExitStack() as stack:
        streams = {
            length: stack.enter_context(ask(endpoint, f"Story {length}", max_tokens=length)) for length in lengths
        }

        def listen(length: int) -> None:
            assert streams[length].finish().error is None
            ended.put(length)

        listeners = [threading.Thread(target=listen, args=(length,)) for length in lengths]
        for listener in listeners:
            listener.start()
        order = [ended.get(timeout=WAIT_S) for _ in lengths]
        for listener in listeners:
            listener.join(WAIT_S)
    assert order == sorted(lengths)


def test_a_cancelled_stream_frees_its_blocks(endpoint: Endpoint) -> None:
    before = metric(endpoint, "brim_llm_requests_total", end="cancelled")
    with ask(endpoint, "Tell me a very long story", max_tokens=3_000) as stream:
        for _ in range(4):
            assert not stream.next()
        assert metric(endpoint, "brim_llm_kv_blocks_used") > 0
        stream.cancel()
        deadline = time.monotonic() + WAIT_S
        while metric(endpoint, "brim_llm_kv_blocks_used") or metric(endpoint, "brim_llm_kv_blocks_promised"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert metric(endpoint, "brim_llm_requests_total", end="cancelled") == before + 1
    assert metric(endpoint, "vllm:num_requests_running") == 0
    assert metric(endpoint, "nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="used") == 0


def test_texts_with_neighbours_are_those_without(endpoint: Endpoint) -> None:
    def drawn(seed: int) -> dict[str, Any]:
        return {"temperature": 0.9, "seed": seed, "max_tokens": 16}

    def alone(seed: int) -> str:
        with ask(endpoint, f"Once upon a time {seed % 3}", **drawn(seed)) as stream:
            return stream.finish().text

    solo = [alone(seed) for seed in range(6)]
    assert len(set(solo)) > 1
    with ExitStack() as stack:
        noise = stack.enter_context(ask(endpoint, "x" * 30_000, max_tokens=1))
        streams = [
            stack.enter_context(ask(endpoint, f"Once upon a time {seed % 3}", **drawn(seed))) for seed in range(6)
        ]
        assert [stream.finish().text for stream in streams] == solo
        assert "context_tokens" in str(noise.finish().error)


def test_the_engine_lives_in_a_process_that_can_be_lost(project: Project, references: list[Text]) -> None:
    service = find_service(project.services, MODEL)
    model = out_folder(project, service) / MODEL_NAMES["gguf"]
    tokenizer = Tokenizer.load(model)
    arguments = EngineArguments(str(model), context_tokens=256, kv_blocks=8, chunk_tokens=64)
    engine = EngineProcess(arguments)
    try:
        assert (engine.limits.total_blocks, engine.limits.vocabulary) == (8, len(tokenizer.table))
        greedy = Sampling(max_tokens=LENGTH, temperature=0, ignore_eos=True)
        engine.add(0, tokenizer.tokens_of(references[0].prompt, most=64), greedy)
        engine.add(1, tokenizer.tokens_of("dropped", most=64), greedy)
        with pytest.raises(RuntimeError, match="temperature"):
            engine.add(2, [1], Sampling(temperature=float("nan")))
        tokens: list[int] = []
        for step in range(LENGTH):
            if step == 2:
                assert engine.used_blocks() == 2
                engine.cancel(1)
                engine.cancel(77)
            for produced in engine.step().produced:
                assert produced.sequence_id == 0 or step < 2
                tokens += produced.tokens if produced.sequence_id == 0 else ()
        assert b"".join(tokenizer.table[token] for token in tokens).decode() == references[0].text
        assert (engine.step().produced, engine.used_blocks()) == ((), 0)
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(ServerFailed, match=f"process {engine.pid} is lost"):
            engine.step()
        lost = engine.pid
        engine.restart()
        assert engine.pid != lost and engine.used_blocks() == 0
        engine.add(3, tokenizer.tokens_of(references[0].prompt, most=64), greedy)
        assert [produced.sequence_id for produced in engine.step().produced] == [3]
        os.kill(engine.pid, signal.SIGSTOP)
        engine._patience = Patience(least_s=0.1, token_s=0, times=0)
        with pytest.raises(ServerFailed, match=r"no answer within 0\.1 s"):
            engine.step()
    finally:
        engine.close()
    assert not psutil.pid_exists(engine.pid)
    with pytest.raises(ServerFailed, match="has been ended"):
        engine.restart()


def texts_of(scheduler: Scheduler, prompts: Sequence[tuple[int, ...]], most_tokens: int) -> list[list[int]]:
    """Greedy texts of prompts that come together."""
    texts: list[list[int]] = [[] for _ in prompts]
    sampling = Sampling(max_tokens=most_tokens, temperature=0, ignore_eos=True)
    for number, tokens in enumerate(prompts):
        assert scheduler.submit(Request(str(number), tokens, sampling)) == []
    while scheduler.has_work:
        for event in scheduler.step():
            if isinstance(event, Delta):
                texts[int(event.request_id)] += event.tokens
    return texts


def test_prompts_that_go_on_behind_one_partly_filled_block_keep_their_own_texts(project: Project) -> None:
    """Handed to the engine for the same step, such prompts come out wrong, with words of each other."""
    model = out_folder(project, find_service(project.services, MODEL)) / MODEL_NAMES["gguf"]
    chance = Random(1)

    def some(count: int) -> tuple[int, ...]:
        return tuple(chance.randrange(1_000, 40_000) for _ in range(count))

    rounds = [(beginning := some(40), [beginning + some(more) for more in (10, 12, 60, 60)]) for _ in range(3)]
    texts: dict[bool, list[list[int]]] = {}
    for cache in (False, True):
        arguments = EngineArguments(str(model), context_tokens=256, kv_blocks=64, chunk_tokens=256, prefix_cache=cache)
        with closing(EngineProcess(arguments)) as engine:
            scheduler = Scheduler(engine, Policy(max_sequences=8), lambda: time.monotonic_ns() // 1_000)
            texts[cache] = []
            for beginning, prompts in rounds:
                texts_of(scheduler, [beginning], 1)
                texts[cache] += texts_of(scheduler, prompts, LENGTH)
    assert texts[True] == texts[False]


def test_a_model_that_cannot_be_loaded_says_so(tmp_path: Path) -> None:
    broken = tmp_path / "model.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ModelFileError, match=r"model\.gguf cannot be loaded by openvino-genai"):
        EngineProcess(EngineArguments(str(broken), context_tokens=256, kv_blocks=8, chunk_tokens=64))


def test_the_self_check_compares_texts_with_those_of_the_export(project: Project, endpoint: Endpoint) -> None:
    service = find_service(project.services, MODEL)
    record = LanguageModelRecord.verified(out_folder(project, service))
    verdicts = text_self_check(endpoint, service, record)
    asked = len(record.answers)
    assert [(one.protocol, one.callers, one.right, one.asked, one.faults) for one in verdicts] == [
        (protocol, callers, asked, asked, []) for protocol in ("http", "grpc") for callers in (1, asked)
    ]
    first, second = record.answers[:2]
    wrong = record.model_copy(update={"answers": [first, second.model_copy(update={"text": "Lyon"})]})
    for verdict in text_self_check(endpoint, service, wrong):
        assert not verdict.ok and verdict.right == 1
        assert "expected 'Lyon'" in verdict.faults[0] and repr(second.prompt) in verdict.faults[0]
    with pytest.raises(CouldNotTell, match="recorded no texts"):
        text_self_check(endpoint, service, record.model_copy(update={"answers": []}))


def test_the_lines_to_copy_work(project: Project, endpoint: Endpoint) -> None:
    service = find_service(project.services, MODEL)

    def run(*command: str) -> str:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=WAIT_S).stdout

    program = run(sys.executable, "-c", text_python_lines(endpoint, service))
    whole, stream = (run("sh", "-c", line) for line in text_curl_lines(endpoint, service).split("\n"))
    events = [json.loads(line.removeprefix("data: ")) for line in stream.split("\n") if line]
    assert program == json.loads(whole)["text_output"] == "".join(event["text_output"] for event in events) != ""


EXPECTED = {
    "a": (501, "decoupled"),
    "b": (200, "text_output"),
    "c": (400, "max_tokens"),
    "d": (400, "stop"),
    "e": (200, "text_output"),
    "f": (400, "sampling_parameters"),
    "g": (400, "temperature"),
    "h": (400, "top_kk"),
    "i": (200, "data: {"),
    "j": (400, "text_input"),
    "k": (400, "max_tokens"),
}


def test_bodies_from_public_reports(endpoint: Endpoint, cases: Path) -> None:
    lines = (cases / "30_generate_bodies.jsonl").read_text(encoding="utf-8").splitlines()
    answers = {}
    for case in map(json.loads, lines):
        code, text = post(endpoint, case["path"].rpartition("/")[2], case["body"])
        answers[case["id"]] = (code, EXPECTED[case["id"]][1] if EXPECTED[case["id"]][1] in text else text)
    assert answers == EXPECTED


@pytest.mark.parametrize(
    ("prompt", "parameters", "said"),
    [
        (b"", {}, "no tokens"),
        (b"caf\xc3", {}, "text_input is not UTF-8 (byte 3)"),
        (b"x", {"n": 2}, "n is 2"),
        (b"x", {"max_tokens": 1_000_000}, "the model takes 4096 together"),
        (b"x", {"sampling_parameters": "{}"}, "unknown option 'sampling_parameters'"),
        (b"x", {"brim_class": "vip"}, "interactive, batch"),
    ],
)
def test_what_cannot_be_served_is_refused_with_one_answer(
    endpoint: Endpoint, prompt: bytes, parameters: dict[str, Any], said: str
) -> None:
    with Stream(endpoint, prompt, parameters) as stream:
        stream.finish()
        assert said in str(stream.error)
    with ask(endpoint, "still here", max_tokens=2) as stream:
        assert stream.finish().reasons[-1] == "length"
