"""The tasks of a trainer: classification and regression of nodes, and link prediction. A task has the loss, the metrics and their
inputs.

Label propagation follows SuperGCN (§3.3.2) and UniMP (Shi et al. 2021): some training labels are inputs, and the loss is on the
other training nodes. Labels travel with the features in the exchange of the first layer.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.host import host_values, index_array
from hpcgnn.data.schema import MASKS, MULTI_LABEL, REGRESSION
from hpcgnn.graph.features_on_disk import FeaturesOnDisk
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.node_types import FeaturesByType
from hpcgnn.kernels import Csr, keyed
from hpcgnn.nn.aggregator import Aggregator
from hpcgnn.nn.decoders import Decoder
from hpcgnn.nn.graph_model import GraphModel
from hpcgnn.nn.halo import make_halo
from hpcgnn.nn.layers import label_matrix
from hpcgnn.nn.linear import Given
from hpcgnn.nn.linear_map import MOVED
from hpcgnn.train import objective
from hpcgnn.train.config import ALWAYS, AUTO, MRR, NEVER, REAL_METRICS, LabelPropagationConfig, LossConfig
from hpcgnn.train.links import Links, LinkSplit, links_of
from hpcgnn.train.negatives import EVALUATION, Negatives, NegativeSampler, pool_rows
from hpcgnn.train.ranking import FixedCandidates, Ranker
from hpcgnn.world import raise_on_all_ranks

if TYPE_CHECKING:
    from hpcgnn.pyg.trainable import TrainableModule

Trainable: TypeAlias = "GraphModel | TrainableModule"

# Takes the place of the layer in a dropout's key, so no dropout mask uses the same random numbers.
_LABELS = int.from_bytes(b"labels", "big")


def drawn_nodes(config: LabelPropagationConfig, seed: int, epoch: int, ids: torch.Tensor) -> torch.Tensor:
    """(n,) bool: the nodes whose label is an input in ``epoch`` if they are training nodes; a function of (seed, epoch, id)."""
    key = keyed.derive_key(seed, epoch if config.redraw == "epoch" else 0, _LABELS)
    draws = keyed.draws(keyed.row_hashes(key, index_array(ids)), np.zeros(1, dtype=np.uint32))
    return torch.from_numpy(draws < np.uint32(keyed.threshold(config.rate)))


def training_labels(graph: LocalGraph, nodes: torch.Tensor | None = None) -> Csr:
    """(n, C) ones at the labels of training nodes; with (n,) bool ``nodes``, of those among them."""
    assert graph.y is not None
    trained = graph.masks["train_mask"]
    return label_matrix(graph.y, trained if nodes is None else trained & nodes, graph.meta.num_classes)


def check_labels(graph: LocalGraph) -> None:
    """Raise HpcgnnError unless every training node of this rank has a label below the number of classes."""
    if graph.y is None:
        raise HpcgnnError(
            f"{graph.path} has no labels, so no classes can be learned: convert a graph with labels, or with "
            "--labels random:C to measure times only, or use --task link"
        )
    if "train_mask" not in graph.masks:
        raise HpcgnnError(
            f"{graph.path} has no split: convert the graph again with --split random:0.6,0.2,0.2 or another split"
        )
    if graph.meta.task == REGRESSION:  # a node without a target may be in a mask
        return
    if graph.y.dim() == 1 and bool((graph.y[graph.masks["train_mask"]] < 0).any()):
        raise HpcgnnError(
            f"{graph.path} has training nodes without a label on rank {graph.world.rank}: convert the graph again with --split"
        )
    if graph.y.numel() and graph.y.dim() == 1 and int(graph.y.max()) >= graph.meta.num_classes:
        raise HpcgnnError(
            f"{graph.path} is damaged: it has label {int(graph.y.max())}, but only {graph.meta.num_classes} classes"
        )


def _check(graph: LocalGraph, metric: str, labels: LabelPropagationConfig, loss: LossConfig) -> None:
    """Check the labels, and the settings of a task that learns them. Collective; HpcgnnError on every rank."""
    with raise_on_all_ranks(graph.world, f"train on {graph.path}"):
        check_labels(graph)
        _check_kind(graph, metric, labels, loss)


def _check_kind(graph: LocalGraph, metric: str, labels: LabelPropagationConfig, loss: LossConfig) -> None:
    """Raise HpcgnnError for settings that are for labels of another kind than the graph's, which all ranks know."""
    is_real, is_real_metric = graph.meta.task == REGRESSION, metric in REAL_METRICS
    of_real = {f"--loss {loss.loss}": loss.loss != AUTO, f"--metric {metric}": is_real_metric}
    of_classes = {
        f"--metric {metric}": metric != AUTO and not is_real_metric,
        "--class-weight": loss.class_weight != LossConfig.class_weight,
        "--label-smoothing": loss.label_smoothing > 0,
        "--label-propagation": labels.rate > 0,
    }
    for flag, is_given in (of_classes if is_real else of_real).items():
        if is_given:
            has, wants = ("real numbers", "classes") if is_real else ("classes", "real numbers")
            raise HpcgnnError(
                f"{flag} is for labels that are {wants}, but those of {graph.path} are {has}: leave it out"
            )


