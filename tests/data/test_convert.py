"""Options of convert, and its behaviour when it cannot finish."""

import errno
import os

import numpy as np
import pytest
from helpers import check_refused, converted, notes_of, save

from hpcgnn import HpcgnnError
from hpcgnn.data.schema import MASKS, SINGLE_LABEL
from hpcgnn.sources import convert as convert_module
from hpcgnn.sources.convert import ConvertOptions, convert
from hpcgnn.sources.node_rules import make_split, parse_split

EDGES = "0 1\n2 1\n3 1\n1 0\n1 0\n0 1\n"


def edge_list(folder, text=EDGES):
    (folder / "e.txt").write_text(text)
    return f"edgelist:{folder / 'e.txt'}"


def test_random_split_is_exact_and_seeded(tmp_path, shared_data):
    source = f"npz:{shared_data('citeseer.npz')}"
    shares = converted(source, tmp_path, split="random:0.1,0.1,0.2")[-1]
    assert sum(mask.mean() for mask in shares.values()) < 0.5, "shares need not use all nodes"
    *_, y, masks = converted(source, tmp_path, split="random:0.6,0.2,0.2,5")
    count = int((y >= 0).sum())
    first, second = round(0.6 * count), round(0.8 * count)
    assert [int(masks[mask].sum()) for mask in MASKS] == [first, second - first, count - second]
    assert not any((masks[mask] & (y < 0)).any() for mask in MASKS)
    assert sum(mask.astype(int) for mask in masks.values()).max() == 1
    again = converted(source, tmp_path, split="random:0.6,0.2,0.2,5")[-1]
    other = converted(source, tmp_path, split="random:0.6,0.2,0.2,6")[-1]
    assert np.array_equal(again["train_mask"], masks["train_mask"])
    assert not np.array_equal(other["train_mask"], masks["train_mask"])


def test_per_class_split(tmp_path, shared_data):
    *_, y, masks = converted(f"npz:{shared_data('amazon-computers.npz')}", tmp_path, split="per-class:20,30,1")
    assert np.bincount(y[masks["train_mask"]]).tolist() == [20] * 10
    assert np.bincount(y[masks["val_mask"]]).tolist() == [30] * 10
    assert sum(int(mask.sum()) for mask in masks.values()) == y.size


def test_normalised_rows_are_of_32_bits(tmp_path):
    """The sum of many large values in a row may exceed float16."""
    x = np.full((6, 96), 60000, np.float16)
    stored = converted(save(tmp_path / "g.npz", x=x), tmp_path, row_normalise=True)[2]
    assert np.allclose(stored, 1 / 96, rtol=1e-6)


NOT_UNDERSTOOD = {
    "split": ("random:0.6,0.2", "random:0.6,0.5,0.2", "random:nan,0,0", "random:0.6,-0.2,0.2", "random:-0.5,1,0.5",
              "per-class:1.5,1", "per-class:20,-1", "halves"),
    "features": ("degree", "degree:0", "onehot:3", "random:x", "random:1,2,3", "shape:3", "degree:-1", "dense:4"),
    "labels": ("random:0", "random", "random:1,2,3", "onehot:3"),
}  # fmt: skip


@pytest.mark.parametrize("option", NOT_UNDERSTOOD)
def test_options_that_are_not_understood(tmp_path, option):
    for value in NOT_UNDERSTOOD[option]:
        check_refused(save(tmp_path / "g.npz"), tmp_path, "is not understood", **{option: value})


@pytest.mark.parametrize(
    ("changes", "options", "sentence"),
    [
        ({}, {"split": "per-class:2,1"}, "class 0 has 2 labelled nodes, --split per-class:2,1 needs 3"),
        ({}, {"split": "random:0.01,0.5,0.4"}, "train_mask selects no labelled node"),
        ({"y": None} | dict.fromkeys(MASKS), {"split": "random:1,0,0"}, "has no labels"),
        ({"y": np.ones((6, 2), np.uint8)}, {"split": "per-class:1,1"}, "needs one class a node"),
        ({}, {"labels": "random:7"}, "asks for more classes than npz:.* has nodes, 6"),
    ],
)
def test_options_that_do_not_fit_the_graph(tmp_path, changes, options, sentence):
    check_refused(save(tmp_path / "g.npz", **changes), tmp_path, sentence, **options)


def test_a_node_stays_where_it_is_when_other_nodes_lose_their_labels():
    labels, rule = np.zeros(100, np.int64), parse_split("per-class:20,30,7")

    def split():
        return make_split(rule, lambda first, last: labels[first:last], labels.size, SINGLE_LABEL, "a graph")

    before = split()
    labels[np.flatnonzero(before["test_mask"])[:40]] = -1
    after = split()
    assert after["test_mask"].sum() == 10
    assert all(np.array_equal(before[name], after[name]) for name in ("train_mask", "val_mask"))


