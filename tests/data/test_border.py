"""Damaged files: readers refuse them in one sentence with the file and the dataset, on all ranks."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import small_graphs
from rank_pool import ThreadPool
from ranks import border
from requires import EVERYTHING
from small_graphs import flip

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data import plan_store
from hpcgnn.data.graph_file import GraphFile, PartsFile
from hpcgnn.data.schema import GraphMeta
from hpcgnn.data.sealing import seal

HERE = Path(__file__).parent
NODES, PARTS = 60, 2


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A weighted graph in two parts with a plan; sparse features."""
    path = tmp_path_factory.mktemp("whole") / "parts.h5"
    graph = small_graphs.with_typed_edges(small_graphs.random_multigraph(weighted=True))
    return small_graphs.in_parts(path, graph, PARTS, ["hybrid"])


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    """A copy of the file, to be damaged."""
    return Path(shutil.copy(whole, tmp_path / "damaged.h5"))


def without_checksums(path: Path) -> Path:
    """Remove the checksums, as in version 1, so that wrong values must be found by themselves."""
    with h5py.File(path, "r+") as file:
        for group in (file, *file["plan"].values()):
            del group["checksums"]
            del group.attrs["attributes_checksum"]
        file.attrs["version"] = 1
    return path


def check_accepted(path: Path, ranks: int = PARTS) -> None:
    assert ThreadPool(ranks).run(border.refused, [path], "hybrid", ranks != PARTS) == [None] * ranks


def sentence_of(path: Path, ranks: int = PARTS, strategy: str = "hybrid") -> str:
    """The sentence that all ranks raise."""
    answers = ThreadPool(ranks).run(border.refused, [path], strategy, ranks != PARTS)
    assert answers[0] is not None, "accepted"
    assert answers == [answers[0]] * ranks
    sentence, agreed = answers[0]
    assert agreed
    assert str(path) in sentence
    assert "\n" not in sentence
    return sentence


# Changes of a file.


def put(file: h5py.File, name: str, index: object, value: object) -> None:
    """Store ``value``, or what a function makes of the file, in a dataset."""
    file[name][index] = value(file) if callable(value) else value


def attribute(file: h5py.File, name: str, value: object, group: str = "/") -> None:
    """Set an attribute, to a value or to what a function makes of its value."""
    before = file[group].attrs.get(name)
    file[group].attrs.pop(name, None)
    file[group].attrs[name] = value(before) if callable(value) else value


def removed(file: h5py.File, name: str) -> None:
    del file[name]


def same_first_id(file: h5py.File) -> None:
    """The ids of each part ascend, but both parts have the id 0, and another id is missing."""
    ids, second = file["nodes/original_ids"], int(file["parts/node_offsets"][1])
    ids[second] = ids[0] = 0


def one_more_checksum(file: h5py.File) -> None:
    row = sorted(name for name in file["plan/hybrid"] if name != "checksums").index("recv_offsets")
    file["plan/hybrid/checksums"][row, 1] = 1


PLAN = "plan/hybrid/"
DAMAGE = {
    "index of a plan of the next part": (put, PLAN + "L_indices", 5, lambda file: file["parts/node_offsets"][1], "L_indices"),
    "received row of a plan": (put, PLAN + "R_indices", -1, 10**6, "R_indices"),
    "plan's offsets beyond the array": (put, PLAN + "L_offsets", (-1, 1), 10**15, "L_indices"),
    "plan's offsets fall": (put, PLAN + "S_offsets", (1, 0), 10**6, "S_offsets"),
    "plan's offsets of other rows": (put, PLAN + "L_offsets", (1, 0), 1, "L_offsets"),
    "plan's first offset": (put, PLAN + "recv_offsets", 0, 1, "recv_offsets"),
    "plan's indptr falls": (put, PLAN + "L_indptr", 3, 10**9, "L_indptr"),
    "plan's indptr ends early": (put, PLAN + "L_indptr", 0, 1, "L_indptr"),
    "edge of no part": (put, PLAN + "S_edges", -1, 10**9, "S_edges"),
    "edge of another part": (put, PLAN + "L_edges", -1, 0, "L_edges"),
    "edge of another part, received": (put, PLAN + "R_edges", -1, 0, "R_edges"),
    "a plan's own peer": (put, PLAN + "recv_peers", 0, 0, "recv_peers"),
    "peer that does not exist": (put, PLAN + "send_peers", 0, PARTS, "send_peers"),
    "rows of a pair": (put, PLAN + "recv_post", 0, 10**9, "recv_post"),
    "indptr falls": (put, "edges/indptr", 5, 10**3, "edges/indptr"),
    "indptr begins late": (put, "edges/indptr", 0, 1, "edges/indptr"),
    "indptr ends early": (put, "edges/indptr", -1, 400, "edges/indptr"),
    "label": (put, "nodes/y", 0, 10**12, "nodes/y"),
    "id twice": (put, "nodes/original_ids", 1, lambda file: file["nodes/original_ids"][0], "nodes/original_ids"),
    "id of another part": (same_first_id, "nodes/original_ids"),
    "offsets of parts": (put, "parts/node_offsets", 1, 10**6, "parts/node_offsets"),
    "10^15 nodes": (attribute, "num_nodes", 10**15, "(1000000000000001,)"),
    "10^12 classes": (attribute, "num_classes", 10**12, "num_classes"),
    "10^9 parts": (attribute, "num_parts", 10**9, "parts/node_offsets"),
    "provenance": (attribute, "provenance", "{", "attribute"),
    "provenance of a number": (attribute, "provenance", "3", "provenance is not a JSON object"),
    "version of a plan": (attribute, "plan_version", "one", "plan/hybrid", "plan_version"),
    "no rank on a node": (attribute, "ranks_per_node", 0, "attribute ranks_per_node is 0"),
    "more ranks on a node than there are": (attribute, "ranks_per_node", PARTS + 1, f"attribute ranks_per_node is {PARTS + 1}"),
}  # fmt: skip
# Changes that the checksums show.
CHANGES = {
    "directed": (attribute, "directed", lambda value: np.bool_(not value), "attributes"),
    "uuid": (attribute, "uuid", lambda value: value[::-1], "attributes"),
    "num_classes": (attribute, "num_classes", lambda value: value + 1, "attributes"),
    "version": (attribute, "version", 1, "version 1"),  # in which files had no checksums
    "no checksums": (removed, "checksums", "no checksums"),
    "a checksum that nothing needs": (one_more_checksum, "recv_offsets"),
}


