"""Fits to records that were made with known constants, and reports about extrapolation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import refusal, told
from small_graphs import in_parts, random_multigraph

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.lab.cost_model import equations
from hpcgnn.lab.cost_model.constants import Model, defaults, read_model, write_model
from hpcgnn.lab.cost_model.equations import PHASES
from hpcgnn.lab.cost_model.fit import Case, Cases, cases_of, fit, residuals_of
from hpcgnn.lab.cost_model.predict import predict
from hpcgnn.lab.cost_model.profiles import model_of_profile, profiles
from hpcgnn.lab.cost_model.rows import Pairs, Parts
from hpcgnn.lab.cost_model.setup import NetworkTimes, setup_of
from hpcgnn.lab.study import records

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


@pytest.mark.slow
def test_what_no_run_did_is_not_among_them(fitted):
    assert "product_bf16" not in fitted.constants
    assert "shared_byte" not in fitted.constants
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
def test_a_model_file_is_read_as_it_was_written(fitted, tmp_path):
    path = tmp_path / "model.toml"
    write_model(fitted, path)
    assert read_model(path) == fitted
    assert [each.name for each in tmp_path.iterdir()] == ["model.toml"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("hpcgnn-cost-model", "something"), "not a cost model"),
        (("version = 1", "version = 9"), "version 9"),
        (("is_determined = true", "is_determined = 3"), "true or false"),
        (("version = 1", "version = "), "not a TOML file"),
        (("travelling", "other"), "memory.travelling is missing"),
    ],
)
def test_a_damaged_model_file_is_refused(fitted, tmp_path, change, problem):
    path = tmp_path / "model.toml"
    write_model(fitted, path)
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(HpcgnnError, match=problem):
        read_model(path)


# -- from a folder, and from the command line ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    """The folder of a study with a few runs of two parts files."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "parts").mkdir()
    for ranks in (1, 2, 4):
        in_parts(folder / f"parts/{ranks}.h5", random_multigraph(), ranks, ["pre", "post", "hybrid"])
    for number, (ranks, rate, bits) in enumerate([(1, "", "32"), (2, "1gbit", "32"), (2, "100mbit", "8")]):
        records.append(folder, record(f"run{number}", ranks, rate=rate, bits=bits))
    records.append(folder, record("policy", 2, rate="1gbit", bits="adaqp"))
    return folder


def record(key: str, ranks: int, machine: str = "here", **configuration: Any) -> records.Record:
    seconds = [9.0, 9.0, *[0.01 * ranks] * 3]
    epochs = {"seconds": seconds} | {f"{phase}_seconds_mean": [0.2 * each for each in seconds] for phase in PHASES}
    return records.Record(
        key=key,
        configuration={"ranks": ranks, "hidden": 16, "model": "sage", "graph": "small", **configuration},
        status="finished",
        machine={"id": machine, "processor": "a test", "cores": 2, "usable_cores": 2},
        parts=f"parts/{ranks}.h5",
        summary={"compute": "float32", "peak_memory_bytes_per_rank": 300_000_000},
        epochs=epochs,
    )


def test_the_first_epochs_do_not_count(study):
    runs = cases_of(study, records.read(study))
    assert [each.seconds for each in runs.cases] == pytest.approx([0.01, 0.02, 0.02])
    assert runs.cases[0].phases["aggregation"] == pytest.approx(0.002)


def test_runs_that_the_equations_do_not_know_are_told(study):
    (own, *_) = records.read(study)
    others = {
        "the bit-widths of --bits adaqp": {"bits": "adaqp"},
        "trained by PyG": {"framework": "pyg"},
        "restricted to the instruction set avx2": {"isa": "avx2"},
    }
    found = cases_of(study, [own, *(record("other", 1, **configuration) for configuration in others.values())])
    assert len(found.cases) == 1
    for said, expected in zip(found.left_out, others, strict=True):
        assert said.startswith("other: ")
        assert expected in said


