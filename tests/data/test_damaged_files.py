"""Damaged graph files, parts files and texts: readers give the result of the whole file, or one sentence that names the file.

The graphs have the properties that the fields of ``GraphMeta`` allow, and arrays with values that the rules of
:mod:`hpcgnn.data.schema` allow, so that a new field and a new array are drawn without a new line here.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import damages
import h5py
import numpy as np
import pytest
import small_graphs
import torch
from damages import Reader, budget, change_bytes, change_hdf5, change_words, check_readers, refusal
from hypothesis import given
from hypothesis import strategies as st
from requires import EVERYTHING

import hpcgnn
from hpcgnn.data import graph_file, h5, plan_store, schema, whole_check
from hpcgnn.data.graph_file import GRAPH_KIND, GRAPH_VERSION, PartsFile, reader_of
from hpcgnn.data.schema import ATTRIBUTES, MASKS, EdgeType, GraphMeta, NodeType, Rule
from hpcgnn.data.sealing import seal
from hpcgnn.data.to_memory import to_pyg
from hpcgnn.partition import PartitionOptions, partition
from hpcgnn.sources.convert import ConvertOptions, convert
from hpcgnn.train import archive, predict
from hpcgnn.world import World
from hpcgnn.world.thread_world import on_threads, one_rank

NODES, EDGES, SPECIMENS = 24, 80, 60 if EVERYTHING else 6
TYPES = (NodeType("a", 9, 2), NodeType("b", NODES - 9, 3))
TASKS = (schema.SINGLE_LABEL, schema.MULTI_LABEL, schema.REGRESSION, schema.NO_TASK)


# -- graphs of the schema ----------------------------------------------------------------------------------------------


def drawn_meta(rng: np.random.Generator) -> GraphMeta:
    """Properties of a graph: each flag and each count of the schema by chance, and those that depend on others in agreement."""
    draw: dict[type, Callable[[], Any]] = {bool: lambda: bool(rng.integers(2)), int: lambda: int(rng.integers(1, 4))}
    values = {name: draw[kind]() for name, kind in ATTRIBUTES.items() if kind in draw}
    values |= {"num_nodes": NODES, "num_edges": EDGES, "x_nnz": 50 if rng.integers(2) else None}
    values |= {"task": TASKS[rng.integers(4)], "x_dtype": (schema.FULL, schema.HALF)[rng.integers(2)]}
    values["num_classes"] *= values["task"] != schema.NO_TASK
    if rng.integers(2):
        pairs = [(source, end) for source in (0, 1) for end in (0, 1)]
        edge_types = tuple(EdgeType(source, "to", end, values["num_edge_features"]) for source, end in pairs)
        node_types = tuple(replace(each, classes=values["num_classes"]) for each in TYPES)
        values |= {"node_types": node_types, "edge_types": edge_types, "num_edge_types": 4, "num_features": 5}
        values["x_nnz"] = sum(each.count * each.columns for each in TYPES) if values["x_by_type"] else values["x_nnz"]
    else:
        values["x_by_type"] = False
    values |= {
        name: 0 for name in values if name.endswith(("asked_links", "_candidates")) and not values["has_link_split"]
    }
    return GraphMeta(**values)


def by_rule(rule: Rule, rng: np.random.Generator) -> np.ndarray:
    """An array of values that the rule allows."""
    if rule.ends is not None:
        inside = np.sort(rng.integers(0, rule.high + 1, rule.shape[0] - 2))
        return np.array([rule.ends[0], *inside, rule.ends[1]], rule.dtype)
    if rule.dtype.kind == "f":
        return rng.standard_normal(rule.shape).astype(rule.dtype)
    return rng.integers(max(rule.low, 0), rule.high + 1, rule.shape).astype(rule.dtype)


def write_specimen(path: Path, number: int) -> None:
    """Write the graph with this number."""
    rng = np.random.default_rng(8 + number)  # the first six of which have all arrays together
    meta = drawn_meta(rng)
    rules = schema.graph_rules(meta)
    arrays = {name: by_rule(rule, rng) for name, rule in rules.items()}
    ends = np.repeat(np.arange(NODES), np.diff(arrays["edges/indptr"]))
    arrays["edges/indices"] = sources = arrays["edges/indices"][np.lexsort((arrays["edges/indices"], ends))]
    if meta.node_types:
        arrays["edges/type"] = (2 * meta.node_types_of(sources) + meta.node_types_of(ends)).astype(np.int32)
        for end, kinds in zip(("source", "target"), meta.edge_type_ends, strict=True):
            for name in {f"links/{end}", f"links/{end}_candidates"} & arrays.keys():
                low, high = (meta.node_type_offsets[kinds[arrays["links/type"]] + k] for k in (0, 1))
                arrays[name] = rng.integers(low, high, arrays[name].T.shape).T
    if meta.node_types and "nodes/x_indices" in arrays:
        kinds = np.repeat(meta.node_types_of(np.arange(NODES)), np.diff(arrays["nodes/x_indptr"]))
        arrays["nodes/x_indices"] = rng.integers(meta.column_offsets[kinds], meta.column_offsets[kinds + 1]).astype(
            np.int32
        )
    if meta.x_by_type:
        columns = np.array([each.columns for each in TYPES])[meta.node_types_of(np.arange(NODES))]
        arrays["nodes/x_indptr"] = np.cumsum([0, *columns])
    group = rng.integers(0, 3, NODES)
    arrays |= {f"nodes/{mask}": group == k for k, mask in enumerate(MASKS) if meta.has_masks}
    header = h5.new_header(GRAPH_KIND, GRAPH_VERSION) | meta.attributes()
    small_graphs.write(path, schema.layout(rules), header, arrays)


def write_files(folder: Path, number: int) -> None:
    """Write graph.h5, a graph of the schema, and parts.h5, its two parts with a plan."""
    folder.mkdir()
    write_specimen(folder / "graph.h5", number)
    partition(one_rank(), str(folder / "graph.h5"), str(folder / "parts.h5"), PartitionOptions(2))
    plan_store.store_plans(folder / "parts.h5", ["hybrid"])


def rules_of(path: Path) -> dict[str, Rule]:
    """The rules of all arrays of a file, plans included."""
    with reader_of(path)(path) as reader:
        rules = dict(reader.rules)
        if isinstance(reader, PartsFile):
            stored = plan_store.StoredPlan(reader, "hybrid")
            rules |= {f"plan/hybrid/{name}": array.rule for name, array in stored.arrays.items()}
        return rules


# -- readers -----------------------------------------------------------------------------------------------------------


def digest_of_hdf5(path: Path) -> str:
    """The digest of all arrays of a file."""
    with h5py.File(path) as file:
        return archive.digest_of({name: file[name][()].tobytes() for name in damages.names_in(file)})


def checked(path: Path) -> dict[str, Any]:
    """The summary of a file. A stored plan of other edges is no damage: ranks build theirs."""
    with reader_of(path)(path) as reader:
        found = whole_check.verify(reader)
        return {name: found[name] for name in found.keys() - {"plans", "plans_out_of_use", "arrays", "bytes"}}


def shown(path: Path) -> None:
    """``hpcgnn show`` verifies ranges of values and no checksums, so its figures are not compared."""
    with reader_of(path)(path) as reader:
        whole_check.contents(reader)


def in_memory(path: Path) -> str:
    return archive.digest_of(to_pyg(path).to_dict())


def partitioned(path: Path) -> str:
    out = path.with_name("out.h5")
    try:
        partition(one_rank(), str(path), str(out), PartitionOptions(2))
        return digest_of_hdf5(out)
    finally:
        assert [each.name for each in path.parent.iterdir() if each != out] == [path.name]
        out.unlink(missing_ok=True)


def loaded(path: Path) -> list[str]:
    def program(world: World) -> str:
        graph = hpcgnn.load(path, world)
        graph.plan("hybrid", weighted=graph.meta.weighted)
        x = graph.x
        found = {"x": x.to_dense() if x is not None and x.is_sparse_csr else x}
        found |= {"type": graph.edge_type, "attr": graph.edge_attr, "split": graph.edge_split} | graph.masks
        kept = vars(graph).items()
        found |= {name: torch.as_tensor(each) for name, each in kept if isinstance(each, np.ndarray | torch.Tensor)}
        return archive.digest_of(found)

    return on_threads(2, program)


OF_GRAPH: dict[str, Reader] = {"check": checked, "show": shown, "to_pyg": in_memory, "partition": partitioned}
OF_PARTS: dict[str, Reader] = {"check": checked, "show": shown, "load": loaded}
READERS = {"graph.h5": OF_GRAPH, "parts.h5": OF_PARTS}


@dataclass(frozen=True)
class Specimens:
    """Whole files, the results of all their readers, and an empty folder."""

    root: Path
    results: dict[Path, dict[str, object]] = field(default_factory=dict, repr=False)

    @contextlib.contextmanager
    def copy(self, source: Path) -> Iterator[Path]:
        """A copy of a file, alone in a folder, to be damaged."""
        with tempfile.TemporaryDirectory(dir=self.root) as folder:
            yield Path(shutil.copy(source, folder))


@pytest.fixture(scope="module")
def specimens(tmp_path_factory: pytest.TempPathFactory) -> Specimens:
    root = tmp_path_factory.mktemp("specimens")
    found = Specimens(root)
    for number in range(SPECIMENS):
        write_files(root / f"{number}", number)
        for source in (root / f"{number}" / name for name in READERS):
            with found.copy(source) as path:
                found.results[source] = {name: read(path) for name, read in READERS[source.name].items()}
    return found


def test_every_array_of_the_schema_is_in_a_specimen(specimens: Specimens) -> None:
    """The names of arrays are those in the source of the schema."""
    named = set(re.findall(r'"((?:nodes|edges|parts|links)/\w+)"', Path(schema.__file__).read_text()))
    found = {name for source in specimens.results for name in rules_of(source)}
    assert named - found == set()
    assert len(found) > 30, found


# -- properties --------------------------------------------------------------------------------------------------------


def resealed(path: Path) -> bool:
    """Return whether a damaged file could be given the checksums of its values."""
    return refusal(lambda: seal(path), path)[0] is None


@budget(60)
@given(data=st.data())
def test_damage_to_an_array_or_an_attribute_is_refused(data: st.DataObject, specimens: Specimens) -> None:
    source = data.draw(st.sampled_from(list(specimens.results)))
    readers, whole = READERS[source.name], specimens.results[source]
    with specimens.copy(source) as path:
        what, is_forbidden = change_hdf5(data, path, rules_of(source))
        if data.draw(st.integers(0, 2)) or not resealed(path):
            check_readers(readers, path, whole, what, "" if "attribute" in what else "check")
        else:
            check_readers(readers, path, None, f"{what}, with new checksums", "check" if is_forbidden else "")


@budget(60)
@given(data=st.data())
def test_changed_bytes_are_refused_or_change_nothing(data: st.DataObject, specimens: Specimens) -> None:
    source = data.draw(st.sampled_from(list(specimens.results)))
    with specimens.copy(source) as path:
        what = change_bytes(data, path)
        check_readers(READERS[source.name], path, specimens.results[source], what)


@budget(40)
@given(data=st.data())
def test_damaged_predictions_are_one_sentence_or_other_predictions(data: st.DataObject, specimens: Specimens) -> None:
    """They have no checksums."""
    with specimens.copy(Path(__file__).with_name("predictions-version-1.h5")) as path:
        what = change_bytes(data, path) if data.draw(st.booleans()) else change_hdf5(data, path, {})[0]
        check_readers({"check": predict.look_at_predictions}, path, None, what)


def test_a_check_that_is_removed_is_noticed(specimens: Specimens, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the comparison of an array with its checksum, and of a graph with its digests, damage changes a result."""
    sources = (each for each in specimens.results if each.name == "parts.h5" and "nodes/x" in rules_of(each))
    source, what = next(sources), "another feature"
    whole = specimens.results[source]
    with specimens.copy(source) as path:
        with h5py.File(path, "r+") as file:
            file["nodes/x"][0, 0] += 1
        assert check_readers(OF_PARTS, path, whole, what, "check") == {"check", "load"}
        look = graph_file.look
        monkeypatch.setattr(
            graph_file, "look", lambda array, rows, out, rule, slab, expected: look(array, rows, out, rule, slab, None)
        )
        monkeypatch.setattr(graph_file.SlabReader, "digests", {})
        with pytest.raises(AssertionError, match="load accepts another feature, with another result"):
            check_readers({"load": loaded}, path, whole, what)
        with pytest.raises(AssertionError, match="check accepts another feature"):
            check_readers({"check": checked}, path, whole, what, "check")


