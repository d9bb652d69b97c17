"""Tensors and plain values in one file of torch's format, a zip archive with checksums, which torch does not verify, and a digest
of all values. It is verified before anything in it is used."""

from __future__ import annotations

import errno
import io
import pickletools
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch
import xxhash

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.host import index_array

DIGEST = "digest"  # the key beside the values; older files have checksums only
_PIECE = 1 << 24  # bytes
# The functions that a pickle of plain values and tensors calls; the type of a tensor is one of torch's storages.
_CALLED = {"torch._utils _rebuild_tensor_v2", "collections OrderedDict", "torch Size"}


def write(path: Path, content: dict[str, Any]) -> str:
    """Write ``content`` (tensors and plain values) with its digest, and return that. Raises the OSError that torch would hide."""
    content = _on_host(content)
    digest = digest_of(content)
    with path.open("wb", buffering=1 << 20) as file:
        stream = _Stream(file)
        torch.save(content | {DIGEST: digest}, stream)  # type: ignore[arg-type]
        stream.finish()
    return digest


def _on_host(content: Any) -> Any:
    """The content with all tensors in host memory."""
    if isinstance(content, torch.Tensor):
        return content.cpu()
    if isinstance(content, dict):
        return type(content)((name, _on_host(value)) for name, value in content.items())
    return type(content)(map(_on_host, content)) if type(content) in (list, tuple) else content


class _Stream:
    """The file that torch writes to. It keeps errors for :meth:`finish`: torch would raise some that cannot be caught."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write bytes, as a file does."""
        if self._error is None:
            try:
                self._file.write(data)
            except OSError as error:
                self._error = error
        return len(data)

    def flush(self) -> None:
        """Do nothing: :meth:`finish` flushes."""

    def finish(self) -> None:
        """Flush, and raise the first error of the file system."""
        if self._error is not None:
            raise self._error
        self._file.flush()


def read(source: Path | io.BytesIO, path: Path) -> dict[str, Any]:
    """The verified content of ``source``, which messages call ``path``. Raises HpcgnnError if it is another kind of file, or
    damaged."""
    try:
        _check_members(source, path)
        if isinstance(source, io.BytesIO):
            source.seek(0)
        content = torch.load(source, weights_only=True, map_location="cpu")
    except HpcgnnError:
        raise
    except Exception as error:  # zipfile and torch raise many kinds of errors for a damaged file
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # EINVAL is the result of a wrong offset
            raise
        raise HpcgnnError(f"{path} is damaged or not a checkpoint of hpcgnn") from error
    if not isinstance(content, dict):
        raise HpcgnnError(f"{path} is damaged or not a checkpoint of hpcgnn")
    _check_tensors(content, path)
    digest = content.pop(DIGEST, None)
    if digest is None and content.get("version", 1) != 1:
        raise HpcgnnError(f"{path} is damaged: it has no digest")
    if digest is not None and digest != digest_of(content):
        raise HpcgnnError(f"{path} is damaged: its digest does not match its content")
    return content


def _check_members(source: Path | io.BytesIO, path: Path) -> None:
    """Compare sizes and checksums, and check the functions that the pickle calls."""
    with zipfile.ZipFile(source) as archive:
        members = archive.infolist()
        names = {member.filename for member in members}
        if len(names) < len(members) or any(
            each.compress_type or each.file_size != each.compress_size for each in members
        ):
            raise HpcgnnError(
                f"{path} is damaged or not a checkpoint of hpcgnn: torch stores the members of a file differently"
            )
        bad = archive.testzip()
        if bad is not None:
            raise HpcgnnError(f"{path} is damaged: the checksum of its member {bad} is wrong")
        (pickled,) = (name for name in names if name.endswith("/data.pkl"))
        for opcode, called, _ in pickletools.genops(archive.read(pickled)):
            module, _, name = str(called).partition(" ")
            is_known = called in _CALLED or (module == "torch" and name.endswith("Storage"))
            if opcode.name in ("GLOBAL", "STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4") and not is_known:
                raise HpcgnnError(
                    f"{path} is refused because it holds more than tensors and plain values ({called}), which could run code"
                )


def _check_tensors(content: dict[str, Any], path: Path) -> None:
    """Raise HpcgnnError for a tensor that is larger than its bytes in the file."""
    size = path.stat().st_size if path.exists() else None
    storages: dict[int, int] = {}
    for tensor in tensors_in(content):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        is_whole = tensor.layout == torch.strided and tensor.is_contiguous() and type(tensor) is torch.Tensor
        if not is_whole or tensor.numel() * tensor.element_size() > storage.nbytes():
            raise HpcgnnError(f"{path} is damaged: it has no values for a tensor of shape {tuple(tensor.shape)}")
    if size is not None and sum(storages.values()) > size:
        raise HpcgnnError(f"{path} is damaged: its tensors are larger than the file")


def tensors_in(content: Any) -> list[torch.Tensor]:
    """All tensors in dictionaries, lists and tuples."""
    if isinstance(content, torch.Tensor):
        return [content]
    values = content.values() if isinstance(content, dict) else content if isinstance(content, (list, tuple)) else ()
    return [tensor for value in values for tensor in tensors_in(value)]


def digest_of(content: Any) -> str:
    """The digest of all values in order, with their names, types and shapes: 32 hexadecimal digits of XXH3."""
    state = xxhash.xxh3_128()
    _add(state, content)
    return state.hexdigest()


def _add(state: Any, content: Any) -> None:
    if isinstance(content, torch.Tensor):
        state.update(f"{content.dtype}{tuple(content.shape)}".encode())
        if content.numel():  # else its stride may be 0, with which it has no bytes
            for piece in content.detach().reshape(-1).view(torch.uint8).split(_PIECE):
                state.update(index_array(piece))
    elif isinstance(content, dict):
        state.update(b"{")
        for name, value in content.items():
            state.update(repr(name).encode())
            _add(state, value)
        state.update(b"}")
    elif isinstance(content, (list, tuple)):
        state.update(b"[")
        for value in content:
            _add(state, value)
        state.update(b"]")
    else:
        state.update(f"{content!r};".encode())
