"""npz, PyG, OGB and digits: files contain the data of the source, and messages name wrong data."""

import io
import os
import shutil
import zipfile

import h5py
import numpy as np
import pytest
import torch
from helpers import check_refused, check_same, converted, notes_of, pairs, read, save
from requires import require_module
from small_graphs import flip

import hpcgnn
from hpcgnn.data.schema import MASKS
from hpcgnn.sources.convert import convert


def test_pyg_equals_pyg(tmp_path, shared_data):
    """The file of a data set's name and that of its graph in memory hold PyG's arrays, and give them back."""
    datasets = require_module("torch_geometric.datasets")
    name, copy, root = "Cora", tmp_path / "copy", tmp_path / "read-only"
    for folder, mode in ((copy, 0o755), (root, 0o555)):
        shutil.copytree(shared_data("pyg") / name / "raw", folder / name / "raw")
        for inner, _, _ in os.walk(folder):
            os.chmod(inner, mode)
    raw = {path.relative_to(root) for path in root.rglob("*")}
    data = datasets.Planetoid(str(copy), name)[0]
    convert(f"pyg:{name}?root={root}", tmp_path / "file.h5")
    assert {path.relative_to(root) for path in root.rglob("*")} == raw  # a read-only folder stays unchanged
    hpcgnn.from_pyg(data, tmp_path / "memory.h5")
    for path in (tmp_path / "file.h5", tmp_path / "memory.h5"):
        meta, back = read(path)[0], hpcgnn.to_pyg(path, sparse=True)
        assert pairs(back.edge_index.T.numpy()) == pairs(data.edge_index.T.numpy())
        assert torch.equal(back.x.to_dense(), data.x)
        assert all(torch.equal(back[name], data[name]) for name in ("y", *MASKS))
        assert (meta.x_nnz, meta.directed) == (int(data.x.count_nonzero()), False)


def test_digits(tmp_path):
    summary = convert("digits", tmp_path / "g.h5")
    meta, edges, x, y, masks = read(tmp_path / "g.h5")
    assert (meta.num_nodes, meta.num_features, meta.num_classes, meta.directed) == (1797, 64, 10, False)
    assert (x.min(), x.max()) == (0, 1)
    assert np.bincount(edges[:, 1]).min() >= 8
    assert (edges[:, 0] != edges[:, 1]).all()
    assert summary.split_sizes == {"train_mask": 1078, "val_mask": 360, "test_mask": 359}
    check_same(converted("digits", tmp_path), x, y, masks)