class NodeTask:
    """Node classification. Input labels are (n, C) ones, or None if no labels are propagated."""

    def __init__(
        self, model: Trainable, graph: LocalGraph, metric: str, labels: LabelPropagationConfig, loss: LossConfig
    ) -> None:
        _check(graph, metric, labels, loss)
        usual = "micro-f1" if graph.meta.task == MULTI_LABEL else "accuracy"
        self.metric = usual if metric == AUTO else metric
        self.model, self.graph, self.features = model, graph, features_of(graph, model)
        self._propagation, self._trained = labels, graph.masks["train_mask"].nonzero()[:, 0]
        self._drawn: tuple[int, tuple[Csr | None, torch.Tensor]] | None = None
        nothing = "training nodes: convert the graph with --split, and partition it again"
        _check_any(graph, self._trained.numel(), nothing)
        self._weights, self._smoothing = self._class_weights(loss.class_weight), loss.label_smoothing
        if labels.rate and labels.redraw == "once":
            given, learned = self._inputs(0)
            why = f"as --label-propagation {labels.rate} makes {{}} of their labels inputs and --label-redraw once keeps them"
            _check_any(graph, learned.numel(), f"training nodes to learn from, {why.format('all')}: lower the rate")
            drawn = 0 if given is None else given.num_entries
            _check_any(graph, drawn, f"training nodes whose labels are inputs, {why.format('none')}: raise the rate")

    def _class_weights(self, choice: str) -> torch.Tensor | None:
        """(C,) weights in the precision of the model's parameters. Collective."""
        graph = self.graph
        assert graph.y is not None
        trained = graph.masks["train_mask"]
        found = objective.class_weights(graph.world, choice, graph.y, trained, graph.meta.num_classes)
        like = next(self.model.parameters())
        return None if found is None else torch.from_numpy(found).to(like.device, like.dtype)

    def _inputs(self, epoch: int) -> tuple[Csr | None, torch.Tensor]:
        """The input labels of ``epoch``, and the (m,) int64 other training nodes, ascending, on which the loss is computed."""
        config, graph = self._propagation, self.graph
        if config.rate == 0:
            return None, self._trained
        drawing = epoch if config.redraw == "epoch" else 0
        if self._drawn is None or self._drawn[0] != drawing:
            trained = graph.masks["train_mask"]
            drawn = drawn_nodes(config, self.model.keys.seed, drawing, graph.original_ids).to(trained.device)
            self._drawn = drawing, (training_labels(graph, drawn), (trained & ~drawn).nonzero()[:, 0])
        return self._drawn[1]

    @cached_property
    def all_labels(self) -> Csr | None:
        """The input labels of evaluations: those of all training nodes, and no others."""
        return training_labels(self.graph) if self._propagation.rate else None

    def identity(self) -> dict[str, Any]:
        """The facts that must be the same in a resumed run, as plain JSON."""
        return {"task": "node", "metric": self.metric}

    def validation_size(self) -> int:
        """The number of this rank's nodes for validation."""
        return int(self.graph.masks["val_mask"].sum())

    def loss(self, epoch: int) -> tuple[torch.Tensor, int]:
        """The loss of a training step, summed over this rank's nodes, and their number. Collective."""
        given, learned = self._inputs(epoch)
        assert self.graph.y is not None
        scores = self.model(self.features, given)
        return objective.loss_sum(scores, self.graph.y, learned, self._weights, self._smoothing), learned.numel()

    def evaluate(self) -> list[float | None]:
        """The metric on training, validation and test nodes; None if it is not defined there. Collective."""
        assert self.graph.y is not None
        masks = [self.graph.masks[name] for name in MASKS]
        scores = self.model(self.features, self.all_labels)
        return objective.evaluate(self.graph.world, self.metric, scores, self.graph.y, masks)


