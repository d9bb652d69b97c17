"""The loaders of PyG and OGB: their data, their questions and errors, and pickles among their files."""

import errno
import gzip
import io
import pickle
import shutil
import sys
import urllib.error
import zipfile
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from helpers import RunsCode, check_refused, converted, pairs
from requires import require_module
from source_writers import write_csv

import hpcgnn
from hpcgnn import HpcgnnError
from hpcgnn.data import whole_check
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.partition import PartitionOptions, partition
from hpcgnn.sources.loaders import loading, plain_pickles
from hpcgnn.world.thread_world import on_threads


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("pyg:NoSuchGraph", "has no data set 'NoSuchGraph'"),
        ("pyg:Cora?root={empty}&split=2", "cannot be loaded from|split=2 is asked for"),
        ("ogb:ogbn-nothing?root={empty}", "cannot be loaded from .*Invalid dataset name"),
    ],
)
def test_loader_failures(tmp_path, tmp_path_factory, monkeypatch, source, sentence):
    require_module("torch_geometric")
    require_module("ogb")
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")  # no server listens here, as without a network
    check_refused(source.format(empty=tmp_path_factory.mktemp("empty")), tmp_path, sentence)


def fails(error):
    def failing(*_):
        raise error

    return failing


@pytest.mark.parametrize(
    ("load", "sentence"),
    [
        (
            fails(ConnectionResetError("reset")),
            "ConnectionResetError: reset; without a network, copy the downloaded files",
        ),
        (
            fails(urllib.error.URLError("no name")),
            "URLError: .*no name.*; without a network, copy the downloaded files",
        ),
        (fails(OSError(errno.ENOSPC, "No space left on device")), "No space left on device$"),
        (fails(TypeError("f() missing 1 required positional argument: 'name'")), "write CLASS/NAME, such as"),
        (fails(SystemExit(-1)), "the loader has given up, as after the answer no to its question about a download$"),
        (fails(ValueError("odd")), "ValueError: odd; if the data set's files there are damaged, delete them, and run"),
        (
            lambda root: zipfile.ZipFile(root / "a.zip"),
            r"BadZipFile: .* was cut short: delete \S+/a.zip, and run the command",
        ),
        (
            lambda root: gzip.decompress((root / "s" / "raw" / "e.gz").read_bytes()),
            r"EOFError: .*: delete \S+/a.zip and \S+/s/raw/e.gz, and",
        ),
        (
            lambda root: input("This will download 1.38GB. Will you proceed? (y/N)\n"),
            r"loader asks 'This will .* .y/N.', and there",
        ),
    ],
)
def test_the_errors_of_loaders_have_their_own_advice(tmp_path, monkeypatch, load, sentence):
    (tmp_path / "s" / "raw").mkdir(parents=True)
    (tmp_path / "a.zip").write_bytes(b"PK\x03\x04 and no more" if "zip" in sentence else b"")
    (tmp_path / "s" / "raw" / "e.gz").write_bytes(gzip.compress(b"0,1\n" * 1000)[:-9])
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(HpcgnnError, match=sentence) as told, loading("ogb:x", tmp_path):
        load(tmp_path)
    assert "\n" not in str(told.value)


def test_questions_of_loaders_do_not_hold_up_a_job(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with loading("ogb:x", tmp_path, may_download=True):
        assert input("This will download 1.38GB. Will you proceed? (y/N)\n") == "y"
    with loading("ogb:x", tmp_path):
        assert input("Will you update the dataset now? (y/N)\n") == "n"
    assert "The files that are there are read." in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True, readline=lambda: "N\n"))
    with loading("ogb:x", tmp_path):
        assert input("Will you proceed?") == "N"


def test_a_large_download_in_a_job_is_refused_with_what_to_add(tmp_path, monkeypatch):
    require_module("ogb")
    from ogb.utils import url

    info = SimpleNamespace(info=lambda: {"Content-Length": str(3 << 30)})
    monkeypatch.setattr(url.ur, "urlopen", lambda _: info)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    source = f"ogb:ogbn-products?root={tmp_path}"
    check_refused(source, tmp_path, r"asks 'This will download 3.00GB. Will you proceed\? .*, add \?download=yes$")
    check_refused(f"{source}&download=sure", tmp_path, "download=sure should be yes or no")