SPARSE = {
    "x": None,
    "x_data": np.ones(4, np.float32),
    "x_indices": np.array([0, 1, 2, 0], np.int32),
    "x_indptr": np.array([0, 1, 2, 2, 2, 3, 4]),
    "x_shape": np.array([6, 3]),
}
NO_MASKS = dict.fromkeys(MASKS)
ALL, OTHERS = ([0, 1, 2], [3], [4]), ([4], [0, 1], [2, 3])
SPLITS = {
    name: np.array([np.isin(np.arange(6), nodes) for nodes in pair])
    for name, pair in zip(MASKS, zip(ALL, OTHERS, strict=True), strict=True)
}
UNKNOWN = np.array([[3, 3], [4, 4], [4, 4], [3, 0], [0, 3], [1, 1]])  # where there is 4
PART_UNKNOWN = np.array([[1, 0, 1], [np.nan, 1, np.nan], [np.nan] * 3, [1, np.nan, 0], [1, 0, 0], [0, 1, 0]])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_nodes": None}, "has no array 'num_nodes'"),
        ({"edge_type": np.full(6, 5000, np.uint16)}, "edge 0 has type 5000, but there are only 6 edges"),
        ({"num_nodes": np.float64(6)}, "num_nodes should be one whole number"),
        ({"num_nodes": np.int64(0), "x": None, "y": None}, "has shape|mask is|has 0 nodes"),
        ({"edge_index": np.zeros((3, 2), int)}, r"edge_index is int64 of shape \(3, 2\)"),
        ({"edge_index": np.array([[0.0, 1.5], [1, 0]])}, "edge_index is float64"),
        ({"edge_weight": np.ones(3, np.float32)}, "one number for each of the 6 edges"),
        ({"x": np.ones((5, 3))}, r"x has shape \(5, 3\), but it should be \(6, F\)"),
        ({"x": np.where(np.arange(18).reshape(6, 3) == 7, np.nan, 1)}, "x of node 2 is nan in column 1"),
        (SPARSE | {"x_indices": np.array([0, 1, 3, 0])}, "x_indices run from 0 to 3, outside of 0 to 2"),
        (SPARSE | {"x_indptr": np.array([0, 1, 2, 1, 2, 3, 4])}, "x_indptr does not rise from 0 to 4"),
        (SPARSE | {"x_data": np.array([1, 2, np.nan, 3], np.float32)}, "x of node 4 is nan in column 2"),
        (SPARSE | {"x_data": None}, "sparse features need x_data, x_indices"),
        ({"y": np.array([None] * 6, dtype=object)}, "cannot be read as npz"),
        ({"y": np.array([0, 1, 2, 0, 1, -2])}, "y of node 5 is -2"),
        ({"y": np.full((6, 2), 2)}, "all values should be 0 or 1"),
        ({"y": None}, "has masks but no labels"),
        ({"val_mask": np.array([1, 0, 0, 1, 0, 0], bool)}, "node 0 is in train_mask and val_mask"),
        ({"test_mask": np.array([0, 0, 0, 0, 1, 1], bool)}, "node 5 is in test_mask but has no label"),
        ({"train_mask": np.zeros(6, bool)}, "train_mask selects no labelled node"),
        ({"train_mask": np.ones(5, bool)}, r"train_mask is bool of shape \(5,\)"),
        ({"train_mask": np.array([0, 1, 2, 0, 0, 0])}, "train_mask is int64"),
        ({"train_mask": np.array([0, 1, 6])}, "train_mask has node 6, but node ids run from 0 to 5"),
        ({"train_mask": np.array([0, 1, 1, 0])}, r"bool of shape \(6,\), or the numbers of nodes, each once"),
        (
            {"train_idx": np.array([0.0, 1.0])} | NO_MASKS,
            "train_idx is float64 of shape .2,., but it should be the numbers",
        ),
        ({"train_mask": np.ones((3, 4), bool)}, r"train_mask has shape \(3, 4\), but it should be \(nodes,\) or"),
        (
            {"y": PART_UNKNOWN},
            r"y has 3 unknown entries \(NaN\) beside known ones, the first for node 1 in column 0: fill",
        ),
        ({"y": np.array([0, np.nan, 1, 1, 0, np.nan])}, "node 1 is in train_mask but has no label"),
        ({"y": np.where(UNKNOWN == 4, np.nan, 1)}, "node 1 is in train_mask but has no label: its row of y is NaN"),
        ({"y": np.array([[1, 0], [0, -1]] * 3)}, "should be 0 or 1, but that of node 1 is -1 in column 1"),
        ({"train_mask": None, "train_masks": np.bool_(True)} | NO_MASKS, r"train_masks has shape \(\)"),
        ({"train_masks": np.ones((0, 6), bool)} | NO_MASKS, "split=0 was given, but there are 0"),
        ({"y": np.array([0, 1, 10**12, 0, 1, -1])}, "y of node 2 is 1000000000000, but there are only 6 nodes"),
        ({"y": np.array([0, 1, 1e300, 0, 1, 0])}, "y of node 2 is infinite as float32"),
        ({"y": np.zeros(6, complex)}, "y is complex128"),
        ({"edge_index": np.full((2, 6), 2**64 - 1, np.uint64)}, "edge 0 is -1 -> -1"),
        ({"edge_weight": np.full(6, b"1")}, "one number for each of the 6 edges"),
        ({"num_nodes": np.int64(10**15), "x": None, "y": None} | NO_MASKS, "converts graphs of 1 to"),
        ({"num_nodes": np.int64(10**9), "x": None, "y": None} | NO_MASKS, "say .nodes=1000000000 if most"),
        (SPARSE | {"x_shape": np.array([6, 10**15])}, "x_shape has 1,000,000,000,000,000 columns for 4 values"),
        (SPARSE | {"x_shape": np.array([10**15, 3])}, "shapes"),
        (SPARSE | {"x_shape": np.array([6.0, np.nan])}, "x_shape is float64"),
        (SPARSE | {"x_indices": np.array([0, 1, 2, 0], complex)}, "x_data, x_indices, x_indptr have dtypes"),
        ({"y": np.zeros(5, int)}, "y is int64 of shape"),
        (
            {"edge_type": np.zeros(5, int)},
            r"edge_type is int64 of shape \(5,\), but it should be whole numbers of shape \(6,\)",
        ),
        (
            {"edge_type": np.full(6, 10**9)},
            "edge 0 has type 1000000000, but there are only 6 edges: number the types from 0",
        ),
        ({"edge_attr": np.zeros((5, 2))}, r"edge_attr is float64 of shape \(5, 2\)"),
        ({"edge_attr": np.full(6, np.inf)}, "has feature inf"),
    ],
)
def test_bad_arrays(tmp_path, changes, sentence):
    check_refused(save(tmp_path / "g.npz", **changes), tmp_path, sentence)


