"""What a rule looks at: one configuration, the model folder around it, its neighbours in the repository."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from brim.config.textformat import MAX_BYTES, Parsed, parse
from brim.errors import InputError, ModelFileError
from brim.lint.onnx_file import Signature, read_signature

CONFIG_NAME = "config.pbtxt"
PROFILE_FOLDER = "configs"
RESERVED_FOLDERS = {"warmup", "initial_state", PROFILE_FOLDER}
"""Folders beside the versions that Triton passes over (core ``model_lifecycle.cc``, ``VersionsToLoad``)."""

PLATFORM_BACKENDS = {
    "onnxruntime_onnx": "onnxruntime",
    "tensorrt_plan": "tensorrt",
    "pytorch_libtorch": "pytorch",
    "libtorch": "pytorch",
    "torch_aoti": "pytorch",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
}
"""Platform to backend (core ``model_config_utils.cc``, ``AutoCompleteBackendFields``)."""

BACKEND_FILES = {
    "onnxruntime": "model.onnx",
    "tensorrt": "model.plan",
    "python": "model.py",
    "pytorch": "model.pt",
    "openvino": "model.xml",
    "vllm": "model.json",
}
"""Backend to the file that it looks for in a version folder (core ``constants.h``; vllm_backend ``model.json``)."""

ENSEMBLE = "ensemble"


class Workspace:
    """One run of the linter: the release it assumes, and every file read so far."""

    def __init__(self, release: str) -> None:
        """Assume Triton ``release`` (``24.10``)."""
        self.release = release
        self._parsed: dict[Path, Parsed] = {}
        self._signatures: dict[Path, Signature | str] = {}

    def parsed(self, path: Path) -> Parsed:
        """The configuration at ``path``, read once. Its findings carry the path as it was first given.

        Raises:
            InputError: the file cannot be opened.
        """
        key = path.absolute()
        if key not in self._parsed:
            if not has_file(path):
                raise InputError(f"{path} is no regular file", hint="name a text file that this user may read")
            try:
                with path.open("rb") as file:
                    data = file.read(MAX_BYTES + 1)
            except OSError as error:
                raise InputError(
                    f"{path} cannot be read: {error.strerror}", hint="name a text file that this user may read"
                ) from error
            self._parsed[key] = parse(data, str(path))
        return self._parsed[key]

    def signature(self, path: Path) -> Signature | str:
        """What the ONNX file at ``path`` declares, or why that cannot be said. Read once."""
        key = path.absolute()
        if key not in self._signatures:
            try:
                self._signatures[key] = read_signature(path)
            except ModelFileError as error:
                self._signatures[key] = error.message
        return self._signatures[key]


@dataclass(frozen=True)
class Model:
    """One configuration file and what surrounds it. ``folder`` is None for a file outside a model repository."""

    file: Path
    folder: Path | None
    parsed: Parsed
    workspace: Workspace = field(repr=False)

    @cached_property
    def config(self) -> ModelConfig:
        """The message; empty when the text could not be read."""
        return self.parsed.message if self.parsed.message is not None else ModelConfig()

    @property
    def is_profile(self) -> bool:
        """Whether the file is ``configs/NAME.pbtxt``, read only when ``--model-config-name=NAME`` picks it."""
        return self.folder is not None and self.file.name != CONFIG_NAME

    @property
    def name(self) -> str:
        """The configured name, else the folder's: what Triton fills in."""
        return self.config.name or (self.folder.name if self.folder else "")

    @cached_property
    def subfolders(self) -> list[str]:
        """Folders beside the configuration that Triton takes for versions, right or wrong."""
        if self.folder is None:
            return []
        with os.scandir(self.folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir()]
        return sorted(name for name in names if name not in RESERVED_FOLDERS and not name.startswith((".", "__")))

    @cached_property
    def versions(self) -> dict[int, Path]:
        """Version number to its folder, ascending."""
        found = {int(name): name for name in self.subfolders if is_version(name)}
        return {number: (self.folder or Path()) / found[number] for number in sorted(found)}

    @cached_property
    def loaded_versions(self) -> dict[int, Path]:
        """The versions that the policy picks; all that exist when it picks none of them."""
        policy = self.config.version_policy
        if policy.WhichOneof("policy_choice") == "specific":
            wanted = [number for number in policy.specific.versions if number in self.versions]
        elif policy.WhichOneof("policy_choice") == "all":
            wanted = list(self.versions)
        else:
            count = policy.latest.num_versions if policy.HasField("latest") else 1
            wanted = list(self.versions)[-count:] if count else []
        return {number: self.versions[number] for number in wanted} or self.versions

    @cached_property
    def backend(self) -> str:
        """The backend: configured, or found as Triton finds it; empty when nothing tells."""
        config = self.config
        if config.backend:
            return str(config.backend)
        if config.platform:
            return PLATFORM_BACKENDS.get(config.platform, ENSEMBLE if config.platform == ENSEMBLE else "")
        for backend, name in BACKEND_FILES.items():
            if config.default_model_filename == name:
                return backend
        if not config.default_model_filename:
            for backend, name in BACKEND_FILES.items():
                if any(exists(folder / name) for folder in self._model_folders) and backend != "vllm":
                    return backend
        return ""

    @property
    def _model_folders(self) -> list[Path]:
        if self.folder is not None:
            return list(self.versions.values())
        return [self.file.parent / "1", self.file.parent]

    @property
    def model_filename(self) -> str:
        """The file that the backend looks for in a version folder; empty when that is not known."""
        return self.config.default_model_filename or BACKEND_FILES.get(self.backend, "")

    @property
    def model_filename_path(self) -> str:
        """The field that ``model_filename`` follows from."""
        for name in ("default_model_filename", "backend", "platform"):
            if getattr(self.config, name):
                return name
        return "name"

    @cached_property
    def onnx_path(self) -> Path | None:
        """The ONNX file that the native ONNX Runtime backend would load, when it is there and not empty."""
        if self.backend != "onnxruntime":
            return None
        folders = list(self.loaded_versions.values())[-1:] if self.folder is not None else self._model_folders
        for folder in folders:
            path = folder / self.model_filename
            if has_file(path) and path.stat().st_size > 0:
                return path
        return None

    @cached_property
    def signature(self) -> Signature | str | None:
        """What the ONNX file declares, or why it cannot be read; None without a file."""
        return self.workspace.signature(self.onnx_path) if self.onnx_path else None

    def neighbour(self, name: str) -> Model | None:
        """The model called ``name`` in the same repository, under the same profile; None when it has no configuration."""
        folder = self.neighbour_folder(name)
        if folder is None:
            return None
        for path in (folder / PROFILE_FOLDER / self.file.name, folder / CONFIG_NAME):
            if path.is_file() and (path.name == CONFIG_NAME or self.is_profile):
                return Model(path, folder, self.workspace.parsed(path), self.workspace)
        return None

    def neighbour_folder(self, name: str) -> Path | None:
        """The folder of the model called ``name`` in the same repository."""
        if self.folder is None or not name or "/" in name or name in (".", ".."):
            return None
        folder = self.folder.absolute().parent / name
        return folder if exists(folder) and folder.is_dir() else None


def has_file(path: Path) -> bool:
    """Whether ``path`` is a file; False for a name that no file system takes."""
    try:
        return path.is_file()
    except OSError:
        return False


def exists(path: Path) -> bool:
    """Whether there is anything at ``path``; False for a name that no file system takes."""
    try:
        return path.exists()
    except OSError:
        return False


def is_version(name: str) -> bool:
    """Whether Triton loads a folder called ``name`` as a version: digits without a leading zero."""
    return name.isascii() and name.isdigit() and (len(name) == 1 or name[0] != "0")