def test_a_loader_that_fails_leaves_no_folder_of_processed_files(tmp_path, shared_data):
    require_module("torch_geometric.datasets")
    raw = tmp_path / "Cora" / "raw"
    shutil.copytree(shared_data("pyg") / "Cora" / "raw", raw)
    whole = (raw / "ind.cora.x").read_bytes()
    (raw / "ind.cora.x").write_bytes(whole[:1000])
    check_refused(f"pyg:Cora?root={tmp_path}", tmp_path, "if the data set's files there are damaged, delete them")
    assert [path.name for path in (tmp_path / "Cora").iterdir()] == ["raw"]
    (raw / "ind.cora.x").write_bytes(b"")
    check_refused(
        f"pyg:Cora?root={tmp_path}", tmp_path, f"was cut short: delete {raw}/ind.cora.x, and run the command again"
    )


def write_ogb(base, split, sets, tables):
    """A folder of OGB with tables, and with the numbers of nodes of the training, validation and test set."""
    for name, rows in tables.items():
        write_csv(base / "raw" / f"{name}.csv.gz", rows)
    for name, nodes in zip(("train", "valid", "test"), sets, strict=True):
        write_csv(base / "split" / split / f"{name}.csv.gz", [[node] for node in nodes])
    (base / "processed").mkdir()
    (base / "RELEASE_v1.txt").touch()


def test_ogb_through_its_own_loader(tmp_path):
    """A small graph in the folder layout of ogbn-arxiv is read twice: from the raw files, and from ogb's cache."""
    require_module("ogb")
    base, source = tmp_path / "ogbn_arxiv", f"ogb:ogbn-arxiv?root={tmp_path}"
    edges = [(0, 1), (2, 3), (3, 0), (4, 1)]
    features = np.round(np.random.default_rng(0).normal(size=(5, 3)), 3)
    tables = {"edge": edges, "num-node-list": [[5]], "num-edge-list": [[4]], "node-feat": features}
    tables |= {"node_year": [[2000]] * 5, "node-label": [[0], [1], [2], [1], [0]]}
    write_ogb(base, "time", ([0, 1, 2], [3], [4]), tables)
    for _ in range(2):
        meta, stored, x, y, masks = converted(source, tmp_path)
        assert pairs(stored) == sorted(edges)
        assert np.allclose(x, features)
        assert y.tolist() == [0, 1, 2, 1, 0]
        assert np.flatnonzero(masks["train_mask"]).tolist() == [0, 1, 2]
        assert meta.directed
    assert (base / "processed/data_processed").exists()
    torch.save(RunsCode(tmp_path / "marker"), base / "processed/data_processed")
    check_refused(source, tmp_path, r"ogb:ogbn-arxiv.* has a pickle that names _*builtins?_*\.exec, which is not data")


def test_features_of_edges_of_ogb(tmp_path):
    """The layout of ogbn-proteins: several labels for each node, and features of edges only; its loader adds reverse edges."""
    require_module("ogb")
    base, edges = tmp_path / "ogbn_proteins", [(0, 1), (1, 2), (3, 0)]
    feat = np.arange(24).reshape(3, 8) / 8
    tables = {"edge": edges, "edge-feat": feat, "num-node-list": [[4]], "num-edge-list": [[3]]}
    tables |= {"node-label": np.eye(4, 112, dtype=int), "node_species": [[9606]] * 4}
    write_ogb(base, "species", ([0, 1], [2], [3]), tables)
    meta, *_ = converted(f"ogb:ogbn-proteins?root={tmp_path}", tmp_path)
    assert (meta.num_edge_features, meta.num_classes, meta.task) == (8, 112, "multi-label")
    found = hpcgnn.to_pyg(tmp_path / "out.h5")
    wanted = {pair: row for (a, b), row in zip(edges, feat.tolist(), strict=True) for pair in ((a, b), (b, a))}
    assert {
        tuple(pair): row for pair, row in zip(found.edge_index.T.tolist(), found.edge_attr.tolist(), strict=True)
    } == wanted