class RegressionTask:
    """Regression of nodes, with the methods of :class:`NodeTask`: the loss is on each known target of the training nodes."""

    def __init__(
        self, model: Trainable, graph: LocalGraph, metric: str, labels: LabelPropagationConfig, loss: LossConfig
    ) -> None:
        _check(graph, metric, labels, loss)
        assert graph.y is not None
        self.metric, self._loss_name = "r2" if metric == AUTO else metric, "mse" if loss.loss == AUTO else loss.loss
        self._loss_of = objective.REAL_LOSSES[self._loss_name]
        self.model, self.graph, self.features = model, graph, features_of(graph, model)
        self._y = graph.y.double().reshape(graph.num_nodes, graph.meta.num_classes)
        self._masks = [graph.masks[name] for name in MASKS]
        trained, validated, _ = (~self._y.isnan() & mask[:, None] for mask in self._masks)
        self._validated = int(validated.sum())
        self._learned = trained.reshape(-1).nonzero()[:, 0]  # numbers of the learned entries in the (n, K) predictions
        self._targets = self._y.reshape(-1)[self._learned].to(next(model.parameters()).dtype)
        nothing = "training nodes with a target: convert the graph with --split, and partition it again"
        _check_any(graph, self._learned.numel(), nothing)
        self._spread = objective.target_spread(graph.world, self._y, self._masks)

    def identity(self) -> dict[str, Any]:
        """As of :class:`NodeTask`, with the loss: the curve of a run has one unit."""
        return {"task": "node", "metric": self.metric, "loss": self._loss_name}

    def validation_size(self) -> int:
        """The number of this rank's targets for validation."""
        return self._validated

    def _predictions(self) -> torch.Tensor:
        """(n, K) predictions of this rank's nodes. Collective. HpcgnnError, on every rank, for another number of columns."""
        found, targets = self.model(self.features), self.graph.meta.num_classes
        if list(found.shape[1:]) not in ([targets], [] if targets == 1 else [targets]):
            raise HpcgnnError(
                f"the model gives each node an output of shape {list(found.shape[1:])}, but {self.graph.path} has {targets} "
                "targets for each node: build it with as many outputs",
                agreed=True,
            )
        return found.reshape(self._y.shape)

    def loss(self, epoch: int) -> tuple[torch.Tensor, int]:
        """The loss of a training step, summed over this rank's learned targets, and their number. Collective."""
        predicted = self._predictions().reshape(-1).index_select(0, self._learned)
        return self._loss_of(predicted, self._targets, reduction="sum"), self._learned.numel()

    def evaluate(self) -> list[float | None]:
        """The metric on training, validation and test nodes; None if it is not defined there. Collective."""
        scores, world = self._predictions(), self.graph.world
        return objective.evaluate_targets(world, self.metric, scores, self._y, self._masks, self._spread)


