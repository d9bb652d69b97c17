"""One rank's view of a partitioned graph: its nodes, their features and labels, its in-edges and its plan."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hpcgnn.base.arguments import HOST_DEVICE, check_choice, check_device, check_path, check_world
from hpcgnn.base.errors import HpcgnnError, WrongValueError, nearest
from hpcgnn.base.host import host_values, index_array
from hpcgnn.data import plan_store
from hpcgnn.data.graph_file import PartsFile, TypeRows
from hpcgnn.data.h5 import damaged
from hpcgnn.data.plan_store import StoredPlan
from hpcgnn.data.schema import MASKS, GraphMeta
from hpcgnn.data.stored import in_range, sum_of_hashes
from hpcgnn.devices import CPU, Device
from hpcgnn.graph import DISK, PLACES
from hpcgnn.graph.features_on_disk import FeaturesOnDisk
from hpcgnn.graph.node_order import NodeOrder, node_order
from hpcgnn.graph.node_types import EdgeKey, FeaturesByType, NodesByType, edges_by_type, features_by_type
from hpcgnn.kernels import Csr
from hpcgnn.plan import AggregationPlan, PeerRows, SendRows, SparseMatrix, plan_receiver, sender_matrix
from hpcgnn.plan.plan import offsets_of, owners_of
from hpcgnn.plan.relations import RelationRows, ResultRows
from hpcgnn.world import World, raise_on_all_ranks, same_everywhere, whole_job
from hpcgnn.world.devices import choose_device
from hpcgnn.world.world import OfRanks

if TYPE_CHECKING:
    import scipy.sparse as sp

AnyFeatures = torch.Tensor | Csr | FeaturesByType | FeaturesOnDisk | None


def _mask(graph: LocalGraph, name: str) -> torch.Tensor:
    if name not in graph.masks:
        raise AttributeError(f"{graph.path} has no {name}: convert the graph with --split", name=name)
    return graph.masks[name]


@dataclass
class LocalGraph(OfRanks):
    """One rank's part of a partitioned graph: its nodes, their features and labels, and the edges that end at them.

    In the shapes below, the rank owns n nodes with e in-edges and h halo nodes, F is the number of features, C the number of
    classes, and P the number of ranks. Node tensors, and inputs and outputs of models that are built for this graph, are in
    the order ``order``. The arrays of edges stay in the file's order, because other ranks refer to its positions.

    Attributes:
        world: the ranks of the job, a ``hpcgnn.world.World``: ``rank``, ``size``, ``allreduce`` and other collectives.
        path: the parts file.
        uuid: the parts file's identity, which checkpoints record. data: the same for the data of the graph, by their names.
        meta: counts of the whole graph: ``num_nodes``, ``num_edges``, ``num_features``, ``num_classes``, ``task``.
        node_offsets: (P + 1,) int64, the first position of each rank.
        features: (n, F) float32 tensor; a ``hpcgnn.kernels.Csr`` (n, F) if they are stored sparse;
            ``hpcgnn.graph.node_types.FeaturesByType`` if they are stored by type;
            ``hpcgnn.graph.features_on_disk.FeaturesOnDisk`` with ``load(features="disk")``; or None.
        y: (n,) int64 with -1 for no label, or (n, C) uint8; (n,) or (n, K) float32 targets of regression, with NaN for none; None
            without labels.
        masks: (n,) bool each, by the names ``train_mask``, ``val_mask`` and ``test_mask``; empty without a split.
        train_mask, val_mask, test_mask: those of ``masks``; AttributeError without a split.
        num_features, num_classes: F and C. num_edges: e, the edges that end on this rank, as ``num_nodes`` is n; ``meta`` has the
            counts of the whole graph.
        original_ids: (n,) int64, the numbers that the nodes had when the graph was converted.
        indptr: (n + 1,) int64, this rank's range of the whole graph's CSR by destination; it begins at the first of its
            edges.
        indices: (e,) int64, positions of the sources.
        edge_weight: (e,) float32 tensor of the weights of the edges of ``edge_index``, in its order; or None.
        matches_parts: whether this rank's part is one part of the file, with all its edges.
        order: the order of the owned nodes, see ``reordered``.
        device: the device that holds features, labels, masks, edge weights and ``edge_index``. Ids and arrays of edges are on
            the host.
        ranks_per_node: number of ranks that the partition puts on a node.
        stored_edges: the rows of the file's arrays of edges that are the edges of ``indices``, ascending.
    """

    world: World
    path: Path
    uuid: str
    meta: GraphMeta
    node_offsets: np.ndarray
    features: AnyFeatures
    y: torch.Tensor | None
    masks: dict[str, torch.Tensor]
    original_ids: torch.Tensor
    indptr: np.ndarray
    indices: np.ndarray
    edge_weight: torch.Tensor | None
    matches_parts: bool
    order: NodeOrder = field(default_factory=NodeOrder)
    device: Device = CPU
    ranks_per_node: int = 1
    _halo_ids: torch.Tensor | None = field(default=None, init=False, repr=False)
    _nodes_by_type: NodesByType | None = field(default=None, init=False, repr=False)
    _of_edges: dict[str, torch.Tensor] = field(default_factory=dict, init=False, repr=False)
    _edge_index_dict: dict[EdgeKey, torch.Tensor] | None = field(default=None, init=False, repr=False)
    data: dict[str, str] = field(default_factory=dict)
    stored_edges: range | np.ndarray = range(0)
    train_mask, val_mask, test_mask = (property(partial(_mask, name=name)) for name in MASKS)
    num_features, num_classes = (property(attrgetter(f"meta.num_{what}")) for what in ("features", "classes"))
    num_edges = property(attrgetter("indices.size"))

    if not TYPE_CHECKING:  # mypy would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            """The error for a name that the graph does not have, or the AttributeError that a property has raised."""
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)
            near = nearest(name, [each for each in dir(self) if not each.startswith("_")])
            raise AttributeError(
                f"a graph has no attribute {name!r}" + f"; did you mean {near}?" * bool(near), name=name
            )

    @property
    def num_nodes(self) -> int:
        """Number of nodes that this rank owns, n."""
        return self.original_ids.numel()

    @property
    def x(self) -> torch.Tensor | None:
        """(n, F) float32 features of the owned nodes. If they are stored sparse or by type, each access makes a new torch CSR
        tensor; if they stay on disk, each access reads them."""
        if isinstance(self.features, FeaturesOnDisk):
            return self.features.whole()
        csr = self.features.csr() if isinstance(self.features, FeaturesByType) else self.features
        if not isinstance(csr, Csr):
            return csr
        assert csr.weight is not None
        return torch.sparse_csr_tensor(csr.indptr, csr.indices.long(), csr.weight, size=(csr.num_rows, csr.num_cols))

    @property
    def first(self) -> int:
        """Position of the first owned node."""
        return int(self.node_offsets[self.world.rank])

    @property
    def in_degrees(self) -> np.ndarray:
        """(n,) int64 in-degrees of the owned nodes in the whole graph."""
        degrees = np.diff(self.indptr)
        return degrees if self.order.nodes is None else degrees[self.order.nodes]

    @property
    def _is_inside(self) -> np.ndarray:
        """(e,) bool, whether an edge's source is owned."""
        return (self.indices >= self.first) & (self.indices < self.first + self.num_nodes)

    @property
    def destinations(self) -> np.ndarray:
        """(e,) int64 local id, in the file's order, of the owned node at which each edge ends."""
        return np.repeat(np.arange(self.num_nodes), np.diff(self.indptr))

    @cached_property
    def halo_positions(self) -> np.ndarray:
        """(h,) int64 ascending positions in the file of the halo nodes: nodes of other ranks from which edges lead to owned
        nodes."""
        return np.unique(self.indices[~self._is_inside])

    @cached_property
    def edge_index(self) -> torch.Tensor:
        """(2, e) int64 in-edges of the owned nodes, sources in the first row. Ids 0 to n - 1 are owned nodes in the order of
        ``x``, and larger ids are halo nodes in the order of their positions.

        Edges are in the order of ``edge_weight``, ``edge_type``, ``edge_attr`` and ``edge_ids``. The tensor is made at the first
        access and kept.
        """
        return self.local_edge_index().to(self.device.torch_device)

    @property
    def halo_ids(self) -> torch.Tensor:
        """(h,) int64 original ids of the halo nodes, in the order of their positions. The first access is collective."""
        if self._halo_ids is None:  # not a cached_property, for whose lock ranks that are threads would wait
            places, asked_counts, _ = asked_rows(self.world, self.halo_positions, self.node_offsets)
            ids = self.in_loaded_order(self.original_ids)[places]
            self._halo_ids = self.world.alltoallv(ids, asked_counts)[0]
        return self._halo_ids

    @property
    def original_edge_index(self) -> torch.Tensor:
        """(2, e) int64: ``edge_index`` with original ids, on the host: sources in the first row, destinations in the second.
        The first access is collective."""
        return torch.cat((self.original_ids, self.halo_ids))[self.local_edge_index()]

    @property
    def edge_ids(self) -> torch.Tensor:
        """(e,) int64: ``source * num_nodes + destination`` of each edge of ``edge_index``, by original ids, on the host. The
        first access is collective.

        The id of an edge does not depend on the number of ranks, so data of one's own can be attached to edges by it.
        Parallel edges share it.
        """
        source, destination = self.original_edge_index
        return source * self.meta.num_nodes + destination

    @property
    def edge_type(self) -> torch.Tensor | None:
        """(e,) int64 types of the edges of ``edge_index``, from 0 to ``meta.num_edge_types - 1``; None for edges without types.

        The first access reads the rank's types from the file, and is collective. HpcgnnError on every rank tells of a file that
        is missing, damaged, or another one by now.
        """
        return self._read_of_edges("type") if self.meta.num_edge_types else None

    @property
    def edge_attr(self) -> torch.Tensor | None:
        """(e, D) float32 features of the edges of ``edge_index``, ``meta.num_edge_features`` columns; None for edges without
        features. The first access is collective, with errors as of ``edge_type``."""
        return self._read_of_edges("attr") if self.meta.num_edge_features else None

    @property
    def edge_split(self) -> torch.Tensor | None:
        """(e,) uint8 numbers of the sets of links, :data:`hpcgnn.data.schema.LINK_SETS`, of the edges of ``edge_index``; None for
        a graph without such a split. The first access is collective, with errors as of ``edge_type``."""
        return self._read_of_edges("split") if self.meta.has_link_split else None

    @cached_property
    def node_type(self) -> torch.Tensor:
        """(n,) int64 numbers of the types of the owned nodes, in the order of ``x``, on the host; zeros without types."""
        return torch.from_numpy(self.meta.node_types_of(index_array(self.original_ids)))

    @property
    def nodes_by_type(self) -> NodesByType:
        """The owned and halo nodes by type; also for a graph without types, whose lists are empty. The first access is
        collective."""
        if self._nodes_by_type is None:
            self._nodes_by_type = NodesByType.of(self.meta, self.original_ids, self.halo_ids)
        return self._nodes_by_type

    def of_type(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """(n_t, ...) the rows of values (n, ...) of the owned nodes, such as ``y`` or a mask, of the nodes of type ``name``.
        Raises HpcgnnError for a type that the graph does not have."""
        return values[(self.node_type == self.node_type_number(name)).to(values.device)]

    def node_type_number(self, name: str) -> int:
        """The number of the type of nodes with this name. Raises HpcgnnError, on every rank, if there is none."""
        names = [each.name for each in self.meta.node_types]
        if name not in names:
            has = f"it has {', '.join(names)}" if names else "its nodes have no types"
            raise HpcgnnError(f"{self.path} has no type of nodes {name!r}: {has}", agreed=True)
        return names.index(name)

    @property
    def x_dict(self) -> dict[str, torch.Tensor]:
        """(n_t, F_t) float32 features of the owned nodes of each type that has features, in the order of ``x``; each access makes
        new tensors. The first access is collective."""
        assert not isinstance(self.features, FeaturesOnDisk), "features of nodes with types are in memory"
        return features_by_type(self.meta, self.nodes_by_type, self.features)

    @property
    def edge_index_dict(self) -> dict[EdgeKey, torch.Tensor]:
        """(2, e_r) int64 edges of each type, by (type of the sources, relation, type of the destinations). Ids count the nodes of
        a type: first the owned ones, in the order of ``x_dict``, and then the halo nodes, in the order of their positions. The
        first access is collective. The tensors are made then, and kept."""
        if self._edge_index_dict is None:
            number = self.nodes_by_type.number.to(self.device.torch_device)
            found = edges_by_type(self.meta, self.edge_type)
            self._edge_index_dict = {key: number[self.edge_index[:, edges]] for key, edges in found.items()}
        return dict(self._edge_index_dict)

    @property
    def edge_attr_dict(self) -> dict[EdgeKey, torch.Tensor]:
        """(e_r, D_r) float32 features of the edges of each type that has features, in the order of ``edge_index_dict``. The first
        access is collective; each makes new tensors."""
        attr = self.edge_attr
        columns = dict(zip(self.meta.edge_type_names, (each.columns for each in self.meta.edge_types), strict=True))
        found = edges_by_type(self.meta, self.edge_type) if attr is not None else {}
        return {key: attr[edges, : columns[key]] for key, edges in found.items() if columns[key]}  # type: ignore[index]

    @contextlib.contextmanager
    def reopened(self) -> Iterator[PartsFile]:
        """The open parts file, for arrays that few programs need; nothing inside may be collective. Raises HpcgnnError, on every
        rank, if it cannot be read or is another file by now. Collective."""
        with raise_on_all_ranks(self.world, f"read {self.path}"), PartsFile(self.path) as parts:
            if parts.uuid != self.uuid:
                raise HpcgnnError(f"{self.path} is another file by now: load the graph again")
            yield parts

    def _read_of_edges(self, name: str) -> torch.Tensor:
        """The types, features or sets of this rank's edges, which models that do not use them need not hold. Collective."""
        if name not in self._of_edges:
            rows = self.stored_edges
            first, last = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
            with self.reopened() as parts:
                part = self.world.rank if self.matches_parts else None  # a whole part has checksums
                values = parts.of_edges(name, first, last, part)
            assert values is not None
            values = values if isinstance(rows, range) else values[rows - first]
            found = torch.from_numpy(values).to(self.device.torch_device)
            self._of_edges[name] = found.long() if name == "type" else found
        return self._of_edges[name]

    def local_edge_index(self) -> torch.Tensor:
        """A new copy of :attr:`edge_index` in the host's memory."""
        halo = self.halo_positions
        outside = self.num_nodes + np.searchsorted(halo, self.indices)
        sources = np.where(self._is_inside, self.indices - self.first, outside)
        edges = torch.from_numpy(np.stack((sources, self.destinations)))
        if self.order.nodes is None:
            return edges
        ids = torch.arange(self.num_nodes + halo.size)
        ids[self.order.nodes] = torch.arange(self.num_nodes)
        return ids[edges]

    def reordered(self, method: str, width: int = 256) -> LocalGraph:
        """Copy this graph into a node order that may make aggregation faster. Not collective: ranks may use different orders.

        Args:
            method: ``none``, ``degree``, ``rcm``, ``hubs``, or ``auto``, which measures all orders on this rank.
            width: number of columns of the features in that measurement.

        Returns:
            A graph whose node tensors are in the new order; build the model for it. ``in_loaded_order`` restores the file's
            order.

        Raises:
            ValueError: for an unknown method, and if this graph is reordered already.
        """
        return self.in_order(node_order(self.local_edges(), method, width))

    def in_order(self, order: NodeOrder) -> LocalGraph:
        """This graph with its node tensors copied into ``order``, which becomes its attribute ``order``. Not collective."""
        nodes = order.nodes
        if self.order.nodes is not None:
            raise ValueError("the graph is in another order already: start from the one that was loaded")
        if nodes is None:
            return replace(self, order=order)
        features, there = self.features, nodes.to(self.device.torch_device)
        if isinstance(features, FeaturesOnDisk):
            raise WrongValueError("features on disk are read in the order of the file: leave the nodes in it")
        if isinstance(features, FeaturesByType):
            ordered: AnyFeatures = features.in_order(there)
        else:
            ordered = features.in_order(there, None) if isinstance(features, Csr) else _taken(features, there)
        return replace(
            self,
            features=ordered,
            y=_taken(self.y, there),
            masks={name: mask[there] for name, mask in self.masks.items()},
            original_ids=self.original_ids[nodes],
            order=order,
        )

    def in_loaded_order(self, values: torch.Tensor) -> torch.Tensor:
        """Put values of the owned nodes, such as scores, back into the order of the file. Not collective.

        Args:
            values: (n, ...) tensor in the order of this graph.

        Returns:
            A tensor of the same shape and type; ``values`` itself if this graph is not reordered.
        """
        if self.order.nodes is None:
            return values
        loaded = torch.empty_like(values)
        loaded[self.order.nodes.to(values.device)] = values
        return loaded

    def to(self, device: Device) -> LocalGraph:
        """Copy the node tensors to a device; models that are built for the result compute there. Not collective.

        Args:
            device: a result of ``hpcgnn.world.devices.choose_device``. ``hpcgnn.load(path, device="cuda")`` does both.
        """
        torch_device = device.torch_device
        if isinstance(self.features, FeaturesOnDisk) and torch_device.type != "cpu":
            raise HpcgnnError(f"features on disk are read by CPUs only, and {device.name} is none: pass --device cpu")
        device.use()
        features = self.features
        if not isinstance(features, FeaturesOnDisk | None):
            features = features.to(torch_device)
        return replace(
            self,
            features=features,
            y=None if self.y is None else self.y.to(torch_device),
            masks={name: mask.to(torch_device) for name, mask in self.masks.items()},
            edge_weight=None if self.edge_weight is None else self.edge_weight.to(torch_device),
            device=device,
        )

    def with_target(self, name: str) -> LocalGraph:
        """This graph with the labels and masks of the nodes of type ``name`` only, and its number of classes. An empty name takes
        the only type that has labels. Not collective. Raises HpcgnnError, on every rank, for a type without labels."""
        labelled = [each.name for each in self.meta.node_types if each.classes]
        if not name and not self.meta.node_types:
            return self
        if not name and len(labelled) > 1:
            raise HpcgnnError(f"{self.path} has labels of {', '.join(labelled)}: choose one with --target", agreed=True)
        kind = self.node_type_number(name or (labelled or [self.meta.node_types[0].name])[0])
        about = self.meta.node_types[kind]
        if self.y is None or not about.classes:
            has = "have" if len(labelled) > 1 else "has"
            told = f"{', '.join(labelled)} {has} labels" if labelled else "no type has any"
            raise HpcgnnError(f"{self.path} has no labels of type {about.name!r}: {told}", agreed=True)
        here = self.node_type.to(self.y.device) == kind
        y, none = self.y, float("nan") if self.y.is_floating_point() else -1 if self.y.ndim == 1 else 0
        y = torch.where(here, y, none) if y.ndim == 1 else torch.where(here[:, None], y[:, : about.classes], none)
        masks = {name: mask & here for name, mask in self.masks.items()}
        types = tuple(replace(each, classes=each.classes if each is about else 0) for each in self.meta.node_types)
        return replace(self, y=y, masks=masks, meta=replace(self.meta, num_classes=about.classes, node_types=types))

    def with_edges(self, kept: np.ndarray) -> LocalGraph:
        """This graph with only the edges that ``kept`` (e,) bool marks; its plans are built, not read. Collective."""
        lengths = np.bincount(self.destinations[kept], minlength=self.num_nodes)
        count = np.array([lengths.sum()])
        first, total = int(self.world.exscan(count)[0]), int(self.world.allreduce(count)[0])
        return replace(
            self,
            meta=replace(self.meta, num_edges=total),
            indptr=first + offsets_of(lengths),
            indices=self.indices[kept],
            edge_weight=_taken(self.edge_weight, torch.from_numpy(kept)),
            stored_edges=np.asarray(self.stored_edges)[kept] if len(self.stored_edges) else self.stored_edges,
            matches_parts=False,
        )

    def by_owner(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """An order (m,) of ``positions`` (m,) in the file, in which those of each rank follow each other, and their number by
        rank (P,), as exchanges take both."""
        owner = owners_of(positions, self.node_offsets)
        return np.argsort(owner, kind="stable"), np.bincount(owner, minlength=self.world.size)

    def local_edges(self) -> Csr:
        """(n, n) matrix of ones for the edges inside this part; its nodes are in the file's order."""
        inside = self._is_inside
        indptr = offsets_of(inside)[self.indptr - self.indptr[0]]
        # Csr checks the indices here, because a program may have changed them.
        return Csr(indptr, self.indices[inside] - self.first, self.num_nodes)

    def plan(self, strategy: str, *, weighted: bool = False) -> AggregationPlan[Csr]:
        """This rank's plan: read from the file if one for these parts is stored, else built by all ranks. Collective.
        strategy: ``pre``, ``post`` or ``hybrid``. weighted: put the graph's edge weights, if it has any, into the matrices.
        Nodes are in the file's order. HpcgnnError on every rank tells of a damaged plan, or of ranks that have read
        different plans."""
        weight = self.edge_weight if weighted else None
        plan = self.stored_plan(strategy, edges=weight is not None) or self.built_plan(strategy)
        if weight is not None:
            return with_weights(self.world, self.path, plan, host_values(weight), int(self.indptr[0]))
        return plan.map(lambda matrix: Csr(matrix.indptr, matrix.indices, matrix.num_cols, check=False))

    def stored_plan(self, strategy: str, *, edges: bool = False) -> AggregationPlan[SparseMatrix] | None:
        """This rank's plan in the file, or None where the file has none that fits. Collective. Raises HpcgnnError as
        :meth:`plan`. edges: also read the number of each entry's edge, 8 bytes an entry, which only edge weights need."""
        if not self.matches_parts:
            return None
        plan, fingerprint = None, 0
        with raise_on_all_ranks(self.world, f"read the plan in {self.path}"), PartsFile(self.path) as parts:
            if parts.uuid == self.uuid and plan_store.is_stored(parts, strategy):
                stored = StoredPlan(parts, strategy)
                plan, fingerprint = stored.part(self.world.rank, edges=edges), stored.fingerprint
        words = f"the ranks read different plans from {self.path}: give each node the same file, or remove the copies"
        same_everywhere(self.world, [plan is not None, fingerprint], words)
        if plan is not None and not self.world.imagines_others:
            self._check_peers(plan)
        return plan

    def _check_peers(self, plan: AggregationPlan[SparseMatrix]) -> None:
        """Raise HpcgnnError unless senders and receivers expect the same rows, and the plan has each edge once. Collective."""
        world = self.world
        said = np.zeros((world.size, 3), dtype=np.int64)
        said[:, :2] = plan.send_to.table(world.size)
        entries = np.diff(plan.send.indptr[offsets_of(plan.send_to.counts(world.size))])
        said[:, 2] = entries - said[:, 0]  # an entry of a post row is no edge
        said, _ = world.alltoallv(said, np.ones(world.size, dtype=np.int64))
        expected = plan.receive_from.table(world.size)
        in_received = plan.receive.indices.size - int(plan.receive_from.pre.sum())  # an entry for a pre row is no edge
        edges = plan.local.indices.size + in_received + int(said[:, 2].sum())
        with raise_on_all_ranks(world, f"use the plan in {self.path}"):
            if not np.array_equal(said[:, :2], expected):
                sender = int(np.flatnonzero((said[:, :2] != expected).any(axis=1))[0])
                wrong = f"its plan sends other rows from part {sender} to part {world.rank} than it receives"
                raise damaged(self.path, wrong)
            if edges != self.indices.size:
                raise damaged(self.path, f"its plan has {edges} edges, but part {world.rank} has {self.indices.size}")

    def relation_rows(self) -> RelationRows:
        """The rows of sums over the in-edges of each type. Collective. HpcgnnError, on every rank, for edges without types."""
        types = self.needed_edge_type()
        return RelationRows.of(index_array(types), self.destinations, self.num_nodes, self.meta.num_edge_types)

    def needed_edge_type(self) -> torch.Tensor:
        """:attr:`edge_type`. Collective. HpcgnnError, on every rank, for edges without types."""
        if (types := self.edge_type) is None:
            raise HpcgnnError(f"{self.path} has no types of edges: convert a graph with edge_type", agreed=True)
        return types

    def built_plan(self, strategy: str | np.ndarray, rows: ResultRows | None = None) -> AggregationPlan[SparseMatrix]:
        """Build this rank's plan: each rank plans the rows that it receives, and tells its peers to send them. Collective.
        strategy: see :func:`hpcgnn.plan.plan_receiver`. rows: the rows of the sums; None for a row of each node."""
        world = self.world
        with raise_on_all_ranks(world, "plan the messages"):
            check_edges(self.indptr, self.indices, self.num_nodes, self.meta.num_nodes)
        mean_edges = self.meta.num_edges / world.size
        mine = plan_receiver(
            self.indptr, self.indices, self.node_offsets, world.rank, strategy, rows, mean_edges=mean_edges
        )
        pairs, _ = world.alltoallv(mine.receive_from.table(world.size), np.ones(world.size, dtype=np.int64))
        row_counts = mine.receive_from.counts(world.size)
        entry_counts = np.diff(offsets_of(mine.wanted.lengths)[offsets_of(row_counts)])
        lengths, _ = world.alltoallv(mine.wanted.lengths, row_counts)
        sources, _ = world.alltoallv(mine.wanted.sources, entry_counts)
        edges, _ = world.alltoallv(mine.wanted.edges, entry_counts)
        send = sender_matrix(SendRows(lengths, sources, edges), self.num_nodes)
        return AggregationPlan(mine.local, send, mine.receive, PeerRows.of(pairs), mine.receive_from)


def load(
    path: str | Path,
    world: World | None = None,
    *,
    any_ranks: bool = False,
    device: str | Device = HOST_DEVICE,
    features: str = PLACES[0],
) -> LocalGraph:
    """Read this rank's part of a partitioned graph. Collective.

    Args:
        path: a file made by ``hpcgnn partition``.
        world: the ranks; None: all ranks of ``MPI_COMM_WORLD``.
        any_ranks: accept a number of ranks that differs from the number of parts, and give each rank an equal range of
            positions. Such a graph has no stored plan: its plan is built when a model is built.
        device: the device that holds the node tensors and computes: ``cpu``, ``cuda``, ``cuda:N``, ``auto`` as for
            ``--device``, or a result of ``hpcgnn.world.devices.choose_device``.
        features: ``memory``, or ``disk``: dense features stay in the file, and models read them in blocks of rows.

    Returns:
        The rank's part, with all values checked against the file's checksums.

    Raises:
        HpcgnnError: the same on every rank, if the file is missing or damaged, if ranks read different files, if the
            number of ranks differs from the number of parts, or if features cannot stay on disk.
    """
    check_path("path", path)
    check_choice("features", features, PLACES)
    check_world(world)
    world, path = whole_job() if world is None else world, Path(path)
    check_device(device, may_be_name=True)
    chosen = choose_device(world, device) if isinstance(device, str) else device
    with raise_on_all_ranks(world, f"read {path}"), PartsFile(path, advised_parts=world.size) as parts:
        matches = parts.num_parts == world.size
        if not matches and not any_ranks:
            ranks = "1 rank" if world.size == 1 else f"{world.size} ranks"
            raise HpcgnnError(
                f"{path} has {parts.num_parts} parts, but this job has {ranks}: start it with "
                f"`hpcgnn launch -n {parts.num_parts} -- COMMAND` or `mpirun -n {parts.num_parts} COMMAND`, or run "
                f"`hpcgnn partition ... --parts {world.size}`"
            )
        offsets = parts.node_offsets if matches else np.arange(world.size + 1) * parts.meta.num_nodes // world.size
        if not matches:  # no rank reads a whole part, so each rank verifies the checksums of some parts
            parts.verify(range(world.rank, parts.num_parts, world.size))
        on_disk = features == DISK
        if on_disk:
            _check_may_stay(parts)
        graph = _read_slab(world, path, parts, offsets, matches, on_disk=on_disk)
        fingerprint = parts.fingerprint
    if not world.imagines_others:
        _check_alike(graph, fingerprint)
        if graph.meta.node_types:
            _check_types(graph)
    return graph if chosen is CPU else graph.to(chosen)


def _check_alike(graph: LocalGraph, fingerprint: int) -> None:
    """Raise HpcgnnError unless all ranks read the same file, and their nodes are together all N nodes. Collective. The
    hashes of all ranks' ids, which are in range and differ, must add up to those of 0 to N-1. Wrong ids pass with a
    probability of 2**-64, and no rank needs O(N) memory."""
    world, path = graph.world, graph.path
    nodes, rank = graph.meta.num_nodes, graph.world.rank
    share = np.arange(rank * nodes // world.size, (rank + 1) * nodes // world.size)
    ids = index_array(graph.original_ids)
    said = np.array([fingerprint, sum_of_hashes(ids), sum_of_hashes(share)], np.uint64).view(np.int64)
    found = world.allgather(said).view(np.uint64)
    other = np.flatnonzero(found[:, 0] != found[0, 0])
    if other.size:
        words = f"ranks 0 and {other[0]} read different files as {path}: give all nodes the same file"
        raise HpcgnnError(words, agreed=True)
    held, wanted = found[:, 1:].sum(axis=0)
    if held != wanted:
        wrong = damaged(path, f"nodes/original_ids are not the numbers from 0 to {nodes - 1}")
        raise HpcgnnError(str(wrong), agreed=True)


def _check_types(graph: LocalGraph) -> None:
    """Raise HpcgnnError, on every rank, unless nodes and edges are those of their types. Collective."""
    world, runs = graph.world, graph.meta.type_runs(index_array(graph.original_ids), graph.first)
    runs, _ = world.alltoallv(np.tile(runs, (world.size, 1)), np.full(world.size, len(runs)))
    with raise_on_all_ranks(world, f"read {graph.path}"), PartsFile(graph.path) as parts:
        parts.check_types(graph.first, graph.first + graph.num_nodes, runs)


def _check_may_stay(parts: PartsFile) -> None:
    """Raise HpcgnnError unless the file has dense features, which can stay in it."""
    meta = parts.meta
    reason = {
        "the nodes have types, each with columns of its own": bool(meta.node_types),
        "they are sparse, so that the file holds little more than memory would": meta.x_nnz is not None,
        "there are none": not meta.num_features,
    }
    for each, applies in reason.items():
        if applies:
            raise HpcgnnError(
                f"the features of {parts.path} cannot stay on disk, because {each}: leave out --features disk"
            )


def _read_slab(
    world: World, path: Path, parts: PartsFile, offsets: np.ndarray, matches: bool, *, on_disk: bool
) -> LocalGraph:
    first, last = int(offsets[world.rank]), int(offsets[world.rank + 1])
    part = world.rank if matches else None  # each part has checksums of its own
    indptr, indices = parts.edges(first, last, part)
    labels = parts.labels(first, last, part)
    weights = parts.of_edges("weight", int(indptr[0]), int(indptr[-1]), part)
    masks = {name: parts.mask(name, first, last, part) for name in MASKS} if parts.meta.has_masks else {}
    if on_disk:
        stored = parts.on_disk("nodes/x", first, last, part)
        features: AnyFeatures = FeaturesOnDisk(stored, parts.meta.num_features)
    else:
        features = _as_features(parts.features(first, last, part), parts.meta, last - first)
    return LocalGraph(
        world=world,
        path=path,
        uuid=parts.uuid,
        meta=parts.meta,
        node_offsets=offsets,
        features=features,
        y=None if labels is None else torch.from_numpy(labels),
        masks={name: torch.from_numpy(mask) for name, mask in masks.items() if mask is not None},
        original_ids=torch.from_numpy(parts.read("nodes/original_ids", first, last, part)),
        indptr=indptr,
        indices=indices,
        edge_weight=None if weights is None else torch.from_numpy(weights),
        matches_parts=matches,
        ranks_per_node=parts.ranks_per_node,
        data=parts.data,
        stored_edges=range(int(indptr[0]), int(indptr[-1])),
    )


def _as_features(
    features: np.ndarray | sp.csr_matrix | list[TypeRows] | None, meta: GraphMeta, nodes: int
) -> AnyFeatures:
    if features is None:
        return None
    if isinstance(features, list):
        rows, blocks = (tuple(map(torch.from_numpy, each)) for each in zip(*features, strict=True))
        return FeaturesByType((nodes, meta.num_features), rows, blocks, tuple(meta.column_offsets[:-1].tolist()))
    if isinstance(features, np.ndarray):
        return torch.from_numpy(features)
    return Csr(features.indptr, features.indices, features.shape[1], features.data, check=False)


def _taken(values: torch.Tensor | None, nodes: torch.Tensor) -> torch.Tensor | None:
    return None if values is None else values[nodes.to(values.device)]


def check_edges(indptr: np.ndarray, indices: np.ndarray, owned: int, num_nodes: int) -> None:
    """Raise HpcgnnError unless the arrays, which a program may have changed, are edges from ``num_nodes`` nodes to ``owned``."""
    rising = indptr.size == owned + 1 and bool((indptr[1:] >= indptr[:-1]).all())
    if not rising or indptr[-1] - indptr[0] != indices.size:
        raise HpcgnnError("indptr of the graph in memory does not divide its indices among its nodes")
    if indices.size and not in_range(indices, 0, num_nodes - 1):
        raise HpcgnnError(f"indices of the graph in memory are not all from 0 to {num_nodes - 1}")


def asked_rows(
    world: World, positions: np.ndarray, node_offsets: np.ndarray
) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """The owned nodes that are in other ranks' halos, by their (a,) int64 place in the file's order, and their number by
    rank; and the number of this rank's halo nodes by rank. Collective. positions: (h,) ascending, of this rank's halo nodes."""
    counts = np.diff(np.searchsorted(positions, node_offsets))
    asked, asked_counts = world.alltoallv(positions, counts)
    return torch.from_numpy(asked - node_offsets[world.rank]), asked_counts, counts


def with_weights(
    world: World, path: Path, plan: AggregationPlan[SparseMatrix], weights: np.ndarray, first: int
) -> AggregationPlan[Csr]:
    """The plan with edge weights; entries that stand for no edge have weight 1. Collective. weights: (e,) of the edges that
    end on this rank, which are numbered from ``first``. path: of the file, for errors."""
    # The edges of S belong to its receivers, so this rank asks them.
    entries = np.diff(plan.send.indptr[offsets_of(plan.send_to.counts(world.size))])
    asked, counts = world.alltoallv(plan.send.edges, entries)
    with raise_on_all_ranks(world, f"use the plan in {path}"):
        theirs = asked[(asked >= 0) & ((asked < first) | (asked >= first + weights.size))]
        if theirs.size:
            raise damaged(path, f"its plan asks part {world.rank} for edge {theirs[0]} of another part")
    send, _ = world.alltoallv(_lookup(weights, asked - first, asked >= 0), counts)
    found = {id(plan.send): send} | {
        id(matrix): _lookup(weights, matrix.edges - first, matrix.edges >= 0) for matrix in (plan.local, plan.receive)
    }
    return plan.map(lambda m: Csr(m.indptr, m.indices, m.num_cols, found[id(m)], check=False))


def _lookup(values: np.ndarray, index: np.ndarray, valid: np.ndarray) -> np.ndarray:
    found = np.ones(index.size, dtype=values.dtype)
    found[valid] = values[index[valid]]
    return found
