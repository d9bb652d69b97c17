"""papers100M and MAG240M, read in slabs from small files in the form that OGB publishes."""

from __future__ import annotations

import gzip
import os
import pickle
import warnings
import zipfile

import h5py
import numpy as np
import pytest
import torch
from helpers import RunsCode, check_refused, check_same, converted, memory_below, pairs

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.sources import convert as convert_module
from hpcgnn.sources import open_source, slabs

NODES, EDGES, COLUMNS, CLASSES = 500, 3000, 16, 5
OWN = {"train_mask": "train", "val_mask": "valid", "test_mask": "test"}
PAPERS, MAG = "ogb:ogbn-papers100M?root={}", "ogb:mag240m?root={}"


class Published:
    """The arrays of both data sets; most nodes have no label, as in the originals."""

    def __init__(self):
        rng = np.random.default_rng(3)
        self.edges = rng.integers(0, NODES, (2, EDGES))
        self.x = rng.standard_normal((NODES, COLUMNS)).astype(np.float32)
        self.y = np.full(NODES, -1)
        labelled = rng.permutation(NODES)[:60]
        self.y[labelled] = np.arange(60) % CLASSES
        self.split = dict(zip(OWN.values(), np.split(labelled, [30, 45]), strict=True))
        self.masks = {mask: np.isin(np.arange(NODES), self.split[name]) for mask, name in OWN.items()}
        authors = rng.integers(0, 7, 90)
        self.others = {
            ("author", "affiliated_with", "institution"): np.stack([authors[:9], rng.integers(0, 2, 9)]),
            ("author", "writes", "paper"): np.stack([authors, rng.integers(0, NODES, 90)]),
        }
        self.stored_y = np.where(self.y < 0, np.nan, self.y).astype(np.float32)


DATA = Published()


