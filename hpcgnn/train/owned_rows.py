"""The rows of nodes that a model learns (``--embed``) in the files beside a checkpoint.

Every rank holds the rows of its own nodes, so rank 0 cannot write them into the checkpoint. All ranks write one HDF5 file, in the
order of original ids, in which any number of ranks finds its rows again. ``last.pt`` belongs to ``last-EPOCH.h5``, with the rows
and the moments of Adam, and ``best.pt`` to ``best-EPOCH.h5``; EPOCH is the ``next_epoch`` of the checkpoint. A file has a digest
of each array, a sum over rows that does not depend on the number of ranks, and the checkpoint has the digests of its files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.host import host_values
from hpcgnn.data import h5, shared_file
from hpcgnn.data.random_kernels import column_keys, sum_of_rows
from hpcgnn.data.schema import Rule
from hpcgnn.data.stored import look_in
from hpcgnn.nn import GraphModel
from hpcgnn.train.gather import dealt, id_bounds, rows_of
from hpcgnn.train.optimiser import Adam
from hpcgnn.train.tasks import Trainable
from hpcgnn.world import World, raise_on_all_ranks

ROWS_KIND, ROWS_VERSION = "hpcgnn-node-rows", 2  # 1: without digests
_ROWS, _MOMENTS = "rows", ("exp_avg", "exp_avg_sq")
_ROWS_AT_A_TIME = 1 << 14


def shared_state(model: Trainable) -> dict[str, torch.Tensor]:
    """The model's ``state_dict`` without the parameters of which each rank holds rows of its own."""
    owned = model.owned_parameters()
    return {name: value for name, value in model.state_dict().items() if name not in owned}