def test_machines_are_not_mixed(study, tmp_path):
    of_two = [*records.read(study), record("elsewhere", 1, machine="there")]
    with pytest.raises(HpcgnnError, match=r"2 machines .*choose one with --machine ID"):
        cases_of(study, of_two)
    assert len(cases_of(study, of_two, "there").cases) == 1
    with pytest.raises(HpcgnnError, match="no records of machine elsewhere"):
        cases_of(study, of_two, "elsewhere")
    with pytest.raises(HpcgnnError, match="no finished run"):
        cases_of(tmp_path, [])


@pytest.fixture(scope="module")
def small_model(study, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.toml"
    found = told("model", "fit", study, "--out", path)
    assert found["residuals"]["runs"] == 3
    assert found["constants"]["layer"]["low"] <= found["constants"]["layer"]["value"]
    return path


def test_predict(study, small_model):
    flags = ("--hidden", 64, "--rate", "3gbit", "--strategy", "all")
    found = told("model", "predict", small_model, study / "parts/4.h5", *flags)["predictions"]
    assert set(found) == {"pre", "post", "hybrid"}
    hybrid = found["hybrid"]
    assert hybrid["bytes_sent"] == sum(hybrid["bytes_sent_of_ranks"]) <= found["post"]["bytes_sent"]
    assert len(hybrid["memory_bytes_of_ranks"]) == 4
    assert 0 < hybrid["epoch_seconds"] <= sum(hybrid["phases_seconds"].values())
    warnings = "\n".join(hybrid["warnings"])
    assert "ranks is 4, fitted on 1 to 2: the terms message and link_imbalance are extrapolated" in warnings
    assert "hidden is 64, fitted on 16 to 16: the terms entry and row and element are extrapolated" in warnings
    assert "megabits per second is 3000, fitted on 100 to 1000" in warnings


def test_the_parts_of_memory(study, small_model):
    flags = ("--model", "gcn", "--hidden", 64, "--bits", "2", "--memory")
    found = told("model", "predict", small_model, study / "parts/2.h5", *flags)["predictions"]["hybrid"]
    parts = found["memory_parts_bytes"]
    assert parts["total"] == sum(parts.values()) - parts["total"]
    assert parts["activations"] > parts["messages"] > 0


def test_within_what_was_fitted_nothing_is_warned_of(study, small_model):
    about = {"hidden": 16, "rate": "1gbit", "bits": "32"}
    with PartsFile(study / "parts/2.h5") as file:
        assert predict(read_model(small_model), file, about).warnings == []
        other = predict(read_model(small_model), file, about | {"model": "gcn", "bits": "8"}).warnings
    assert other == ["model is gcn, fitted on sage: the terms layer and element are extrapolated"]


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("--ranks", 8), "has 2 parts, not 8"),
        (("--rate", "1gbit", "--network", "xeon-hdr"), "give only one of them"),
        (("--rate", "fast"), "not the speed of a network"),
        (("--network", "nowhere"), "no profile nowhere"),
        (("--model", "gat", "--heads", 3), "heads must divide hidden"),
    ],
)
def test_bad_input(study, small_model, args, problem):
    assert problem in refusal("model", "predict", small_model, study / "parts/2.h5", *args)


def test_networks_and_profiles(study, small_model):
    path = study / "parts/4.h5"
    assert told("model", "predict", small_model, path, "--network", "xeon-hdr", "--ranks-per-node", 2)["predictions"]
    for name, profile in profiles().items():
        found = told("model", "predict", name, path, "--ranks-per-node", 1)["predictions"]["hybrid"]
        warnings = [each.partition(" ")[0] for each in found["warnings"]]
        assert warnings == ["seconds", str(len(profile.estimates))]
        assert found["epoch_seconds"] > 0
    assert model_of_profile(profiles()["xeon-hdr"]).values()["product_float32"] == pytest.approx(2 / (0.5 * 153.6e9))