LINKS = {"link_source": np.array([4, 2]), "link_target": np.array([5, 3]), "link_set": np.array([2, 1])}
LINKS |= {"link_target_candidates": np.array([[0, 1, 5], [4, 4, 2]]), "edge_split": np.array([0, 0, 1, 0, 2, 0])}


def test_links_of_npz_may_have_candidates(tmp_path):
    converted(save(tmp_path / "g.npz", **LINKS), tmp_path)
    with h5py.File(tmp_path / "out.h5") as file:
        found = {f"link_{name}": values[()].tolist() for name, values in file["links"].items()}
    assert found == {name: values.tolist() for name, values in LINKS.items() if name != "edge_split"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"edge_split": None}, "need a set of each .link_set., candidates, and the sets of all edges .edge_split."),
        ({"link_target_candidates": None}, "need a set of each .link_set., candidates"),
        ({"link_set": None}, "need a set of each .link_set., candidates"),
        ({"link_source": None}, "have links/set, .*, but this graph needs links/set, links/source, "),
        ({"link_type": np.array([0, 0])}, "have links/set, .*links/type, but this graph needs "),
        ({"link_set": np.array([0, 1])}, r"links/set should be whole numbers 1 to 2 of shape \(2,\), not 0 to 1"),
        ({"link_set": np.array(2)}, r"shape \(1,\), not int64 of shape \(2,\)"),
        ({"link_source_candidates": np.array([0, 1])}, r"of shape \(2, 1\), not int64 of shape \(2,\)"),
    ],
)
def test_wrong_candidates_of_npz_are_one_sentence(tmp_path, changes, sentence):
    check_refused(save(tmp_path / "g.npz", **LINKS | changes), tmp_path, sentence)


def with_member(path, name, content, **settings):
    """The small graph, with these bytes as array ``name``."""
    source = save(path, **{name: None})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(zipfile.ZipInfo(f"{name}.npy"), content, **settings)
    return source


def npy(array, shape=None, descr=None):
    """The stored form of an array, with a header that may differ from it."""
    buffer = io.BytesIO()
    header = {"descr": descr or np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False}
    np.lib.format.write_array_header_1_0(buffer, header | {"shape": array.shape if shape is None else shape})
    return buffer.getvalue() + array.tobytes()


ZEROS = np.zeros(6, np.int64)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (npy(ZEROS, shape=(10**15,)), "int64 of shape .1000000000000000,. take 8,000,000,000,000,000 bytes"),
        (npy(ZEROS, shape=(5,)), "take 40 bytes, but there are 48"),
        (npy(ZEROS, shape=(-6,)), r"its shape is \(-6,\)"),
        (npy(ZEROS, descr="|O"), "Object arrays cannot be loaded"),
        (npy(ZEROS, descr="nonsense"), "not a valid dtype"),
        (b"", "EOF"),
        (b"\x93NUMPY\x03\x00 junk", "its format .3, 0. is none"),
    ],
)
def test_headers_of_arrays_are_compared_with_the_file(tmp_path, content, sentence):
    source = with_member(tmp_path / "g.npz", "y", content)
    check_refused(source, tmp_path, f"g.npz cannot be read as npz: array y: .*{sentence}")