def write_links(base, kind, tables, **sets):
    """OGB's files of a graph, whose links have a split."""
    for name, rows in tables.items():
        write_csv(base / "raw" / f"{name}.csv.gz", rows)
    (base / "split" / kind).mkdir(parents=True)
    (base / "processed").mkdir()
    (base / "RELEASE_v1.txt").touch()
    for name, links in {"train": {}, **sets}.items():
        torch.save({key: np.array(each) if key != "edge" else torch.tensor(each) for key, each in links.items()},
                   base / "split" / kind / f"{name}.pt")  # fmt: skip


def links_of_sets(path):
    """(source, target) of each edge, its type or 0, its weight or 1, and its set, sorted."""
    with h5py.File(path) as file:
        edges = file["edges"]
        targets = np.repeat(np.arange(edges["indptr"].size - 1), np.diff(edges["indptr"][:]))
        values = [edges[name][:] if name in edges else np.full(targets.size, usual)
                  for name, usual in (("type", 0), ("weight", 1), ("split", -1))]  # fmt: skip
        return sorted(
            zip(edges["indices"][:].tolist(), targets.tolist(), *(each.tolist() for each in values), strict=True)
        )


def test_links_of_ogb_keep_their_sets(tmp_path):
    """The layouts of ogbl-wikikg2, with one kind of nodes, of ogbl-collab, with weights and both directions, and of
    ogbl-biokg, with several kinds of nodes."""
    require_module("ogb")
    tables = {"edge": [(0, 1), (2, 3), (3, 0)], "edge_reltype": [[1], [0], [2]]}
    tables |= {"num-node-list": [[5]], "num-edge-list": [[3]]}
    valid = {"head": [4], "relation": [2], "tail": [1]}
    test = {"head": [1, 0], "relation": [0, 1], "tail": [4, 2]}
    write_links(tmp_path / "ogbl_wikikg2", "time", tables, valid=valid, test=test)
    meta, *_ = converted(f"ogb:ogbl-wikikg2?root={tmp_path}", tmp_path)
    assert (meta.num_nodes, meta.num_edge_types) == (5, 3)
    wanted = [(0, 1, 1, 1, 0), (0, 2, 1, 1, 2), (1, 4, 0, 1, 2), (2, 3, 0, 1, 0), (3, 0, 2, 1, 0), (4, 1, 2, 1, 1)]
    assert links_of_sets(tmp_path / "out.h5") == wanted

    tables = {"edge": [(0, 1)], "edge_weight": [[3]], "edge_year": [[1999]], "node-feat": [[1.0], [2.0], [3.0]]}
    tables |= {"num-node-list": [[3]], "num-edge-list": [[1]]}
    sets = {"valid": {"edge": [[1, 2]], "weight": [2]}, "test": {"edge": [[2, 0]], "weight": [4]}}
    write_links(tmp_path / "ogbl_collab", "time", tables, **sets)
    converted(f"ogb:ogbl-collab?root={tmp_path}", tmp_path)
    wanted = [(0, 1, 0, 3, 0), (0, 2, 0, 4, 3), (1, 0, 0, 3, 0), (1, 2, 0, 2, 1), (2, 0, 0, 4, 2), (2, 1, 0, 2, 3)]
    assert links_of_sets(tmp_path / "out.h5") == wanted

    keys = {("protein", "protein-protein", "protein"): ((0, 2), 4), ("disease", "of", "protein"): ((1, 2), 3)}
    tables = {"num-node-dict": [("protein", "disease"), (3, 2)], "triplet-type-list": keys}
    for key, (edge, kind) in keys.items():
        there = f"relations/{'___'.join(key)}"
        tables |= {f"{there}/edge": [edge], f"{there}/edge_reltype": [[kind]], f"{there}/num-edge-list": [[1]]}
    kinds = {"head_type": ["disease", "protein"], "tail_type": ["protein", "protein"]}
    links = {"head": [0, 1], "relation": [3, 4], "tail": [1, 0]} | kinds
    test = {name: each[:1] for name, each in links.items()}
    write_links(tmp_path / "ogbl_biokg", "random", tables, valid=links, test=test)
    meta, *_ = converted(f"ogb:ogbl-biokg?root={tmp_path}", tmp_path)
    assert [(each.name, each.count) for each in meta.node_types] == [("disease", 2), ("protein", 3)]
    assert meta.edge_type_names == [("disease", "of", "protein"), ("protein", "protein-protein", "protein")]
    wanted = [(0, 3, 0, 1, 1), (0, 3, 0, 1, 2), (1, 4, 0, 1, 0), (2, 4, 1, 1, 0), (3, 2, 1, 1, 1)]
    assert links_of_sets(tmp_path / "out.h5") == wanted