@pytest.mark.parametrize("name", [*DAMAGE, *CHANGES])
def test_what_the_schema_forbids_and_what_checksums_show_is_refused(path: Path, name: str) -> None:
    if name in DAMAGE:
        without_checksums(path)
    function, *arguments, words = (DAMAGE | CHANGES)[name]
    with h5py.File(path, "r+") as file:
        function(file, *arguments)
    assert words in sentence_of(path)


@pytest.mark.parametrize("text", ["null", "NaN", "3", "[" * 5000, "[3]", "1" * 5000])
@pytest.mark.parametrize("name", ["node_types", "edge_types"])
def test_types_that_are_no_list_of_records_are_wrong(name: str, text: str) -> None:
    attributes = small_graphs.with_types().meta().attributes()
    assert GraphMeta.from_attributes(attributes).node_types
    with pytest.raises((ValueError, TypeError, RecursionError)):
        GraphMeta.from_attributes(attributes | {name: text})


def test_masks_are_zeros_and_ones(path: Path) -> None:
    with h5py.File(without_checksums(path)) as file:
        offset = file["nodes/val_mask"].id.get_offset()
    flip(path, offset + 4, 0b10)
    assert "nodes/val_mask holds" in sentence_of(path)


def test_a_heap_in_which_hdf5_would_loop_is_refused(path: Path) -> None:
    """Such a heap holds the text of attributes; an object of size 0 is then followed by itself."""
    content = path.read_bytes()
    place = content.index(b"GCOL") + 16
    path.write_bytes(content[:place] + bytes(64) + content[place + 64 :])
    assert "heap" in sentence_of(path)
    graph = Path(shutil.copy(HERE / "graph-version-1.h5", path.with_name("graph.h5")))
    content = graph.read_bytes()
    place = content.index(b"GCOL") + 8
    for size in (0, 1 << 40):
        graph.write_bytes(content[:place] + size.to_bytes(8, "little") + content[place + 8 :])
        with pytest.raises(HpcgnnError, match="heap"), GraphFile(graph):
            pass


def test_the_file_itself_is_whole(path: Path) -> None:
    check_accepted(path)
    check_accepted(path, ranks=3)
    check_accepted(without_checksums(path))


# -- pairs of ranks ----------------------------------------------------------------------------------------------------


def test_a_plan_whose_ranks_disagree_is_refused_before_rows_travel(path: Path) -> None:
    with h5py.File(without_checksums(path), "r+") as file:
        post, pre = file[PLAN + "send_post"], file[PLAN + "send_pre"]
        assert pre[0] > 0
        post[0], pre[0] = post[0] + 1, pre[0] - 1  # as many rows, but different ones
    assert "sends other rows" in sentence_of(path)
    with PartsFile(path) as parts, pytest.raises(HpcgnnError, match="do not describe the same pairs"):
        plan_store.StoredPlan(parts, "hybrid").pairs()


def check_different(one: Path, other: Path) -> None:
    answers = ThreadPool(PARTS).run(border.refused, [one, other])
    assert all(answer is not None and answer[1] and "different" in answer[0] for answer in answers), answers