class OwnedRows:
    """The learned rows of a model's nodes. Every method is collective, and does nothing for a model without such rows.

    best: this rank's rows at the time of the best evaluation, as the trainer keeps the other weights; None before it.
    digests: of the files "last" and "best", for the checkpoint.
    """

    def __init__(self, world: World, model: Trainable) -> None:
        self._world, self._layer = world, model.input_layer if isinstance(model, GraphModel) else None
        self._rows = None if self._layer is None else self._layer.embedding
        self.best: torch.Tensor | None = None
        self._best_written = -1
        self.digests: dict[str, str] = {}

    def keep_best(self) -> None:
        """Keep the present rows as those of the best evaluation."""
        self.best = None if self._rows is None else self._rows.detach().clone()

    def save(self, folder: Path, epoch: int, best_epoch: int, optimiser: Adam) -> None:
        """Write the files for ``last.pt`` with ``epoch``, and for ``best.pt`` with ``best_epoch`` if it is new. The files of the
        checkpoint before stay until :meth:`clean`, because ``last.pt`` refers to them until it is replaced."""
        if self._rows is None:
            return
        moments = optimiser.moments(self._rows) or dict.fromkeys(_MOMENTS, torch.zeros_like(self._rows))
        step = float(moments.get("step", 0.0))
        arrays = {_ROWS: self._rows.detach(), **{name: moments[name] for name in _MOMENTS}}
        self.digests["last"] = self._write(folder / f"last-{epoch}.h5", arrays, step)
        if self.best is not None and best_epoch != self._best_written:
            self.digests["best"] = self._write(folder / f"best-{best_epoch}.h5", {_ROWS: self.best}, 0.0)
            self._best_written = best_epoch

    def clean(self, folder: Path, epoch: int) -> None:
        """Remove the files that no checkpoint refers to, now that ``last.pt`` has ``epoch``. Only rank 0 calls this."""
        if self._rows is not None:
            for path in {*folder.glob("last-*.h5")} - {folder / f"last-{epoch}.h5"}:
                path.unlink(missing_ok=True)
            for path in {*folder.glob("best-*.h5")} - {folder / f"best-{self._best_written}.h5"}:
                path.unlink(missing_ok=True)

    def load(self, folder: Path, epoch: int, best_epoch: int, optimiser: Adam, digests: Mapping[str, str]) -> None:
        """Continue from the files of a checkpoint. digests: those that it has, of none if it is older."""
        if self._rows is None:
            return
        self.digests = dict(digests)
        found, step = self._read(folder / f"last-{epoch}.h5", (_ROWS, *_MOMENTS), digests.get("last"))
        with torch.no_grad():
            self._rows.copy_(found.pop(_ROWS))
        if step:
            optimiser.set_moments(self._rows, {"step": step} | found)
        if best_epoch > 0:
            path = folder / f"best-{best_epoch}.h5"
            self.best, self._best_written = self._read(path, (_ROWS,), digests.get("best"))[0][_ROWS], best_epoch

    def load_rows(self, content: Mapping[str, Any]) -> None:
        """Take the rows of a checkpoint's ``content`` alone, for predictions."""
        if self._rows is None:
            return
        path = Path(content["path"])
        digest = content.get("node_rows", {}).get("last" if "optimiser" in content else "best")
        found, _ = self._read(path.parent / f"{path.stem}-{content['next_epoch']}.h5", (_ROWS,), digest)
        with torch.no_grad():
            self._rows.copy_(found[_ROWS])

    def _write(self, path: Path, arrays: Mapping[str, torch.Tensor], step: float) -> str:
        """Write this rank's rows of all arrays, and return the digests of the file."""
        layer, world = self._layer, self._world
        assert layer is not None
        joint = host_values(torch.cat([*arrays.values()], dim=1))  # ids travel once for all arrays
        bounds, slab = dealt(world, layer.embedded, layer.num_embedded, joint)
        slabs = dict(zip(arrays, np.split(slab, len(arrays), axis=1), strict=True))
        schema = {name: ((layer.num_embedded, each.shape[1]), each.dtype) for name, each in slabs.items()}
        digests = _in_text(self._digests(int(bounds[world.rank]), slabs), step)
        attributes = h5.new_header(ROWS_KIND, ROWS_VERSION) | {"step": step, "digests": digests}
        with (
            shared_file.replacing(world, path, force=True) as temporary,
            shared_file.writing(world, temporary, schema, attributes) as writer,
            raise_on_all_ranks(world, f"write {path}"),
        ):
            for name, each in slabs.items():
                writer.write(name, int(bounds[world.rank]), np.ascontiguousarray(each))
        return digests

    def _digests(self, first: int, slabs: Mapping[str, np.ndarray]) -> dict[str, int]:
        """The digests of arrays of which this rank has the rows from ``first`` on. Collective."""
        mine = np.array([_digest(first, each) for each in slabs.values()], np.uint64)
        return dict(zip(slabs, self._world.allreduce(mine.view(np.int64)).view(np.uint64).tolist(), strict=True))

    def _read(
        self, path: Path, names: tuple[str, ...], wanted_digests: str | None
    ) -> tuple[dict[str, torch.Tensor], float]:
        """This rank's rows of some arrays, and the number of steps of the optimiser. wanted_digests: of the checkpoint; None if
        it is older."""
        layer, world = self._layer, self._world
        assert layer is not None
        assert self._rows is not None
        bounds = id_bounds(world, layer.num_embedded)
        span = int(bounds[world.rank]), int(bounds[world.rank + 1])
        wanted = (layer.num_embedded, self._rows.shape[1])
        slabs: dict[str, np.ndarray] = {}
        told = ""
        with raise_on_all_ranks(world, f"read {path}"):
            if not path.is_file():
                raise HpcgnnError(
                    f"there is no {path}, which has the learned rows of nodes for its checkpoint: keep both in one folder"
                )
            with _opened(path) as file:
                step, told = _step_of(file, path), _digests_in(file)
                if wanted_digests is not None:
                    check_belongs(path, told, wanted_digests)
                slabs = {name: _slab(file, path, name, span, wanted, self._rows.detach()) for name in names}
        _check_digests(path, told, self._digests(span[0], slabs), step)
        joint = torch.from_numpy(rows_of(world, bounds, np.concatenate([*slabs.values()], axis=1), layer.embedded))
        found = (each.contiguous().to(self._rows.device) for each in joint.chunk(len(names), 1))
        return dict(zip(names, found, strict=True)), step