CITATION = {"source_node": [3, 4], "target_node": [0, 1], "target_node_neg": [[1, 2, 4], [2, 2, 0]]}
WIKI = {"head": [4, 0], "relation": [2, 0], "tail": [1, 3], "head_neg": [[0, 1], [2, 4]], "tail_neg": [[3], [0]]}
BIO = {
    "head": [0, 1],
    "relation": [3, 4],
    "tail": [1, 0],
    "head_type": ["disease", "protein"],
    "tail_type": ["protein"] * 2,
}
BIO |= {"head_neg": [[1, 0], [2, 0]], "tail_neg": [[0, 2], [2, 2]]}


def write_with_negatives(folder, name, **changes):
    """A data set of OGB with fixed negatives: the name of its source. changes: of the test set's arrays."""
    if name == "ogbl-biokg":
        keys = {("protein", "protein-protein", "protein"): ((0, 2), 4), ("disease", "of", "protein"): ((1, 2), 3)}
        tables = {"num-node-dict": [("protein", "disease"), (3, 2)], "triplet-type-list": keys}
        for key, (edge, kind) in keys.items():
            there = f"relations/{'___'.join(key)}"
            tables |= {f"{there}/edge": [edge], f"{there}/edge_reltype": [[kind]], f"{there}/num-edge-list": [[1]]}
    else:
        tables = {"edge": [(0, 1), (2, 3), (3, 0)], "num-node-list": [[5]], "num-edge-list": [[3]]}
        tables |= (
            {"edge_reltype": [[1], [0], [2]]}
            if name == "ogbl-wikikg2"
            else {"node-feat": [[1.0]] * 5, "node_year": [[1]] * 5}
        )
    links, kind = {"ogbl-citation2": (CITATION, "time"), "ogbl-wikikg2": (WIKI, "time"), "ogbl-biokg": (BIO, "random")}[
        name
    ]
    test = {key: each[:1] for key, each in links.items()} | changes
    write_links(folder / name.replace("-", "_"), kind, tables, valid=links, test=test)
    return f"ogb:{name}?root={folder}"


