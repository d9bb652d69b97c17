"""The state that each rank keeps for itself between epochs (stale rows, differences, ranges of policies), and its file in a
checkpoint."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn.base import whole_file
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.exchange.mailbox import RowCounts, check_kept, shape_of
from hpcgnn.policy.policies import Policies
from hpcgnn.train import archive, checkpoint
from hpcgnn.train.owned_rows import check_digest
from hpcgnn.train.tasks import Trainable
from hpcgnn.world import World, raise_on_all_ranks, same_everywhere

_LOG = logging.getLogger("hpcgnn")
_FORMAT = 2
_NAME = re.compile(r"(\d{1,18})-\d+\.pt")


class RankState:
    """The state that ranks keep for a model in training. Every method is collective."""

    def __init__(self, world: World, model: Trainable, policies: Policies) -> None:
        self._world, self._model, self._policies = world, model, policies
        self._named = -1  # the epoch in last.pt
        self.digest = ""  # of all ranks' files of the last checkpoint, which has it; "" if there are none

    @property
    def _is_used(self) -> bool:
        """Return whether ranks keep something of their own between epochs."""
        return self._model.messages.config.message_coding == "delta" or not self._policies.config.is_off

    def save(self, run: Path, epoch: int) -> None:
        """Write the state, before ``last.pt`` names ``epoch``. Messages in flight are waited for."""
        if self._is_used:
            self._model.messages.drain()
            content = {
                "format": _FORMAT,
                "kept": self._model.messages.kept.state(),
                "policies": self._policies.rank_state(),
                "rows": self._model.aggregator.exchange.rows_that_travel(),
                "rank": self._world.rank,
            }
            self.digest = self._of_all(self._write(run, epoch, content))
            self._named = epoch

    def _of_all(self, digest: str) -> str:
        """The digest of all ranks' files: the sum of the first halves of theirs."""
        mine = np.array([int(digest[:16], 16)], np.uint64).view(np.int64)
        return f"{self._world.allreduce(mine).view(np.uint64)[0]:016x}"

    def _write(self, run: Path, epoch: int, content: dict[str, Any]) -> str:
        """The file of the previous checkpoint remains, because ``last.pt`` still refers to it; all others are removed."""
        mine = self._path(run, epoch)
        with raise_on_all_ranks(self._world, f"write {mine.parent}"):
            mine.parent.mkdir(exist_ok=True)
            with whole_file.replacing(mine, cleans=False) as temporary:
                digest = archive.write(temporary, content)  # streamed, as it may be as large as all boundary rows
            names = (_NAME.fullmatch(path.name) for path in mine.parent.glob(f"*-{self._world.rank}.pt"))
            for other in {int(name[1]) for name in names if name} - {epoch, self._named}:
                self._path(run, other).unlink()
        return digest

    def load(self, run: Path, epoch: int, last: dict[str, Any], *, same_parts: bool) -> None:
        """Continue from the state, if every rank has one for this very plan, and from the policies' state in ``last``."""
        self._named = epoch
        if not self._is_used:
            return
        where = self._path(run, epoch)
        content = self._read(where) if same_parts else None
        messages, policies = self._model.messages, last.get("policies") or {}
        if not self._fits(content):
            content = None
        with raise_on_all_ranks(self._world, f"use {where.parent}"):
            if content is not None:  # of this model's exchanges and these policies
                exchanges = [facts.exchange for facts in self._policies.all_facts]
                counts = {
                    each.id: RowCounts(int(each.send_counts.sum()), int(each.receive_counts.sum()), each.boundary_nodes)
                    for each in exchanges
                }
                check_kept(content.get("kept"), counts, str(where))
                self._policies.check_rank_state(content.get("policies"), str(where))
        if content is None:
            _LOG.warning(
                "the checkpoint has no messages for these parts and this strategy: delta coding and staleness start as in epoch 0"
            )
        else:
            found = self._of_all(archive.digest_of(content))
            with raise_on_all_ranks(self._world, f"use {where.parent}"):
                check_digest(where.parent, found, last.get("node_rows", {}).get(checkpoint.MESSAGES))
            # of different exchanges, some ranks would wait for the others forever
            differing = f"the ranks' files in {where.parent} are not of one checkpoint"
            same_everywhere(self._world, [shape_of(content["kept"])], differing)
            is_delta = messages.config.message_coding == "delta"
            messages.kept.load(content["kept"], messages.tools(self._model.aggregator.backend), is_delta=is_delta)
        if policies.get("names") == self._policies.names:
            path = checkpoint.folder(run) / checkpoint.LAST
            with raise_on_all_ranks(self._world, f"use the policies in {path}"):
                self._policies.check_state(policies["state"], str(path))
            self._policies.load(policies["state"], None if content is None else content["policies"])
        elif not self._policies.config.is_off:
            _LOG.warning(
                "the checkpoint was made with other policies of --bits or --staleness: the new ones start as in epoch 0"
            )

    def _fits(self, content: dict[str, Any] | None) -> bool:
        """Return whether the state fits this plan; the same on every rank."""
        rows = self._model.aggregator.exchange.rows_that_travel()
        found = {} if content is None or content.get("format") != _FORMAT else content
        theirs = found.get("rows")
        fits = isinstance(theirs, torch.Tensor) and theirs.dtype == rows.dtype and torch.equal(theirs, rows)
        return bool(self._world.allreduce(np.array([fits], np.int64), "min")[0])

    def _read(self, path: Path) -> dict[str, Any] | None:
        """The state, or None if any rank has no such file."""
        world = self._world
        with raise_on_all_ranks(world, f"read {path}"):
            if path.exists() and not path.is_file():
                raise HpcgnnError(f"{path} is not a file")
        if not world.allreduce(np.array([path.is_file()], np.int64), "min")[0]:
            return None
        with raise_on_all_ranks(world, f"read {path}"):
            content = archive.read(path, path)
            if not isinstance(content.get("rows"), torch.Tensor):  # rows exist in files of all versions
                raise HpcgnnError(f"{path} is damaged: rows is missing, or not a tensor")
            rank = content.get("rank", world.rank)  # older files have no rank, so their name counts
            if rank != world.rank:
                raise HpcgnnError(
                    f"{path} belongs to rank {rank}: rename the files in this folder to their original names"
                )
        return content

    def _path(self, run: Path, epoch: int) -> Path:
        return checkpoint.folder(run) / checkpoint.MESSAGES / f"{epoch}-{self._world.rank}.pt"