def test_random_labels_make_a_graph_trainable(tmp_path, monkeypatch):
    source = edge_list(tmp_path, "0 1999\n")
    meta, *_, y, masks = converted(source, tmp_path, labels="random:4,7")
    assert (meta.task, meta.num_classes) == (SINGLE_LABEL, 4)
    assert meta.provenance["seed"]["labels"] == 7
    counts = np.bincount(y, minlength=4)
    assert counts.sum() == 2000
    assert counts.min() > 400
    assert [int(mask.sum()) for mask in masks.values()] == [1200, 400, 400]
    assert "labels are random, so accuracies mean nothing" in notes_of(source, tmp_path, labels="random:4")
    monkeypatch.setattr(convert_module, "_PIECE_NODES", 3)
    of_larger = converted(f"{source}?nodes=2003", tmp_path, labels="random:4,7")[-2]
    assert np.array_equal(of_larger[:2000], y), "a label depends on the seed and the id only"
    assert not np.array_equal(converted(source, tmp_path, labels="random:4,8")[-2], y)


@pytest.mark.parametrize("y", [None, np.where(np.arange(6)[:, None] == 1, np.nan, np.eye(2)[np.arange(6) % 2])])
def test_random_labels_replace_others_and_keep_masks(tmp_path, y):
    *_, found, masks = converted(save(tmp_path / "g.npz", y=y), tmp_path, labels="random:6")
    assert found.min() >= 0
    assert np.unique(found).size < 6, "a class without a node is no mistake here"
    assert masks["train_mask"].tolist() == [True, True, True, False, False, False]


def test_degree_features_count_the_stored_edges(tmp_path):
    meta, _, x, *_ = converted(edge_list(tmp_path), tmp_path, features="degree:4")
    assert (meta.num_features, meta.x_nnz) == (4, 4)
    assert x.argmax(1).tolist() == [2, 3, 0, 0]  # in-degrees 2, 4, 0, 0
    assert x.sum(1).tolist() == [1, 1, 1, 1]
    options = {"undirected": True, "self_loops": True, "features": "degree:9"}
    assert converted(edge_list(tmp_path), tmp_path, **options)[2].argmax(1).tolist() == [2, 4, 2, 2]


def test_onehot_and_random_features(tmp_path, monkeypatch):
    monkeypatch.setattr(convert_module, "_PIECE_NODES", 4)
    source = save(tmp_path / "g.npz")
    meta, _, x, *_ = converted(source, tmp_path, features="onehot")
    assert np.array_equal(x, np.eye(6))
    assert meta.x_nnz == 6
    _, _, x, *_ = converted(source, tmp_path, features="random:5,1")
    assert x.shape == (6, 5)
    assert np.unique(x).size > 25
    assert not np.array_equal(x, converted(source, tmp_path, features="random:5,2")[2])


def test_provenance(tmp_path):
    source = save(tmp_path / "g.npz")
    meta = converted(source, tmp_path, split="random:0.6,0.2,0.2,7", undirected=True)[0]
    assert meta.provenance["source"] == source
    asked = {"undirected": True, "split": "random:0.6,0.2,0.2,7"}
    assert asked.items() <= meta.provenance["options"].items()
    assert meta.provenance["seed"]["split"] == 7
    assert meta.provenance["hpcgnn"]


def test_the_old_file_stays_without_force_or_after_a_failure(tmp_path):
    source, path = save(tmp_path / "g.npz"), tmp_path / "g.h5"
    bad = save(tmp_path / "bad.npz", x=np.full((6, 3), np.nan))
    convert(source, path)
    before = path.read_bytes()
    for wrong, force, sentence in (
        (source, False, "pass --force to overwrite"),
        (bad, True, "features must be finite"),
    ):
        with pytest.raises(HpcgnnError, match=sentence):
            convert(wrong, path, ConvertOptions(force=force))
        assert path.read_bytes() == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["bad.npz", "g.h5", "g.npz"]
    convert(source, path, ConvertOptions(force=True))


def test_missing_file_and_folder(tmp_path):
    check_refused(f"npz:{tmp_path / 'none.npz'}", tmp_path, r"none.npz does not exist")
    with pytest.raises(HpcgnnError, match=r"folder .* does not exist"):
        convert("digits", tmp_path / "nowhere" / "g.h5")


@pytest.mark.parametrize("room", [0, 700_000])
def test_full_disk(tmp_path, monkeypatch, room):
    """The disk has room for the spools of edges, or not, or for almost everything."""
    left, pwrite = [room], os.pwrite

    def full_pwrite(descriptor, data, offset):
        left[0] -= len(data)
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full_pwrite)
    check_refused("digits", tmp_path, r"cannot write .*refused\.h5: No space left on device")
    assert left[0] < 0


def test_interrupt_leaves_nothing(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(convert_module, "_write_nodes", stop)
    with pytest.raises(KeyboardInterrupt):
        convert("sbm:nodes=100", tmp_path / "g.h5")
    assert not list(tmp_path.iterdir())