@pytest.mark.parametrize(
    ("name", "sources", "targets"),
    [
        ("ogbl-citation2", None, [[1, 2, 4], [2, 2, 0], [1, 2, 4]]),
        ("ogbl-wikikg2", [[0, 1], [2, 4], [0, 1]], [[3], [0], [3]]),
        ("ogbl-biokg", [[1, 0], [4, 2], [1, 0]], [[2, 4], [4, 4], [2, 4]]),  # proteins follow the two diseases
    ],
)
def test_negatives_of_ogb_are_candidates_of_their_links_in_all_files(tmp_path, name, sources, targets):
    require_module("ogb")
    converted(write_with_negatives(tmp_path, name), tmp_path)
    with h5py.File(tmp_path / "out.h5") as file:
        wanted = {key: array[()].tolist() for key, array in file["links"].items()}
    assert (wanted.get("source_candidates"), wanted["target_candidates"], wanted["set"]) == (
        sources,
        targets,
        [1, 1, 2],
    )
    ends = {"ogbl-citation2": ([3, 4, 3], [0, 1, 0], None), "ogbl-wikikg2": ([4, 0, 4], [1, 3, 1], [2, 0, 2]),
            "ogbl-biokg": ([0, 3, 0], [3, 2, 3], [0, 1, 0])}[name]  # fmt: skip
    assert (wanted["source"], wanted["target"], wanted.get("type")) == ends
    for parts in (1, 2, 3):
        path, options = tmp_path / f"{parts}.h5", PartitionOptions(parts, method="random")
        on_threads(parts, lambda world, asked=(path, options): partition(world, tmp_path / "out.h5", *asked))
        with PartsFile(path) as file:
            assert whole_check.contents(file)["asked_links"]["asked_links"] == 3
            whole_check.verify(file)
            shares = [file.slab_rows("links/set", part) for part in range(parts)]
            found = {key: np.concatenate([file.read(f"links/{key}", *share, part) for part, share in enumerate(shares)])
                     for key in wanted}  # fmt: skip
        assert {key: each.tolist() for key, each in found.items()} == wanted


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        (
            "ogbl-citation2",
            {"target_node_neg": [[1, 5, 2]]},
            r"links/target_candidates should be whole numbers 0 to 4 of shape \(1, 3\), not 1 to 5",
        ),
        (
            "ogbl-citation2",
            {"target_node_neg": [[1, 2]]},
            r"whole numbers 0 to 4 of shape \(1, 3\), not int64 of shape \(1, 2\)",
        ),
        ("ogbl-wikikg2", {"head_neg": [[0.5, 1]]}, "links/source_candidates should be whole numbers .* not float64"),
        (
            "ogbl-biokg",
            {"head_neg": [[1, 2]]},
            "links/source_candidates holds node 2, .* sources of edges of type 0 are 0 to 1",
        ),
        (
            "ogbl-biokg",
            {"tail_neg": [[-1, 0]]},
            "links/target_candidates holds node 1, .* targets of .* type 0 are 2 to 4",
        ),
    ],
)
def test_wrong_negatives_of_ogb_are_one_sentence(tmp_path, name, changes, sentence):
    require_module("ogb")
    check_refused(write_with_negatives(tmp_path, name, **changes), tmp_path, sentence)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_pickles_of_pyg_run_no_code(tmp_path, shared_data, protocol):
    require_module("torch_geometric.datasets")
    shutil.copytree(shared_data("pyg") / "Cora" / "raw", tmp_path / "Cora" / "raw")
    content = pickle.dumps(RunsCode(tmp_path / "marker"), protocol)
    (tmp_path / "Cora" / "raw" / "ind.cora.x").write_bytes(content)
    check_refused(f"pyg:Cora?root={tmp_path}", tmp_path, r"has a pickle that names (builtins|__builtin__)")
    pickle.loads(pickle.dumps(RunsCode(tmp_path / "marker")))
    assert (tmp_path / "marker").exists()  # outside of loaders it does run


def test_pickles_of_data_are_let_through():
    """These are the objects with which data sets of ogb and PyG are saved: sparse matrices, tensors of any type and layout,
    PyG's graphs.
    """
    data = require_module("torch_geometric.data")
    dense = torch.eye(3)
    values = [dense, dense.to(torch.bfloat16), dense.to(torch.uint16), dense.to_sparse(), dense.to_sparse_csr()]
    values += [torch.float32, np.float32(1), np.dtype("i4")]
    values.append(data.Data(x=dense.to_sparse_csr(), edge_index=torch.zeros(2, 1, dtype=torch.long)))
    for kind in ("csr", "csc", "coo", "lil", "dia", "dok", "bsr"):
        values += [getattr(sp, f"{kind}_{what}")(np.eye(3)) for what in ("matrix", "array")]
    for value in values:
        if not isinstance(value, (torch.Tensor, data.Data)):  # torch.save is for these
            content = pickle.dumps(value)
            with plain_pickles("a data set"):
                pickle.loads(content)
        content = io.BytesIO()
        torch.save(value, content)
        content.seek(0)
        with plain_pickles("a data set"):
            torch.load(content, weights_only=False)
