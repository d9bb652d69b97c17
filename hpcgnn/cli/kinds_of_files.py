"""The kind of a file that a user has named, and its reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.cli import console
from hpcgnn.data import h5
from hpcgnn.data.graph_file import GRAPH_KIND, PARTS_KIND, SlabReader, reader_of
from hpcgnn.data.h5 import HDF5

_ZIP = b"PK\x03\x04"  # the first bytes of files of torch

Facts = dict[str, Any]


def facts_of(
    path: Path,
    of_checkpoint: Callable[[Path], Facts],
    count_steps: Callable[[SlabReader], int],
    of_graph: Callable[[SlabReader, Callable[[int], object]], Facts],
    *,
    title: str,
    quiet: bool,
) -> Facts:
    """The result of the reader for this kind of file.

    ``of_checkpoint`` reads checkpoints and the messages that ranks keep beside them. ``of_graph`` reads graphs and parts, with a
    progress bar of ``count_steps`` steps and this title.

    Raises:
        HpcgnnError: if the file is of another kind, or damaged; the sentence names the file.
    """
    begins = _first_bytes(path)
    if begins.startswith(_ZIP):
        return of_checkpoint(path)
    if not begins.startswith(HDF5):
        raise HpcgnnError(
            f"{path} is not a file of hpcgnn, or its first bytes are damaged: it is neither an HDF5 file nor a checkpoint"
        )
    kind = h5.kind_of(path)
    if kind not in (GRAPH_KIND, PARTS_KIND):
        from hpcgnn.train import predict  # here, as it imports torch

        if kind == predict.PREDICTIONS_KIND:
            return predict.look_at_predictions(path)
    with reader_of(path)(path) as reader, console.progress(title, count_steps(reader), quiet=quiet) as advance:
        return of_graph(reader, advance)


def check_run(folder: Path) -> None:
    """Raise HpcgnnError if the folder is not a run folder."""
    from hpcgnn.train.run_files import is_run

    if not is_run(folder):
        raise HpcgnnError(
            f"{folder} is a folder, but not a run folder: give a file, or a folder that `hpcgnn train --out` made"
        )


def _first_bytes(path: Path) -> bytes:
    if not path.is_file():
        raise HpcgnnError(f"{path} does not exist or is not a file: give an existing file or run folder")
    try:
        with path.open("rb") as stream:
            return stream.read(len(HDF5))
    except OSError as error:
        raise HpcgnnError(f"cannot read {path}: {error.strerror or error}") from error