# -- texts of sources --------------------------------------------------------------------------------------------------

TEXTS = {
    "edgelist": "# a comment\n0 1\n1 2\n4 0\n",
    "edgelist, weights": "0,1,0.5\n1,2,2\n4,0,1e-3\n",
    "metis": "3 2\n% a comment\n2\n1 3\n2\n",
    "metis, weights": "3 2 011 1\n7 2 5\n7 1 5 3 6\n7 2 6\n",
    "mtx": "%%MatrixMarket matrix coordinate real general\n3 3 3\n1 2 0.5\n2 3 2\n3 3 1\n",
}


@budget(80)
@given(data=st.data(), name=st.sampled_from(sorted(TEXTS)))
def test_a_changed_text_is_one_sentence_or_another_graph(data: st.DataObject, name: str, specimens: Specimens) -> None:
    """A text has no checksum, so another graph is right; that it is the text's is compared in test_text_sources.py."""
    with tempfile.TemporaryDirectory(dir=specimens.root) as folder:
        path = Path(folder) / "text.txt"
        path.write_text(TEXTS[name])
        what = change_words(data, path)
        source = f"{name.partition(',')[0]}:{path}"
        error, _ = refusal(lambda: convert(source, path.with_name("out.h5"), ConvertOptions()), path)
        left = {each.name for each in path.parent.iterdir()} - {path.name}
        assert left == (set() if error else {"out.h5"}), what
        if not error:
            checked(path.with_name("out.h5"))