class LinkTask:
    """Link prediction on a split of the edges, with the methods of :class:`NodeTask`: messages use the training links, which are
    learned with negative pairs."""

    def __init__(self, model: Trainable, split: LinkSplit, metric: str) -> None:
        graph = split.train
        with raise_on_all_ranks(graph.world, f"train on the links of {graph.path}"):
            assert isinstance(model, GraphModel)  # with a decoder, as RunConfig has checked
            if model.graph is not graph:
                raise HpcgnnError(
                    "the model was built for another graph, which would show it held-out links: build it for split.train"
                )
        usual = MRR if graph.meta.num_edge_types or graph.meta.num_asked_links else "roc-auc"
        self.model, self.split, self.metric = model, split, usual if metric == AUTO else metric
        self.features = features_of(graph, model)
        # One that knew held-out links would tell of them, as the only other pairs that it never draws.
        self.sampler = NegativeSampler(graph, split.config, split.relations)
        self.learned = links_of(graph, split.relations)
        _check_any(graph, self.learned.csr.num_entries, "links to learn from: lower --link-split")
        self.halo = model.add_aggregator(self._halo(graph))
        held_out = (split.validation, split.test)
        self.held_out = [(links_of(each), self._halo(each).for_layer(len(model.aggregators))) for each in held_out]
        self._judge = NegativeSampler(split.graph, split.config, split.relations)  # of evaluations
        self._fixed: list[Negatives] | None = None
        self._rankers: list[Ranker] | None = None
        is_asked = graph.meta.num_asked_links and self.ranks_at_end
        self.candidates = FixedCandidates(split.graph, split.relations) if is_asked else None

    def identity(self) -> dict[str, Any]:
        """As of nodes, with the split: another split would evaluate links that were learned."""
        config = self.split.config
        chosen = self.split.relations
        target = "" if chosen is None else ",".join(map(str, np.flatnonzero(chosen)))
        split = {"link_split": list(config.link_split), "link_seed": config.link_seed, "target": target}
        return {"task": "link", "metric": self.metric} | split

    def validation_size(self) -> int:
        """The number of this rank's links for validation."""
        return self.held_out[0][0].csr.num_entries

    def _halo(self, graph: LocalGraph) -> Aggregator:
        model = self.model  # rows for the decoder stay floats, also where a resumed run chooses its arithmetic again
        return make_halo(graph, messages=model.messages, backend=model.backend, width=model.config.hidden, kind=MOVED)

    @property
    def decoder(self) -> Decoder:
        """The model's decoder."""
        assert self.model.decoder is not None
        return self.model.decoder

    def _embeddings(self) -> torch.Tensor:
        """(n, F) embeddings of this rank's nodes, as the decoder compares them. Collective."""
        return self.decoder.embed(self.model(self.features))

    def _scores(
        self, embeddings: torch.Tensor, links: Links, halo: Aggregator, negatives: Negatives
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The scores of ``links`` and of ``negatives``, from this rank's (n, F) embeddings. Collective."""
        decoder, under_way = self.decoder, halo.begin(embeddings)
        pool = pool_rows(embeddings, negatives, self.model.messages)
        queries = links.targets.queries(decoder, embeddings)
        apart = decoder(negatives.of_targets, queries, pool)  # while rows travel
        extended = under_way.finish()
        if negatives.of_sources is not None:
            of_sources = decoder(negatives.of_sources, links.sources.queries(decoder, extended), pool)
            apart = torch.cat((apart, of_sources))
        return decoder(links.csr, queries, extended), apart

    def loss(self, epoch: int) -> tuple[torch.Tensor, int]:
        """Binary cross-entropy, summed over the training links and their negatives, and the number of both. Collective."""
        negatives = self.sampler.draw(self.learned, self.model.keys.seed, epoch)
        joined, apart = self._scores(self._embeddings(), self.learned, self.halo, negatives)
        return F.softplus(-joined).sum() + F.softplus(apart).sum(), joined.numel() + apart.numel()

    def evaluate(self) -> list[float | None]:
        """The metric on held-out links, with drawn nodes that are the same in all runs; None for training. Collective."""
        embeddings = self._embeddings()
        if self.metric == MRR:
            ranks_all = self.split.config.rank_all == ALWAYS
            ranked = [self._ranked(side, embeddings, among_all=ranks_all) for side in range(2)]
            found = [None, *(None if each is None else each["mrr"] for each in ranked)]
        else:
            found = [None, *self._told_apart(embeddings)]
        return self.split.graph.world.broadcast(found, what="the metrics")

    @property
    def ranks_at_end(self) -> bool:
        """Return whether the test links are ranked among all nodes, or their own candidates, when the training ends."""
        return self.metric == MRR and self.split.config.rank_all != NEVER

    def rank_test_links(self) -> dict[str, float] | None:
        """MRR and hits@1, 3 and 10 of the test links among their own candidates (:class:`FixedCandidates`), or else filtered ones
        among all nodes (:class:`Ranker`); None without links. Collective."""
        return self._ranked(1, self._embeddings(), among_all=True)

    def _ranked(self, side: int, embeddings: torch.Tensor, *, among_all: bool) -> dict[str, float] | None:
        """The metrics of validation (side 0) or test links. Collective."""
        if among_all and self.candidates is not None:
            return self.candidates.metrics(side + 1, self.decoder, embeddings)
        if self._rankers is None:
            self._rankers = [Ranker(self.split.graph, links) for links, _ in self.held_out]
        drawn = None if among_all else np.unique(self._judge.pool(EVALUATION, self.split.config.link_seed, side)[0])
        extended = self.held_out[side][1].begin(embeddings).finish()
        return self._rankers[side].metrics(self.decoder, embeddings, extended, drawn)

    def _told_apart(self, embeddings: torch.Tensor) -> list[float | None]:
        """A metric of scores of links and of negatives, for validation and test links. Collective."""
        world, seed = self.split.graph.world, self.split.config.link_seed
        if self._fixed is None:
            self._fixed = [
                self._judge.draw(links, EVALUATION, seed, side) for side, (links, _) in enumerate(self.held_out)
            ]
        found = []
        for (links, halo), negatives in zip(self.held_out, self._fixed, strict=True):
            joined, apart = self._scores(embeddings, links, halo, negatives)
            found.append(objective.link_metric(world, self.metric, host_values(joined), host_values(apart)))
        return found


def features_of(graph: LocalGraph, model: Trainable) -> Given:
    """The graph's features in the precision of the model's parameters."""
    features, dtype = graph.features, next(model.parameters()).dtype
    if features is None:  # of a model that embeds all nodes
        return torch.empty(graph.num_nodes, 0, dtype=dtype, device=graph.device.torch_device)
    if isinstance(features, torch.Tensor | FeaturesOnDisk):
        return features.to(dtype)
    if isinstance(features, FeaturesByType):
        return features.map(lambda block: block.to(dtype))
    assert features.weight is not None
    return features.with_weight(features.weight.to(dtype))


def _check_any(graph: LocalGraph, count: int, what: str) -> None:
    """Raise HpcgnnError, the same on all ranks, if there is nothing to learn from. Collective."""
    if not graph.world.imagines_others and not graph.world.allreduce(np.array([count], dtype=np.int64))[0]:
        raise HpcgnnError(f"{graph.path} has no {what}", agreed=True)
