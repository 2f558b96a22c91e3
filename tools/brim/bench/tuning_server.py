"""One real server whose one model is loaded anew for every setting: a start and a stop would take longer than a climb."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from brim.bench.tuning_case import MODEL, ROWS, Case
from brim.config.textformat import write
from brim.errors import ServerFailed
from brim.measure.known_time import write_known_time
from brim.measure.plan import Protocol
from brim.measure.sweep import read_config
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint
from brim.server.model_control import ModelControl
from brim.tune.overlay import CONFIG, write_overlay
from brim.tune.server_bench import ServerBench
from brim.tune.setting import DEFAULT

LOAD_TIMEOUT_S = 60.0
SERVED = "served"
LOADED = "loaded"
"""Parameter of the model that counts its loadings; the model does not read it."""


class OneServer:
    """A server that starts when it is first asked for, and stops with the block."""

    def __init__(self, case: Case, *, cache: Path, log_file: Path) -> None:
        """Nothing is started yet.

        Args:
            case: whose model is served.
            cache: of the embedded server.
            log_file: of the server.
        """
        self.case, self.cache, self.log_file = case, cache, log_file
        self._stack = ExitStack()
        self._loads = 0

    def __enter__(self) -> OneServer:
        """Nothing happens before the server is asked for."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it, and remove its files."""
        self._stack.close()

    @cached_property
    def _place(self) -> Path:
        place = Path(self._stack.enter_context(TemporaryDirectory(prefix="brim-tuning-")))
        write_known_time(place / "model", MODEL, self.case.truth)
        (place / "scratch").mkdir()
        return place

    @cached_property
    def endpoint(self) -> Endpoint:
        """The server's; at first its model has the default setting."""
        repository = write_overlay(self._place / SERVED, self._place / "model" / MODEL, DEFAULT)
        server = EmbeddedServer(repository, [MODEL], cache=self.cache, log_file=self.log_file)
        return self._stack.enter_context(server).endpoint

    def bench(self) -> ServerBench:
        """The tuner's own bench in front of the server."""
        return ServerBench(
            self._place / "model" / MODEL,
            self._loaded,
            ROWS,
            self.case.demand,
            scratch=self._place / "scratch",
            protocol=Protocol.HTTP,
        )

    @contextmanager
    def _loaded(self, repository: Path) -> Iterator[Endpoint]:
        """The server with the model as it is configured in this repository.

        The model before it ends beside it: it has no request left, so it does not ask for the lock that both share. To wait
        for its end would take a second for each of its instances (measured on 24.10).

        Raises:
            ServerFailed: the model could not be loaded.
        """
        endpoint = self.endpoint
        self._loads += 1
        config = read_config(repository / MODEL / CONFIG)
        # Where nothing but the instances differs, Triton changes the model in place; with this it is loaded anew each time.
        config.parameters[LOADED].string_value = str(self._loads)
        (self._place / SERVED / MODEL / CONFIG).write_text(write(config), encoding="utf-8")
        refused = ModelControl(endpoint, {}).load(MODEL, timeout_s=LOAD_TIMEOUT_S)
        if refused is not None:
            raise ServerFailed(f"{MODEL} was not loaded: {refused}", hint=f"see {self.log_file}")
        yield endpoint