def test_damaged_and_compressed_npz(tmp_path):
    path, good = tmp_path / "g.npz", npy(np.array([0, 1, 2, 0, 1, -1]))
    source = with_member(path, "y", good, compress_type=zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("else.npy", b"junk that nobody reads")
    assert converted(source, tmp_path)[0].num_classes == 3
    with_member(path, "y", good, compress_type=zipfile.ZIP_BZIP2)
    check_refused(source, tmp_path, "array y: it is compressed by another method than numpy's")
    save(path)
    flip(path, path.read_bytes().index(np.float32(17).tobytes()))  # a value of x
    check_refused(source, tmp_path, "array x: Bad CRC-32")
    for content, sentence in (
        (b"no zip", "is not an npz file: write it with numpy.savez"),
        (b"PK\x03\x04 cut", "cannot be read as npz"),
    ):
        path.write_bytes(content)
        check_refused(source, tmp_path, f"g.npz {sentence}")


@pytest.mark.parametrize("name", ["g?.npz", "g?split=0.npz", b"\xff.npz"])
def test_names_of_npz(tmp_path, name):
    save(tmp_path / "g.npz")
    path = (tmp_path / "g.npz").rename(tmp_path / (name if isinstance(name, str) else os.fsdecode(name)))
    for options in ("", "?nodes=6"):
        assert converted(f"npz:{path}{options}", tmp_path)[0].num_nodes == 6
    check_refused(f"npz:{path}?nodes=7", tmp_path, "nodes=7 was given, but there are 6")


NUMBERS = {"train_idx": np.arange(6) < 3, "val_idx": np.arange(6) == 3, "test_idx": np.arange(6) == 4}
OTHER_FORMS = {
    "numbers by the name of masks": ({"train_mask": np.array([2, 0, 1]), "val_mask": np.array([3]), "test_mask": np.array([4])},
                                     ALL, "train_mask holds the numbers of 3 nodes"),
    "masks by the name of numbers": (NUMBERS, ALL, None),
    "the first of several": ({name: masks.T for name, masks in SPLITS.items()}, ALL,
                             "train_mask holds 2 splits, of which split 0"),
    "splits first": (SPLITS, OTHERS, None),
    "nodes first, with s": ({f"{name}s": masks.T for name, masks in SPLITS.items()}, OTHERS, None),
    "one for all splits": (SPLITS | {"test_mask": np.arange(6) == 2}, (*OTHERS[:2], [2]), None),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHER_FORMS)
def test_masks_in_other_forms(tmp_path, case):
    arrays, wanted, told = OTHER_FORMS[case]
    source = save(tmp_path / "g.npz", **NO_MASKS | arrays) + "?split=1" * (wanted is not ALL)
    notes = [note for note in notes_of(source, tmp_path) if "holds" in note]
    masks = read(tmp_path / "out.h5")[-1]
    assert tuple(np.flatnonzero(masks[name]).tolist() for name in MASKS) == wanted
    assert len(notes) == bool(told)
    assert not told or told in notes[0]


def test_nodes_without_a_known_label_are_in_no_split(tmp_path):
    y = np.where(UNKNOWN == 4, np.nan, UNKNOWN % 2)
    masks = converted(save(tmp_path / "g.npz", y=y, **NO_MASKS), tmp_path, split="random:0.5,0.5,0")[-1]
    assert [int(masks[name].sum()) for name in MASKS] == [2, 2, 0]
    assert not any(mask[[1, 2]].any() for mask in masks.values())


SEVERAL = np.array([[1, 0, 0], [0, 0, 1], [1, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0]], np.uint8)
UNTRAINED = "have no training node, and cannot be learned"
NOTES = {
    "arrays that are not read: edge_feat, labels": {"labels": np.zeros(6), "edge_feat": np.zeros((6, 2))},
    "each row of y has a single 1, and is taken as independent labels": {"y": np.eye(3, dtype=int)[[0, 1, 2, 0, 1, 2]]},
    f"1 of 3 classes {UNTRAINED}: 1": {"y": SEVERAL},
    "1 of 3 classes have no node: 1": {"y": SEVERAL, **NO_MASKS},
    f"1 of 3 classes {UNTRAINED}: 2": {"train_mask": np.arange(6) < 2},
    "2 of 4 classes have no node: 0, 2; 2 never appear in y": {"y": np.array([1, 3, 1, 3, -1, 1]), **NO_MASKS},
}


@pytest.mark.parametrize("note", NOTES)
def test_what_users_should_know_is_noted(tmp_path, note):
    (found,) = notes_of(save(tmp_path / "g.npz", **NOTES[note]), tmp_path)
    assert note in found