def test_ranks_that_read_different_files_all_say_so(path: Path, whole: Path, tmp_path: Path) -> None:
    graph = small_graphs.random_multigraph(seed=4, weighted=True)
    check_different(whole, small_graphs.in_parts(tmp_path / "other.h5", graph, PARTS))
    with h5py.File(path, "r+") as file:
        file["nodes/x"][0, 0] += 1
    seal(path)
    with h5py.File(path, "r+") as file, h5py.File(whole) as other:
        file.attrs.update(
            other.attrs
        )  # each copy is valid, and has the digests of the other: only the checksums show it
    check_different(whole, path)
    shutil.copy(whole, path)
    with h5py.File(path, "r+") as file:
        removed(file, "plan")  # as in a copy on one node, to which no plan was added
    check_different(whole, path)


# -- checksums ---------------------------------------------------------------------------------------------------------


def places(path: Path) -> list[tuple[str, int, int]]:
    """``(dataset, part, byte)``: a byte in the middle of each part's slab of each dataset, plans included."""
    found = []
    with PartsFile(path) as parts, h5py.File(path, locking=False) as file:
        plan = plan_store.StoredPlan(parts, "hybrid")
        for reader, prefix in ((parts, ""), (plan, PLAN)):
            for name in reader.arrays:
                dataset = file[prefix + name]
                for part in range(PARTS):
                    is_small = name.endswith("offsets")
                    first, last = (0, dataset.shape[0]) if is_small else reader.slab_rows(name, part)
                    row_bytes = dataset.nbytes // dataset.shape[0]
                    if last > first:
                        found.append((prefix + name, part, dataset.id.get_offset() + (first + last) // 2 * row_bytes))
    return found


@pytest.mark.slow
def test_a_flipped_bit_anywhere_is_named(whole: Path, tmp_path: Path) -> None:
    targets = places(whole)
    assert len(targets) >= 2 * 20
    for name, part, place in targets if EVERYTHING else targets[::3]:
        path = Path(shutil.copy(whole, tmp_path / "flipped.h5"))
        flip(path, place)
        sentence = sentence_of(path)
        assert name in sentence, (name, sentence)
        assert f"part {part}" in sentence or name.endswith("offsets"), (name, sentence)
        if part == 1 and not name.startswith("plan"):
            assert name in sentence_of(path, ranks=3), "any number of ranks looks at all parts"


def swap_first(dataset: h5py.Dataset) -> None:
    dataset[:2] = dataset[:2][::-1]


def test_sealing_accepts_what_was_changed_on_purpose(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["nodes/x"][0, 0] += 1
        swap_first(file[PLAN + "L_edges"])
    assert "checksum of nodes/x (part 0)" in sentence_of(path)
    seal(path)
    check_accepted(path)


# -- version 1 ---------------------------------------------------------------------------------------------------------


def test_files_of_version_1_are_read(tmp_path: Path) -> None:
    """The file was written by hpcgnn before it had checksums."""
    check_accepted(HERE / "parts-version-1.h5")
    with PartsFile(HERE / "parts-version-1.h5") as parts:
        assert parts.checksums is None
        assert plan_store.StoredPlan(parts, "hybrid").pairs()[0].size == 2
    path = Path(shutil.copy(HERE / "parts-version-1.h5", tmp_path / "parts.h5"))
    assert plan_store.store_plans(path, ["hybrid", "post"]) == ["post"]
    assert ThreadPool(2).run(border.refused, [path], "post") == [None] * 2
    with h5py.File(path, "r+") as file:
        swap_first(file["plan/post/L_edges"])
    assert "checksum of plan/post/L_edges (part 0)" in sentence_of(path, strategy="post")


def test_attributes_that_hdf5_cannot_read_are_a_sentence(path: Path) -> None:
    """HDF5 keeps many attributes in blocks with checksums: the damaged block determines which of them can be read."""
    with h5py.File(path, "r+", libver="latest") as file:
        for name in ("graph_uuid", "method", "objective", "balance"):
            file.attrs[name] = name * 20
        for number in range(60):
            file.attrs[f"note {number}"] = "x" * 40
    content = path.read_bytes()
    blocks = [match.start() for match in re.finditer(b"FHDB", content)]
    assert len(blocks) > 2
    for block in blocks:
        path.write_bytes(content[: block + 60] + b"\xff" * 16 + content[block + 76 :])
        with pytest.raises(HpcgnnError, match=re.escape(str(path))):
            PartsFile(path)


def test_numbers_too_wide_for_numpy_are_a_sentence(tmp_path: Path) -> None:
    path = shutil.copy(HERE / "graph-version-3.h5", tmp_path)
    with h5py.File(path, "r+") as file:
        wide = h5py.h5t.IEEE_F64LE.copy()
        wide.set_size(32)
        wide.set_precision(256)
        wide.set_fields(255, 224, 31, 0, 224)
        space = file["nodes/y"].id.get_space()
        del file["nodes/y"]
        h5py.h5d.create(file.id, b"nodes/y", wide, space)
    with pytest.raises(HpcgnnError, match="nodes/y holds values that no program here can read"):
        GraphFile(path)
