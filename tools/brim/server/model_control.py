"""Triton's model control and what it tells about one model. Every question is bounded; no answer is an answer, too."""

from __future__ import annotations

import re
import urllib.request
from contextlib import closing
from dataclasses import dataclass

from brim.server.canary import Tensors, ask
from brim.server.endpoint import NO_ANSWER, Endpoint
from brim.server.healing import Heard

ASK_TIMEOUT_S = 1.0
BUSY_STATUS = frozenset({"429", "503"})
NO_ENGINE = "engine_down: "
"""In what a language model tells whose engine is gone for good (``brim.engine.lifecycle``). The status does not tell it:
``/generate`` of 24.10 answers every error with 400."""
METRIC_LINE = re.compile(r'^nv_inference_(\w+)\{(?:[^}]*,)?model="([^"]+)"([^}]*)\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Activity:
    """One model's counters on the metrics page, summed over its versions."""

    waiting: int
    """Requests in its queue (``nv_inference_pending_request_count``); those of a running batch are not in it."""
    succeeded: int
    failed: int
    """Requests that the backend failed (``nv_inference_request_failure{reason="BACKEND"}``)."""


def activity_in(page: str, model: str) -> Activity:
    """A model's counters from the text of a metrics page; zeros where the page has none."""
    sums = {"pending_request_count": 0, "request_success": 0, "request_failure": 0}
    for name, named, labels, value in METRIC_LINE.findall(page):
        if named == model and name in sums and (name != "request_failure" or 'reason="BACKEND"' in labels):
            sums[name] += round(float(value))
    return Activity(sums["pending_request_count"], sums["request_success"], sums["request_failure"])


class ModelControl:
    """Loads, unloads and asks the models of one server."""

    def __init__(self, endpoint: Endpoint, canaries: dict[str, Tensors | None]) -> None:
        """``canaries``: model name -> the row to send; None sends zeros shaped by the model's configuration."""
        self.endpoint = endpoint
        self.canaries = canaries

    def unload(self, model: str, *, timeout_s: float = ASK_TIMEOUT_S) -> str | None:
        """Refuse new callers of a model from now on (measured: within 5 ms). None, or why it did not work."""
        with closing(self.endpoint.http_client(timeout_s=timeout_s)) as client:
            try:
                client.unload_model(model)
            except NO_ANSWER as error:
                return f"unload: {type(error).__name__}: {error}"
        return None

    def load(self, model: str, *, timeout_s: float) -> str | None:
        """Load a model; returns when it is loaded. None, or why it did not work.

        Over gRPC: a load over HTTP stalls the HTTP inferences of every other model until it ends (measured on 24.10).
        """
        with closing(self.endpoint.grpc_client()) as client:
            try:
                client.load_model(model, client_timeout=timeout_s)
            except NO_ANSWER as error:
                return f"load: {type(error).__name__}: {error}"
        return None

    def state(self, model: str) -> tuple[str, str] | None:
        """State and reason of a model in the repository index; the state is READY when any version is. None: no answer."""
        index = self._index()
        if index is None:
            return None
        found = [(one.get("state", ""), one.get("reason", "")) for one in index if one.get("name") == model]
        return next((one for one in found if one[0] == "READY"), found[0] if found else ("", ""))

    def is_loading(self) -> bool:
        """Whether any model is being loaded that was not loaded before; false when the server does not answer."""
        return any(one.get("state") == "LOADING" for one in self._index() or ())

    def _index(self) -> list[dict[str, str]] | None:
        with closing(self.endpoint.http_client(timeout_s=ASK_TIMEOUT_S)) as client:
            try:
                return list(client.get_model_repository_index())
            except NO_ANSWER:
                return None

    def activity(self, model: str) -> Activity | None:
        """The model's counters; None when the metrics page does not answer."""
        if self.endpoint.metrics is None:
            return None
        try:
            with urllib.request.urlopen(f"http://{self.endpoint.metrics}/metrics", timeout=ASK_TIMEOUT_S) as answer:
                page = answer.read().decode("utf-8", errors="replace")
        except NO_ANSWER:
            return None
        return activity_in(page, model) if "nv_inference_" in page else None

    def canary(self, model: str, *, timeout_s: float) -> tuple[Heard, str]:
        """Send one canary and tell what came, with the server's words when it was no answer."""
        refusal = ask(self.endpoint, model, self.canaries.get(model), timeout_s=timeout_s)
        if refusal is None:
            return Heard.ANSWER, ""
        if not refusal.status:
            return Heard.SILENCE, str(refusal)
        refused = refusal.status in BUSY_STATUS or refusal.status.startswith("4")
        refused = refused and NO_ENGINE not in refusal.text
        return (Heard.REFUSAL if refused else Heard.FAILURE), str(refusal)
