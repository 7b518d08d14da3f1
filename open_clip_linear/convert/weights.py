"""Weights from a file and back to one, for `python -m open_clip_linear convert`.

Checkpoints are pickles, and unpickling may run code. Only tensors and plain containers are read here (`weights_only`);
where a file holds more, the refusal says what, and how to bring the weights out of a file that is trusted.
"""

import os
import re
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint

SUFFIXES = (".pt", ".pth", ".bin", ".safetensors")


class WeightsError(ValueError):
    """A file that holds no weights that can be read, or a place they cannot be written to."""


def check_input(path: Path) -> None:
    """Raise WeightsError unless there is a file of a sort that is read."""
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "does not exist"
        raise WeightsError(f"{path} {found}; give a checkpoint file ({', '.join(SUFFIXES)})")
    if path.suffix in (".npz", ".npy"):
        raise WeightsError(
            f"{path} holds NumPy arrays (big_vision weights); load it into its stock model with OpenCLIP, save that "
            "model's state_dict() with torch.save, and give that file"
        )


def check_output(path: Path, source: Path) -> None:
    """Raise WeightsError where weights read from `source` could not be written to `path`, before any work is done."""
    if path.suffix not in SUFFIXES:
        raise WeightsError(f"the output {path} must end in one of {', '.join(SUFFIXES)}, which says how it is written")
    if path.is_dir():
        raise WeightsError(f"the output {path} is a folder; give a file's name")
    if path.exists() and source.exists() and path.samefile(source):
        raise WeightsError(f"the output {path} is the file the weights come from, which is never overwritten")
    if not path.parent.is_dir():
        raise WeightsError(f"the output's folder {path.parent} does not exist; create it first")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise WeightsError(f"the output's folder {path.parent} cannot be written to: {error.strerror}") from error


def load_weights(path: Path) -> dict[str, Any]:
    """The state dict in a file: a plain one, one inside a training checkpoint (`state_dict`), or safetensors.

    Raises:
        WeightsError: no such file, a file that is damaged or no checkpoint, or one that holds more than weights.
    """
    check_input(path)
    try:
        checkpoint = load_file(path) if path.suffix == ".safetensors" else _load_pickle(path)
    except SafetensorError as error:
        raise WeightsError(f"{path} is no whole safetensors file ({error}); {beginning(path)}") from error
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror or error}") from error
    found = checkpoint.get("state_dict", checkpoint) if isinstance(checkpoint, Mapping) else checkpoint
    if not isinstance(found, Mapping) or not any(isinstance(value, Tensor) for value in found.values()):
        what = f"a {type(found).__name__}"
        if isinstance(found, Mapping):
            what += f" with the entries {', '.join(map(str, list(found)[:6]))}" if found else " without entries"
        raise WeightsError(
            f"{path} holds no state dict but {what}; give a file of the model's state_dict() or an OpenCLIP training "
            "checkpoint, which has it under 'state_dict'"
        )
    return dict(found)


def beginning(path: Path) -> str:
    """The file's size and first bytes, which tell a web page or a Git LFS pointer from a download that broke off."""
    with open(path, "rb") as file:
        return f"it has {path.stat().st_size:,} bytes and begins with {file.read(24)!r}; download or save it again"


def _load_pickle(path: Path) -> Any:
    """What torch.load gives with `weights_only`."""
    if path.stat().st_size == 0:
        raise WeightsError(f"{path} is empty; download or save it again")
    if _is_torchscript(path):
        raise WeightsError(
            f"{path} is a TorchScript archive, a program and not only weights (as OpenAI's own CLIP files are), and "
            f"loading it could run what is in it. Where you trust the file, save its weights alone:\n  {resave(path)}\n"
            'and convert those; OpenAI\'s models compute with QuickGELU, so the model config needs "quick_gelu": true'
        )
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch and pickle raise every kind for files that are damaged or hold something else
        if refused := _refused_objects(path, str(error)):
            raise WeightsError(
                f"{path} holds Python objects beside its weights ({', '.join(refused)}), and only weights are read "
                "here, because loading other objects can run whatever the file's author put there. Where you trust the "
                f"file, save its weights alone, in an environment that has these packages:\n  {resave(path)}\n"
                "and convert those"
            ) from error
        with open(path, "rb") as file:
            begun = file.read(2) == b"PK"
        if begun or isinstance(error, EOFError) or "unexpected EOF" in str(error):
            raise WeightsError(f"{path} is damaged or its end is missing; {beginning(path)}") from error
        raise WeightsError(f"{path} is no PyTorch checkpoint; {beginning(path)}") from error


def _is_torchscript(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.count("/") == 1 and name.endswith("/constants.pkl") for name in archive.namelist())
    except zipfile.BadZipFile:
        return False


def _refused_objects(path: Path, message: str) -> list[str]:
    """The names of the classes and functions `weights_only` did not allow: all, or in an old file the first."""
    try:
        return sorted(get_unsafe_globals_in_checkpoint(path))
    except Exception:  # it reads today's file format only, and says so by several kinds of errors
        return re.findall(r"GLOBAL (\S+) was not an allowed", message)


def resave(path: Path) -> str:
    """A command that brings the weights out of a file which is trusted."""
    new = str(path.with_name(f"{path.stem}-weights.pt"))
    return (
        f"python -c \"import torch; c = torch.load({str(path)!r}, map_location='cpu', weights_only=False); "
        f"torch.save(c.state_dict() if hasattr(c, 'state_dict') else c.get('state_dict', c), {new!r})\""
    )


def _alone(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, each alone in its storage: .pt files hold all of a storage, and safetensors refuses shared ones."""
    alone: dict[str, Tensor] = {}
    taken: set[int] = set()
    for key, value in state_dict.items():
        tensor = value.detach().cpu().contiguous()
        storage = tensor.untyped_storage()
        if storage.nbytes() != tensor.nbytes or storage.data_ptr() in taken:
            tensor = tensor.clone()
        taken.add(tensor.untyped_storage().data_ptr())
        alone[key] = tensor
    return alone


def save_weights(path: Path, state_dict: Mapping[str, Tensor]) -> None:
    """Write a plain state dict; the file is whole or, after any failure, the one that was there before.

    Raises:
        WeightsError: it could not be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    tensors = _alone(state_dict)
    try:
        with open(temporary, "wb") as file:
            if path.suffix == ".safetensors":
                file.write(save(tensors, metadata={"format": "pt"}))
            else:
                torch.save(tensors, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise WeightsError(f"{path} could not be written: {getattr(error, 'strerror', None) or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
