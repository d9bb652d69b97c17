"""``RUN/tensorboard``: the scalars of each epoch for TensorBoard, beside ``metrics.jsonl``. Rank 0 alone writes it."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.train.scalars import scalars

FOLDER = "tensorboard"
_FLUSH_SECONDS = 10


def writers() -> ModuleType:
    """``torch.utils.tensorboard``; imported where it is asked for only, as it takes long.

    Raises:
        HpcgnnError: where the package ``tensorboard`` is missing.
    """
    try:
        return importlib.import_module("torch.utils.tensorboard")
    except ImportError as error:
        raise HpcgnnError(
            f"--tensorboard needs the package tensorboard, which cannot be imported ({error}): "
            "pip install 'hpcgnn[tensorboard]'"
        ) from error


class TensorBoard:
    """Adds epochs to the folder ``tensorboard`` of a run.

    next_epoch: the first one to come. What a stopped run has written of it and of later ones is not shown any more.

    Raises:
        HpcgnnError: here and in each call, where nothing can be written.
    """

    def __init__(self, run: Path, next_epoch: int) -> None:
        self._folder = run / FOLDER
        try:
            self._writer = writers().SummaryWriter(
                str(self._folder), purge_step=next_epoch or None, flush_secs=_FLUSH_SECONDS
            )
        except OSError as error:
            raise self._cannot(error) from error

    def add(self, record: dict[str, Any]) -> None:
        """The scalars of a line of ``metrics.jsonl``."""
        try:
            for name, value in scalars(record).items():
                self._writer.add_scalar(name, value, record["epoch"])
        except OSError as error:
            raise self._cannot(error) from error

    def close(self) -> None:
        """Write what is left."""
        try:
            self._writer.close()
        except OSError as error:
            raise self._cannot(error) from error

    def _cannot(self, error: OSError) -> HpcgnnError:
        return HpcgnnError(f"cannot write {self._folder}: {error.strerror or error}")
