"""The rows of nodes that a model learns (``--embed``) in the files beside a checkpoint.

Every rank holds the rows of its own nodes, so rank 0 cannot write them into the checkpoint. All ranks write one HDF5 file, in the
order of original ids, in which any number of ranks finds its rows again. ``last.pt`` belongs to ``last-EPOCH.h5``, with the rows
and the moments of Adam, and ``best.pt`` to ``best-EPOCH.h5``; EPOCH is the ``next_epoch`` of the checkpoint, which has digests
of its files: sums over rows, which do not depend on the number of ranks.
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
from hpcgnn.data.schema import Rule
from hpcgnn.data.stored import look_in
from hpcgnn.nn import GraphModel
from hpcgnn.train.gather import dealt, id_bounds
from hpcgnn.train.optimiser import Adam
from hpcgnn.train.tasks import Trainable
from hpcgnn.world import World, raise_on_all_ranks

ROWS_KIND, ROWS_VERSION = "hpcgnn-node-rows", 1
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
        kept = (f"last-{epoch}.h5", f"best-{self._best_written}.h5")
        for path in () if self._rows is None else folder.glob("[lb]*st-*.h5"):
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def load(self, folder: Path, epoch: int, best_epoch: int, optimiser: Adam, digests: Mapping[str, str]) -> None:
        """Continue from the files of a checkpoint. digests: those that it has, of none if it is older."""
        if self._rows is None:
            return
        self.digests = {kind: digests[kind] for kind in ("last", "best") if kind in digests}  # in the order of save
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
        kind, names = ("last", (_ROWS, *_MOMENTS)) if "optimiser" in content else ("best", (_ROWS,))
        digest = content.get("node_rows", {}).get(kind)
        found, _ = self._read(path.parent / f"{path.stem}-{content['next_epoch']}.h5", names, digest)
        with torch.no_grad():
            self._rows.copy_(found[_ROWS])

    def _write(self, path: Path, arrays: Mapping[str, torch.Tensor], step: float) -> str:
        """Write this rank's rows of all arrays, and return the digest of the file."""
        layer, world = self._layer, self._world
        assert layer is not None
        joint = host_values(torch.cat([*arrays.values()], dim=1))  # ids travel once for all arrays
        bounds, slab = dealt(world, layer.embedded, layer.num_embedded, joint)
        slabs = dict(zip(arrays, np.split(slab, len(arrays), axis=1), strict=True))
        schema = {name: ((layer.num_embedded, each.shape[1]), each.dtype) for name, each in slabs.items()}
        attributes = h5.new_header(ROWS_KIND, ROWS_VERSION) | {"step": step}
        with (
            shared_file.replacing(world, path, force=True) as temporary,
            shared_file.writing(world, temporary, schema, attributes) as writer,
            raise_on_all_ranks(world, f"write {path}"),
        ):
            for name, each in slabs.items():
                writer.write(name, int(bounds[world.rank]), np.ascontiguousarray(each))
        return self._digest(int(bounds[world.rank]), slab, step)

    def _digest(self, first: int, rows: np.ndarray, step: float) -> str:
        """The digest of a file of which this rank has the ``rows`` of all arrays side by side, from ``first`` on. Collective."""
        mine = np.array([_sum(first, rows)], np.uint64).view(np.int64)
        return _in_text(self._world.allreduce(mine).view(np.uint64)[0], step)

    def _read(self, path: Path, names: tuple[str, ...], digest: str | None) -> tuple[dict[str, torch.Tensor], float]:
        """This rank's rows of all arrays, and the number of steps of the optimiser. digest: that of the checkpoint; None if it is
        older."""
        layer, world = self._layer, self._world
        assert layer is not None
        assert self._rows is not None
        bounds = id_bounds(world, layer.num_embedded)
        span = int(bounds[world.rank]), int(bounds[world.rank + 1])
        wanted = (layer.num_embedded, self._rows.shape[1])
        slabs: list[np.ndarray] = []
        with raise_on_all_ranks(world, f"read {path}"):
            if not path.is_file():
                raise HpcgnnError(
                    f"there is no {path}, which has the learned rows of nodes for its checkpoint: keep both in one folder"
                )
            with h5.open_checked(path, ROWS_KIND, (ROWS_VERSION,)) as file:
                step = h5.attribute(file, "step", float)
                slabs = [_slab(file, path, name, span, wanted, self._rows.detach()) for name in names]
        joint = np.concatenate(slabs, axis=1)
        found = self._digest(span[0], joint, step)
        with raise_on_all_ranks(world, f"read {path}"):
            check_digest(path, found, digest)
        rows = torch.from_numpy(world.rows_of(bounds, joint, layer.embedded))
        arrays = (each.contiguous().to(self._rows.device) for each in rows.chunk(len(names), 1))
        return dict(zip(names, arrays, strict=True)), step


def _sum(first: int, rows: np.ndarray) -> int:
    from hpcgnn.data.random_kernels import column_keys, sum_of_rows  # numba takes memory of each rank

    bits = np.ascontiguousarray(rows).view(np.uint32)
    return int(sum_of_rows(np.arange(first, first + len(rows)), bits, column_keys(bits.shape[1])))


def _in_text(total: int, step: float) -> str:
    return f"{int(total) % 2**64:016x} after {step} steps"


def check_digest(path: Path, found: str, wanted: str | None) -> None:
    """Raise HpcgnnError unless a checkpoint, if it tells one, has the digest that was ``found`` of the file."""
    if wanted not in (None, found):
        raise HpcgnnError(
            f"{path} does not belong to its checkpoint, because it has rows of another run or epoch, or is damaged: bring back "
            "the file that was written with it, or use another checkpoint"
        )


def look_at_rows(path: Path) -> dict[str, Any]:
    """The verified content of a file of rows. Not collective. Raises HpcgnnError if it is incomplete, or has values that are not
    finite."""
    with h5.open_checked(path, ROWS_KIND, (ROWS_VERSION,)) as file:
        arrays = {name: file[name] for name in (_ROWS, *_MOMENTS) if h5.child(file, name) is not None}
        if _ROWS not in arrays:
            raise h5.damaged(path, f"{_ROWS} is missing")
        total = 0
        for first in range(0, arrays[_ROWS].shape[0], _ROWS_AT_A_TIME):
            blocks = []
            for name, stored in arrays.items():
                blocks.append(np.empty_like(stored[first : first + _ROWS_AT_A_TIME]))
                look_in(file, name, Rule(stored.shape, stored.dtype), (first, first + len(blocks[-1])), blocks[-1])
            total += _sum(first, np.concatenate(blocks, axis=1))
        return {
            "kind": ROWS_KIND,
            "version": ROWS_VERSION,
            "uuid": h5.attribute(file, "uuid", str),
            "data": {},
            "arrays": len(arrays),
            "bytes": sum(stored.nbytes for stored in arrays.values()),
            "shape": list(arrays[_ROWS].shape),
            "checksums": False,
            "digest": _in_text(total, h5.attribute(file, "step", float)),
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
