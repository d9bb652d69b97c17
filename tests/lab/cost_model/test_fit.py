"""Fits to records that were made with known constants, and reports about extrapolation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.cost_model import equations
from hpcgnn.lab.cost_model.constants import Model, defaults, read_model, write_model
from hpcgnn.lab.cost_model.equations import PHASES
from hpcgnn.lab.cost_model.fit import Case, Cases, fit, residuals_of
from hpcgnn.lab.cost_model.rows import Pairs, Parts
from hpcgnn.lab.cost_model.setup import NetworkTimes, setup_of

TRUTH = defaults() | {
    "entry": 1.1e-10,
    "product_float32": 2.1e-11,
    "element": 9e-10,
    "layer": 6e-4,
    "crowding": 0.9,
    "rate_share": 0.9,
    "byte": 9e-10,
    "contention": 1.4,
    "burst_bytes": 2e5,
}
BASE = {"model": "sage", "layers": 3, "threads": 1, "compute": "float32"}
FITTED_ON = [
    *({"ranks": 1, "hidden": hidden, "nodes": nodes} for hidden in (32, 256) for nodes in (4_000, 40_000)),
    *(
        {"ranks": ranks, "hidden": hidden, "bits": bits, "rate": rate, "nodes": nodes}
        for ranks in (2, 4)
        for rate in ("100mbit", "1gbit")
        for hidden, bits, nodes in ((64, "32", 20_000), (256, "2", 40_000), (32, "8", 4_000))
    ),
    {"ranks": 4, "hidden": 128, "bits": "32", "rate": "1gbit", "nodes": 20_000, "staleness": "pipeline"},
]
UNSEEN = [
    {"ranks": 8, "hidden": 96, "bits": "1", "rate": "300mbit", "nodes": 30_000},
    {"ranks": 16, "hidden": 128, "bits": "4", "rate": "3gbit", "nodes": 20_000},
    {"ranks": 8, "hidden": 128, "bits": "32", "rate": "300mbit", "nodes": 10_000, "model": "gcn"},
]


def parts_of(ranks: int, nodes: int) -> Parts:
    """An even partition in which every rank sends to every other rank, and later ranks have more work."""
    senders, receivers = (each.ravel() for each in np.meshgrid(np.arange(ranks), np.arange(ranks)))
    apart = senders != receivers
    rows = np.full(apart.sum(), nodes // (4 * ranks * max(ranks - 1, 1)) + 1)
    pairs = Pairs(senders[apart], receivers[apart], rows, ranks)
    own = np.linspace(0.9, 1.1, ranks) * nodes / ranks
    counts = {"nodes": own, "edges": 15 * own, "local": 12 * own, "send": 2 * own, "receive": 3 * own}
    whole = {name: values.astype(np.int64) for name, values in counts.items()}
    travelling = {"written": pairs.sent(), "read": pairs.sent(is_backward=True), "features": np.zeros(ranks, np.int64)}
    about: dict[str, Any] = {"in_width": 100, "out_width": 20, "is_sparse": False}
    return Parts(name="even", pairs=pairs, **whole, **travelling, **about)


def case(configuration: dict[str, Any], rng: np.random.Generator | None = None) -> Case:
    """The measurements of such a run, with 2 % noise if ``rng`` is given."""
    setup = setup_of(BASE | {"rate": ""} | configuration, cores=2)
    workload, times = setup.workload(parts_of(setup.ranks, configuration["nodes"])), NetworkTimes(setup)
    epoch = setup.epoch(workload, times.messages(TRUTH), TRUTH)
    noise = 1.0 if rng is None else float(np.exp(rng.normal(0, 0.02)))
    phases = {phase: noise * epoch.mean()[phase] for phase in PHASES}
    return Case("x", setup, workload, times, noise * epoch.total, phases, memory_bytes=4e8)


def made_up() -> Cases:
    rng = np.random.default_rng(3)
    return Cases({"id": "here", "usable_cores": 2}, [case(each, rng) for each in FITTED_ON], [])


def errors_of(values: dict[str, float]) -> np.ndarray:
    """The errors for epochs of runs that the fit has not seen."""
    unseen = [case(each) for each in UNSEEN]
    return np.array([each.predicted(values).total / each.seconds - 1 for each in unseen])


@pytest.fixture(scope="module")
def fitted() -> Model:
    return fit(made_up(), "made up")


@pytest.mark.slow
def test_a_fit_finds_constants_again(fitted):
    assert fitted.residuals.median < 0.03
    assert abs(errors_of(fitted.values())).max() < 0.05
    assert abs(errors_of(defaults())).max() > 0.15
    for name in ("product_float32", "crowding", "rate_share", "burst_bytes"):
        found = fitted.constants[name]
        assert found.is_determined, name
        assert found.value == pytest.approx(TRUTH[name], rel=0.25), name
        assert found.low <= TRUTH[name] * 1.1, name
        assert found.high >= TRUTH[name] / 1.1, name
    # what no run did
    assert not {"product_bf16", "shared_byte"} & fitted.constants.keys()
    assert not fitted.constants["code"].is_determined or fitted.constants["code"].low > 0


@pytest.mark.slow
def test_a_wrong_equation_does_not_fit(monkeypatch):
    """If ranks share cores but are treated as if each had its own, the fit predicts more ranks wrongly."""
    runs = made_up()
    few = Cases(runs.machine, runs.cases[::2], [])
    truth = [case(each).seconds for each in UNSEEN]
    monkeypatch.setattr(equations, "shared_cores", lambda work, machine: work / machine.threads)
    values = fit(few, "made up").values()
    unseen = [case(each).predicted(values).total for each in UNSEEN]
    assert abs(np.array(unseen) / truth - 1).max() > 0.1


def test_phases_of_ranks_that_share_cores_hardly_count():
    """On shared cores the scheduler decides which rank computes and which waits. Runs whose epochs differ count less."""
    alone, crowded = (case({"ranks": ranks, "hidden": 64, "rate": "1gbit", "nodes": 20_000}) for ranks in (2, 4))
    off = []
    for each in (alone, crowded):
        moved = dict(each.phases) | {"other": 2 * each.phases["other"]}
        off.append(abs(residuals_of(each.predicted(TRUTH), replace(each, phases=moved))).max())
    assert 0 < off[1] < off[0] / 4
    late = replace(alone, seconds=2 * alone.seconds)
    noisy = replace(late, spread=0.5)
    steady, unsteady = (abs(residuals_of(each.predicted(TRUTH), each))[0] for each in (late, noisy))
    assert unsteady < steady / 4


@pytest.mark.parametrize(
    ("about", "longer"),
    [
        ({"ranks": 2, "rate": "1gbit"}, 1.0),
        ({"ranks": 4, "rate": "1gbit"}, 1 + 0.3 * 2 / 3),
        ({"ranks": 4, "rate": "1gbit", "ranks_per_node": 2}, 1.0),
        ({"ranks": 4}, 1.0),
    ],
)
def test_links_are_shared_unevenly_where_several_nodes_send_to_one(about, longer):
    found = case({"hidden": 64, "nodes": 20_000} | about)
    first = found.workload.exchanges[0]
    evenly, unevenly = (
        found.times.messages(TRUTH | {"link_imbalance": share}).exchange(first) for share in (0.0, 0.3)
    )  # fmt: skip
    np.testing.assert_allclose(unevenly, longer * evenly)


@pytest.mark.slow
def test_a_model_file_is_read_as_it_was_written_and_refused_where_it_is_damaged(fitted, tmp_path):
    path = tmp_path / "model.toml"
    write_model(fitted, path)
    assert read_model(path) == fitted
    assert [each.name for each in tmp_path.iterdir()] == ["model.toml"]
    whole = path.read_text()
    for before, after, problem in (
        ("hpcgnn-cost-model", "something", "not a cost model"),
        ("version = 1", "version = 9", "version 9"),
        ("is_determined = true", "is_determined = 3", "true or false"),
        ("version = 1", "version = ", "not a TOML file"),
        ("travelling", "other", "memory.travelling is missing"),
    ):
        path.write_text(whole.replace(before, after))
        with pytest.raises(HpcgnnError, match=problem):
            read_model(path)