def check_belongs(path: Path, told: str, wanted: str) -> None:
    """Raise HpcgnnError unless the digests ``told`` by a file of rows are those that its checkpoint has."""
    if told != wanted:
        raise HpcgnnError(
            f"{path} does not belong to its checkpoint, because it has rows of another run or epoch, or is damaged: bring back "
            "the file that was written with it, or use another checkpoint"
        )


def _opened(path: Path) -> Any:
    return h5.open_checked(path, ROWS_KIND, (1, ROWS_VERSION))


def _step_of(file: Any, path: Path) -> float:
    step = h5.attribute(file, "step", float)
    if not (step >= 0 and step.is_integer()):
        raise h5.damaged(path, f"attribute step is {step}, not a number of steps")
    return float(step)


def _digests_in(file: Any) -> str:
    """The digests in the attributes of a file; empty in one of version 1."""
    return "" if h5.attribute(file, "version", int) == 1 else str(h5.attribute(file, "digests", str))


def _digest(first: int, rows: np.ndarray) -> int:
    bits = np.ascontiguousarray(rows).view(np.uint32)
    return int(sum_of_rows(np.arange(first, first + len(rows)), bits, column_keys(bits.shape[1])))


def _in_text(digests: Mapping[str, int], step: float) -> str:
    return " ".join([*(f"{name}={value:016x}" for name, value in digests.items()), f"step={step:.0f}"])


def _check_digests(path: Path, told: str, found: Mapping[str, int], step: float) -> None:
    """Raise HpcgnnError, the same on all ranks, unless arrays have the digests that their file tells, if it does."""
    differing = set(_in_text(found, step).split()) - set(told.split())
    if told and differing:
        names = ", ".join(sorted(each.partition("=")[0] for each in differing))
        raise HpcgnnError(f"{path} is damaged: the digest of {names} is wrong; use another checkpoint", agreed=True)


def look_at_rows(path: Path) -> dict[str, Any]:
    """The verified content of a file of rows. Not collective. Raises HpcgnnError if it is incomplete, damaged, or has values that
    are not finite."""
    with _opened(path) as file:
        step, told = _step_of(file, path), _digests_in(file)
        arrays = {name: file[name] for name in (_ROWS, *_MOMENTS) if h5.child(file, name) is not None}
        if _ROWS not in arrays:
            raise h5.damaged(path, f"{_ROWS} is missing")
        found = {}
        for name, stored in arrays.items():
            rule, digest = Rule(stored.shape, stored.dtype), 0
            for first in range(0, stored.shape[0], _ROWS_AT_A_TIME):
                last = min(first + _ROWS_AT_A_TIME, stored.shape[0])
                out = np.empty((last - first, *stored.shape[1:]), stored.dtype)
                look_in(file, name, rule, (first, last), out)
                digest += _digest(first, out)
            found[name] = digest % 2**64
        _check_digests(path, told, found, step)
        return {
            "kind": ROWS_KIND,
            "version": h5.attribute(file, "version", int),
            "uuid": h5.attribute(file, "uuid", str),
            "data": {},
            "arrays": len(arrays),
            "bytes": sum(stored.nbytes for stored in arrays.values()),
            "shape": list(arrays[_ROWS].shape),
            "checksums": bool(told),
            "digests": told,
        }


def _slab(
    file: Any, path: Path, name: str, span: tuple[int, int], shape: tuple[int, int], like: torch.Tensor
) -> np.ndarray:
    """Rows ``[first, last)`` of an array, whose values are checked. Raises HpcgnnError for an array of another shape or type."""
    dtype = host_values(like).dtype
    stored = h5.child(file, name)
    if stored is None or stored.shape != shape or stored.dtype != dtype:
        has = "is missing" if stored is None else f"is {stored.dtype} of shape {stored.shape}"
        raise HpcgnnError(f"{path}: {name} {has}, but this graph and model need {dtype} of shape {shape}")
    out = np.empty((span[1] - span[0], shape[1]), dtype)
    look_in(file, name, Rule(shape, dtype), span, out)
    return out
