"""Generators: the same graph for any chunk size, the promised structure, and classes that can be learned."""

import numpy as np
import pytest
from helpers import check_refused, converted
from sklearn.linear_model import RidgeClassifier

from hpcgnn.data.random_kernels import key_for, normal_rows
from hpcgnn.sources import open_source

GOLDEN_EDGES = [[221, 52, 99, 127], [148, 52, 254, 199]]
GOLDEN_ROW = [3216166045, 3202936532, 3216820454]
SOURCES = ["rmat:scale=10,degree=9.5,features=5,classes=7", "sbm:nodes=1003,blocks=7,degree=9,features=5"]


def whole(source, chunk):
    chunks = list(source.edges(chunk))
    return np.concatenate([[chunk.src, chunk.dst] for chunk in chunks], axis=1)


@pytest.mark.parametrize("text", SOURCES)
def test_the_same_graph_for_any_chunk_size_and_another_for_another_seed(tmp_path, text):
    source = open_source(text, tmp_path)
    nodes = source.info.num_nodes
    edges = whole(source, 1 << 20)
    assert edges.shape == (2, source.info.num_edges)
    for chunk in (1, 97, 1000):
        assert np.array_equal(whole(open_source(text, tmp_path), chunk), edges)
    for values in (source.features, source.labels):
        rows = [values(first, min(first + 77, nodes)) for first in range(0, nodes, 77)]
        assert np.array_equal(np.concatenate(rows), values(0, nodes))
    other = open_source(text + ",seed=1", tmp_path)
    assert (whole(other, 1 << 20) != edges).mean() > 0.9
    assert (other.features(0, 50) != source.features(0, 50)).mean() > 0.9


def test_rmat_is_a_power_law_with_communities(tmp_path):
    source = open_source("rmat:scale=14,degree=16,classes=8", tmp_path)
    src, dst = whole(source, 1 << 20)
    degree = np.bincount(dst, minlength=1 << 14)
    assert degree.max() > 30 * degree.mean()
    classes = source.labels(0, 1 << 14)
    assert np.bincount(classes).tolist() == [2048] * 8
    same = (classes[src] == classes[dst]).mean()
    # The share a + d = 0.62 of the diagonal quadrants, on three levels.
    assert same == pytest.approx(0.62**3, abs=0.01)
    # Ids must carry no information: nodes with consecutive ids are in the same class as often as any two nodes.
    assert (classes[1:] == classes[:-1]).mean() == pytest.approx(1 / 8, abs=0.02)


def test_sbm_is_undirected_and_homophilous(tmp_path):
    text = "sbm:nodes=2000,blocks=4,degree=12,homophily=0.7"
    src, dst = whole(open_source(text, tmp_path), 1 << 20)
    assert (src != dst).all()
    assert (src % 4 == dst % 4).mean() == pytest.approx(0.7, abs=0.02)
    meta, edges, *_ = converted(text, tmp_path)
    assert not meta.directed
    assert meta.num_edges == 24_000
    assert set(map(tuple, edges.tolist())) == {(d, s) for s, d in edges.tolist()}


@pytest.mark.parametrize(
    "text", ["rmat:scale=12,degree=32,classes=4,a=0.8,b=0.05,c=0.05,signal=1.5", "sbm:nodes=4000,blocks=10,degree=16"]
)
def test_the_graph_helps_to_learn(tmp_path, text):
    _, edges, x, y, masks = converted(text, tmp_path)
    mean = x.copy()
    np.add.at(mean, edges[:, 1], x[edges[:, 0]])
    mean /= 1 + np.bincount(edges[:, 1], minlength=len(x))[:, None]

    def accuracy(features):
        model = RidgeClassifier().fit(features[masks["train_mask"]], y[masks["train_mask"]])
        return model.score(features[masks["test_mask"]], y[masks["test_mask"]])

    alone, together = accuracy(x), accuracy(np.hstack([x, mean]))
    assert alone > 1.5 / (y.max() + 1)
    assert together > alone + 0.02


def test_noise_is_standard():
    rows = normal_rows(key_for(5, 1), 0, 20_000, 8)
    assert abs(rows.mean()) < 0.01
    assert rows.std() == pytest.approx(1, abs=0.01)
    assert np.abs(np.corrcoef(rows.T) - np.eye(8)).max() < 0.03
    assert np.abs(np.corrcoef(rows[1:, 0], rows[:-1, 0])[0, 1]) < 0.03


def test_same_bytes_on_every_machine(tmp_path):
    """These digests are fixed, because a change of them would change every published figure."""
    source = open_source("rmat:scale=8,degree=1,features=3,classes=4", tmp_path)
    assert whole(source, 64)[:, :4].tolist() == GOLDEN_EDGES
    assert source.features(0, 1).view(np.uint32)[0].tolist() == GOLDEN_ROW


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rmat:degree=3", "scale is missing"),
        ("rmat:scale=40", "scale is at most 31"),
        ("rmat:scale=3,classes=9", "9 classes are more than 8 nodes"),
        ("rmat:scale=3,classes=2,a=0.9,b=0.9", "a [+] b [+] c is"),
        ("rmat:scale=3,classes=2,colour=1", "rmat has no option 'colour'; it takes"),
        ("rmat:scale=x", "scale='x' is not a number"),
        ("rmat:scale=5,degree=1e300", "degree=1e.300 should be a number of 0 to"),
        ("sbm:nodes=60,features=99999999999", "features is at most 2147483647"),
        ("rmat:scale=2.5", "scale=2.5 should be a whole number"),
        ("rmat:scale", "'scale' should be key=value"),
        ("sbm:nodes=10,blocks=6", "need at least two nodes each"),
        ("sbm:nodes=100,homophily=2", "homophily=2 should be a number of 0 to 1"),
        ("digits:k=3", "digits has no option 'k'; it takes none"),
        ("tape:x", "is not a source: a source begins with one of arclist:, binedges:"),
        ("cora", "is not a source"),
        ("npz:", "is not a source: write KIND:NAME"),
        ("friends.npz?split=1", r"is not a source: write npz:friends.npz\?split=1$"),
    ],
)
def test_bad_specs(tmp_path, text, sentence):
    check_refused(text, tmp_path, sentence)
