"""The state that each rank keeps for itself between epochs (stale rows, differences, ranges of policies), and its file in a
checkpoint."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn.exchange.mailbox import RowCounts, check_kept, shape_of
from hpcgnn.policy.policies import Policies
from hpcgnn.train import checkpoint
from hpcgnn.train.tasks import Trainable
from hpcgnn.world import World, raise_on_all_ranks, same_everywhere

_LOG = logging.getLogger("hpcgnn")
_FORMAT = 2


class RankState:
    """The state that ranks keep for a model in training. Every method is collective."""

    def __init__(self, world: World, model: Trainable, policies: Policies) -> None:
        self._world, self._model, self._policies = world, model, policies

    @property
    def _is_used(self) -> bool:
        """Return whether ranks keep something of their own between epochs."""
        return self._model.messages.config.message_coding == "delta" or not self._policies.config.is_off

    def save(self, run: Path, epoch: int) -> None:
        """Write the state, before ``last.pt`` names ``epoch``. Messages in flight are waited for."""
        if not self._is_used:
            return
        messages = self._model.messages
        messages.drain()
        content = {
            "format": _FORMAT,
            "kept": messages.kept.state(),
            "policies": self._policies.rank_state(),
            "rows": self._model.aggregator.exchange.rows_that_travel(),
        }
        checkpoint.save_messages(self._world, run, epoch, content)

    def load(self, run: Path, epoch: int, last: dict[str, Any], *, same_parts: bool) -> None:
        """Continue from the state, and from the policies' state in ``last``.

        The files count only if every rank has one for this very plan; otherwise exchanges start as in epoch 0.
        """
        if not self._is_used:
            return
        content = checkpoint.read_messages(self._world, run, epoch) if same_parts else None
        where = checkpoint.messages_path(run, epoch, self._world.rank)
        content = content if self._fits(content) else None
        with raise_on_all_ranks(self._world, f"use {where.parent}"):
            if content is not None:
                self._check(content, where)
        if content is not None:
            self._compare(content, where.parent)
        messages, aggregator = self._model.messages, self._model.aggregator
        if content is None:
            _LOG.warning(
                "the checkpoint has no messages for these parts and this strategy: delta coding and staleness start as in epoch 0"
            )
        else:
            is_delta = messages.config.message_coding == "delta"
            messages.kept.load(content["kept"], messages.tools(aggregator.backend), is_delta=is_delta)
        policies = last.get("policies") or {}
        if policies.get("names") == self._policies.names:
            path = checkpoint.folder(run) / checkpoint.LAST
            with raise_on_all_ranks(self._world, f"use the policies in {path}"):
                self._policies.check_state(policies["state"], str(path))
            self._policies.load(policies["state"], None if content is None else content["policies"])
        elif not self._policies.config.is_off:
            _LOG.warning(
                "the checkpoint was made with other policies of --bits or --staleness: the new ones start as in epoch 0"
            )

    def _check(self, content: dict[str, Any], where: Path) -> None:
        """Raise HpcgnnError unless the state belongs to this model's exchanges and these policies."""
        exchanges = [channel.exchange for channel in self._policies.channels]
        counts = {
            each.id: RowCounts(int(each.send_counts.sum()), int(each.receive_counts.sum()), each.boundary_nodes)
            for each in exchanges
        }
        check_kept(content.get("kept"), counts, str(where))
        self._policies.check_rank_state(content.get("policies"), str(where))

    def _compare(self, content: dict[str, Any], where: Path) -> None:
        """Raise HpcgnnError if ranks keep different exchanges: some would wait for the others forever. Collective."""
        same_everywhere(
            self._world, [shape_of(content["kept"])], f"the ranks' files in {where} are not of one checkpoint"
        )

    def _fits(self, content: dict[str, Any] | None) -> bool:
        """Return whether the state fits this plan; the same on every rank."""
        rows = self._model.aggregator.exchange.rows_that_travel()
        found = {} if content is None or content.get("format") != _FORMAT else content
        theirs = found.get("rows")
        fits = isinstance(theirs, torch.Tensor) and theirs.dtype == rows.dtype and torch.equal(theirs, rows)
        return bool(self._world.allreduce(np.array([fits], np.int64), "min")[0])