def papers(root, compressed=False):
    """The folders ``raw/`` and ``split/`` of papers100M-bin."""
    folder = root / "ogbn_papers100M"
    (folder / "raw").mkdir(parents=True)
    (folder / "split" / "time").mkdir(parents=True)
    counts = {"num_nodes_list": np.array([NODES]), "num_edges_list": np.array([EDGES])}
    arrays = {"node_year": np.full((NODES, 1), 2000), "edge_index": DATA.edges, "node_feat": DATA.x}
    save = np.savez_compressed if compressed else np.savez
    save(folder / "raw" / "data.npz", **counts, **arrays)
    save(folder / "raw" / "node-label.npz", node_label=DATA.stored_y[:, None])
    for name, nodes in DATA.split.items():
        text = "".join(f"{node}\n" for node in nodes)
        (folder / "split" / "time" / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
    return folder


def mag(root):
    """The folder ``mag240m_kddcup2021``, without the labels of test nodes."""
    folder = root / "mag240m_kddcup2021"
    paper, cites = folder / "processed" / "paper", folder / "processed" / "paper___cites___paper"
    paper.mkdir(parents=True)
    cites.mkdir()
    np.save(paper / "node_feat.npy", DATA.x.astype(np.float16))
    y = DATA.stored_y.copy()
    y[DATA.split["test"]] = np.nan
    np.save(paper / "node_label.npy", y)
    np.save(paper / "node_year.npy", np.full(NODES, 2000))
    np.save(cites / "edge_index.npy", DATA.edges)
    split = {"train": DATA.split["train"], "valid": DATA.split["valid"], "test-dev": DATA.split["test"]}
    split |= {"test-whole": DATA.split["test"], "test-challenge": DATA.split["test"]}
    torch.save(split, folder / "now.pt")
    with zipfile.ZipFile(folder / "now.pt") as now, zipfile.ZipFile(folder / "split_dict.pt", "w") as then:
        for name in now.namelist():  # numpy 1 uses these names
            then.writestr(name, now.read(name).replace(b"numpy._core", b"numpy.core"))
    (folder / "now.pt").unlink()
    for key, edges in DATA.others.items():
        (folder / "processed" / "___".join(key)).mkdir()
        np.save(folder / "processed" / "___".join(key) / "edge_index.npy", edges)
    torch.save({"paper": NODES, "author": 7, "institution": 2, "num_classes": CLASSES}, folder / "meta.pt")
    return folder


@pytest.fixture
def small_slabs(monkeypatch):
    """Use small slabs, so that every array is read in many pieces."""
    monkeypatch.setattr(convert_module, "_PIECE_NODES", 64)
    monkeypatch.setattr(slabs, "_PIECE_BYTES", 100)


@pytest.mark.usefixtures("small_slabs")
@pytest.mark.parametrize("compressed", [False, True])
def test_papers100m_from_its_raw_files(tmp_path, compressed):
    papers(tmp_path, compressed)
    meta, edges, *_ = content = converted(PAPERS.format(tmp_path), tmp_path)
    assert (meta.num_nodes, meta.num_edges, meta.num_classes, meta.x_dtype) == (NODES, EDGES, CLASSES, "float32")
    assert pairs(edges) == pairs(DATA.edges.T)
    check_same(content, DATA.x, DATA.y, DATA.masks)


@pytest.mark.usefixtures("small_slabs")
def test_mag240m_keeps_its_16_bits_with_and_without_its_types(tmp_path):
    source, y = MAG.format(mag(tmp_path)), DATA.y.copy()
    y[DATA.split["test"]] = -1  # nodes whose labels are held back test nothing
    x, masks = DATA.x.astype(np.float16), DATA.masks | {"test_mask": np.zeros(NODES, bool)}
    meta, edges, *_ = content = converted(source, tmp_path)
    assert (meta.num_nodes, meta.x_dtype) == (NODES, "float16")
    assert pairs(edges) == pairs(DATA.edges.T)
    check_same(content, x.astype(np.float32), y, masks)
    converted(f"{source}&types=yes&inverse=yes", tmp_path)
    found, wanted = hpcgnn.to_pyg(tmp_path / "out.h5"), DATA.others | {("paper", "cites", "paper"): DATA.edges}
    wanted |= {(key[2], f"rev_{key[1]}", key[0]): edges[::-1] for key, edges in wanted.items()}
    assert {name: found[name].num_nodes for name in found.node_types} == {"paper": NODES, "author": 7, "institution": 2}
    assert {key: pairs(found[key].edge_index.T.numpy()) for key in found.edge_types} == {
        key: pairs(edges.T) for key, edges in wanted.items()
    }
    paper = found["paper"]
    check_same((None, None, paper.x, paper.y, paper), x, y, masks)
    with h5py.File(tmp_path / "out.h5") as file:
        assert (file["nodes/x_data"].dtype, file["nodes/x_data"].shape) == (np.float16, (NODES * COLUMNS,))


NOWHERE = dict.fromkeys(("train", "valid", "test"), np.array([NODES]))
WRITES, TYPES = "processed/author___writes___paper/edge_index.npy", "&types=yes"


@pytest.mark.parametrize(
    ("query", "path", "content", "sentence"),
    [
        (TYPES, WRITES, np.array([[0], [NODES]]),
         f"author__writes__paper: edge_index has node {NODES}, but the ids of paper run from 0 to {NODES - 1}"),
        (TYPES, WRITES, np.zeros((1, 4), int), r"int64 of shape \(1, 4\)"),
        (TYPES, "processed/paper/node_feat.npy", np.ones((9, 2), np.float16), "a row for each of 500 nodes"),
        (TYPES, "processed/paper/node_label.npy", np.ones(9, np.float32), r"paper: y is float32 of shape \(9,\)"),
        (TYPES, "meta.pt", {"paper": NODES, "institution": 2}, "does not have the number of authors under 'author'"),
        (TYPES, "split_dict.pt", NOWHERE, f"train_mask has node {NODES}"),
        ("", "meta.pt", {"paper": NODES + 1}, f"a row for each of {NODES + 1} nodes"),
        ("", "split_dict.pt", {"train": np.array([NODES])}, "'valid'"),
        ("", "split_dict.pt", NOWHERE, f"train_mask has node {NODES}, but node ids run from 0 to {NODES - 1}"),
    ],
)  # fmt: skip
def test_wrong_files_of_mag240m(tmp_path, query, path, content, sentence):
    source = MAG.format(tmp_path) + query
    check_refused(source, tmp_path, r"\?root=DIR")
    folder = mag(tmp_path)
    torch.save(content, folder / path) if path.endswith("pt") else np.save(folder / path, content)
    check_refused(source, tmp_path, sentence)


@pytest.mark.slow
def test_memory_of_typed_mag240m_follows_the_labels_only(tmp_path):
    """64 MB of features and 32 MB of edges are read in pieces; a label takes 8 bytes, and authors take none."""
    folder, papers, authors = mag(tmp_path), 100_000, 1_000_000
    torch.save({"paper": papers, "author": authors, "institution": 2}, folder / "meta.pt")
    np.save(folder / "processed" / "paper" / "node_feat.npy", np.zeros((papers, 320), np.float16))
    np.save(folder / "processed" / "paper" / "node_label.npy", (np.arange(papers) % CLASSES).astype(np.float32))
    edges = np.stack([np.arange(2_000_000) % authors, np.arange(2_000_000) % papers])
    np.save(folder / "processed" / "author___writes___paper" / "edge_index.npy", edges)
    del edges
    source_text = MAG.format(tmp_path) + "&types=yes"
    with memory_below(8_000_000 + 2 * 8 * papers):
        source, step = open_source(source_text, tmp_path), 5_000
        assert sum(chunk.src.size for chunk in source.edges(1 << 16)) == 2_000_000 + 9 + EDGES
        for first in range(0, papers, step):
            assert source.features(first, first + step).shape == (step, 320)
        for first in range(0, papers + authors, step):
            assert source.labels(first, first + step).size == len(source.masks(first, first + step)["train_mask"])


@pytest.mark.slow
@pytest.mark.parametrize("compressed", [False, True])
def test_memory_does_not_grow_with_the_files(tmp_path, compressed):
    """48 MB of features and 32 MB of edges are read in pieces, of which at most a tenth is in memory at a time."""
    rows, folder = 1_000_000, papers(tmp_path, compressed)
    save = np.savez_compressed if compressed else np.savez
    x, edges = np.zeros((rows, 12), np.float32), np.arange(4_000_000).reshape(2, -1) % rows
    save(folder / "raw" / "data.npz", num_nodes_list=[rows], num_edges_list=[2_000_000], edge_index=edges, node_feat=x)
    save(folder / "raw" / "node-label.npz", node_label=np.arange(rows) % CLASSES)
    del x, edges
    source = open_source(PAPERS.format(tmp_path), tmp_path)
    with memory_below(8_000_000):
        assert sum(chunk.src.size for chunk in source.edges(1 << 16)) == 2_000_000
        assert sum(source.features(first, first + 50_000).shape[0] for first in range(0, rows, 50_000)) == rows


# -- files that were cut short, and others -----------------------------------------------------------------------------


def overwrite(path, place, content):
    with path.open("r+b") as file:
        file.seek(place)
        file.write(content)


@pytest.mark.parametrize(("compressed", "share"), [(True, 0.5), (False, 0.999), (True, 1)])
def test_an_archive_that_was_cut_short_or_damaged(tmp_path, compressed, share):
    path = papers(tmp_path, compressed) / "raw" / "data.npz"
    if share < 1:
        os.truncate(path, int(path.stat().st_size * share))
    else:
        with zipfile.ZipFile(path) as archive:
            info = archive.getinfo("node_feat.npy")
        overwrite(path, info.header_offset + info.compress_size // 2, b"\xff" * 200)
    told = "cut short" if share < 1 else "node_feat.npy is damaged at byte"
    check_refused(PAPERS.format(tmp_path), tmp_path, f"{path}.*{told}")


@pytest.mark.parametrize(("left", "told"), [(3, ""), (90, ""), (-1, "cut short"), (None, "cannot be read as npy")])
def test_an_array_that_was_cut_short_or_has_no_header(tmp_path, left, told):
    path = mag(tmp_path) / "processed" / "paper" / "node_feat.npy"
    if left is None:
        overwrite(path, 20, bytes(20) + b"(" + bytes(87))
    else:
        os.truncate(path, left % path.stat().st_size)
    sentence = check_refused(MAG.format(tmp_path), tmp_path, f"{path}.*{told}")
    assert ("cut short" in sentence) == (left == -1)


def test_a_pickle_runs_nothing(tmp_path):
    path = mag(tmp_path) / "meta.pt"
    torch.save({"paper": RunsCode(tmp_path / "ran")}, path)
    check_refused(MAG.format(tmp_path), tmp_path, str(path))
    path.write_bytes(pickle.dumps({"paper": NODES}))  # of which torch warns
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_refused(MAG.format(tmp_path), tmp_path, str(path))


@pytest.mark.parametrize("place", ["a pipe", "an endless device"])
@pytest.mark.parametrize(
    ("write", "source", "name"),
    [
        (mag, MAG, "meta.pt"), (mag, MAG, "processed/paper/node_label.npy"), (papers, PAPERS, "raw/node-label.npz"),
        (papers, PAPERS, "split/time/train.csv.gz"),
    ],
)  # fmt: skip
def test_what_is_no_file_is_not_waited_for(tmp_path, write, source, name, place):
    path = write(tmp_path) / name
    path.unlink()
    os.mkfifo(path) if place == "a pipe" else path.symlink_to("/dev/zero")
    check_refused(source.format(tmp_path), tmp_path, f"{path} does not exist or is not a file")


def test_a_split_of_more_lines_than_nodes_is_not_read(tmp_path):
    path = papers(tmp_path) / "split" / "time" / "train.csv.gz"
    path.write_bytes(gzip.compress(b"1\n" * (16 << 20)))
    with memory_below(4 << 20):
        check_refused(PAPERS.format(tmp_path), tmp_path, "it has more numbers than there are nodes, 500")


# -- arrays in archives ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_slabs_of_an_archive_are_read_in_any_order(tmp_path, save):
    values = np.arange(40_000).reshape(2, -1)
    wrong = {"columns": np.asfortranarray(np.ones((3, 2))), "complex": np.ones(3, complex)}
    save(tmp_path / "a.npz", values=values, **wrong)
    array = slabs.open_member(tmp_path / "a.npz", "values", num_readers=2)
    for first, last in ((0, 5), (19_000, 20_000), (7, 9_000), (7, 7)):
        assert np.array_equal(array.columns(first, last), values[:, first:last])
    assert np.array_equal(array.rows(1, 2), values[1:])
    for name in wrong:
        with pytest.raises(HpcgnnError, match="should be numbers in C order"):
            slabs.open_member(tmp_path / "a.npz", name)


def test_a_disk_that_fails_while_an_archive_is_opened_is_a_sentence(tmp_path, monkeypatch):
    np.savez(tmp_path / "arrays.npz", array=np.ones(3))

    def failing(path):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(zipfile, "ZipFile", failing)
    with pytest.raises(HpcgnnError, match=r"arrays\.npz cannot be read as npz.*: .*Input/output error"):
        slabs.open_member(tmp_path / "arrays.npz", "array")
