"""The assumptions about policies, the bytes that follow from them, and the bytes that ranks with these policies send."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from rank_pool import ThreadPool
from ranks import cost_model
from small_graphs import even_graph, in_parts

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.exchange.layout import BLOCK_BYTES, make_layout
from hpcgnn.exchange.mailbox import FRESH, REUSED, STALE
from hpcgnn.lab.cost_model.constants import defaults
from hpcgnn.lab.cost_model.equations import EpochKind, cycle_of, epoch_of
from hpcgnn.lab.cost_model.policies import DECISIONS, Assumptions, RowFacts, decided_by, read_facts
from hpcgnn.lab.cost_model.predict import Prediction, predict
from hpcgnn.lab.cost_model.profiles import Profile, model_of_profile, profiles
from hpcgnn.lab.cost_model.rows import Pairs, Wire, mixed_bytes, read_parts, segment_bytes
from hpcgnn.lab.cost_model.setup import NetworkTimes, setup_of
from hpcgnn.train.summary import bit_shares

MODEL = {"model": "sage", "hidden": 16, "layers": 2, "dropout": 0.0}
XEON = profiles()["xeon-hdr"]
SLOW = replace(XEON, network=replace(XEON.network, node_bandwidth_bytes_per_second=2e6))
RANKS = 4


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return in_parts(tmp_path_factory.mktemp("parts") / "parts.h5", even_graph(1200, 6000), RANKS, ["hybrid"])


def predicted(parts: Path, decided: Assumptions | None = None, profile: Profile = XEON, **settings: Any) -> Prediction:
    about = {**MODEL, "node_aware": "off", "ranks_per_node": 1, **settings}
    with PartsFile(parts) as file:
        known = () if decided is None else (decided,)
        return predict(model_of_profile(profile), file, about, profile=profile, decided=known)


def trained(parts: Path, out: Path, epochs: int, policy: dict[str, Any], coding: str = "plain") -> list[dict[str, Any]]:
    """The records of a run with 8 bits, whose folder also has its settings."""
    arguments = str(parts), MODEL, policy, epochs, str(out), 8, coding
    found = ThreadPool(RANKS).run(cost_model.trained, *arguments)
    (out / "config.toml").write_text(tomli_w.dumps({"bits": "8", "staleness": "off"} | policy))
    return found[0]


def mean_bytes(records: list[dict[str, Any]]) -> float:
    """The bytes of an epoch after the first one, which alone sends the features."""
    return float(np.mean([record["bytes_sent"] for record in records[1:]]))


def test_segments_of_several_bits_are_those_of_the_wire_format():
    rng, choices = np.random.default_rng(0), [1, 2, 4, 8, 16, 32]
    rows = rng.integers(0, 9, (40, len(choices)))
    for width in (1, 3, 16, 255):
        bits = np.concatenate([np.repeat(choices, each) for each in rows]).astype(np.uint8)
        layout = make_layout(rows.sum(axis=1), bits, width)
        assert mixed_bytes(rows, width, choices).tolist() == (layout.blocks * BLOCK_BYTES).tolist(), width


def test_one_share_is_fixed_bits_and_nothing_is_sent_in_other_epochs():
    pairs = Pairs(np.array([0, 1, 2]), np.array([1, 2, 0]), np.array([5, 700, 90]), 3)
    for way in (False, True):
        fixed, most = (pairs.table(segment_bytes(pairs.rows, 40, bits), is_backward=way).toarray() for bits in (2, 8))
        assert (Wire(((2, 1.0),)).bytes(pairs, 40, is_backward=way).toarray() == fixed).all()
        mixed = Wire(((2, 0.5), (8, 0.5))).bytes(pairs, 40, is_backward=way).toarray()
        assert ((fixed <= mixed) & (mixed <= most)).all()
        assert (fixed < mixed).any()
        assert not Wire(((2, 1.0),), sends=False).bytes(pairs, 40, is_backward=way).nnz


def test_uniform_bits_are_drawn_as_ranks_draw_them(parts: Path, tmp_path: Path):
    records = trained(parts, tmp_path / "run", 2, {"bits": "uniform"})
    found = predicted(parts, bits="uniform")
    assert found.bytes_sent.sum() == pytest.approx(mean_bytes(records), rel=0.01)
    assert found.assumes == ("assumes bit-widths 2, 4, 8 in equal shares, drawn at random",)
    assert predicted(parts, bits="2", staleness="pipeline").bytes_sent.sum() < 0.85 * found.bytes_sent.sum()


def test_random_bits_of_a_size_are_predicted_from_their_shares(parts: Path, tmp_path: Path):
    size = round(0.8 * predicted(parts, bits="uniform").bytes_sent.sum())
    records = trained(parts, tmp_path / "run", 4, {"bits": "uniform", "epoch_bytes": size})
    (tmp_path / "run" / "config.toml").write_text(
        f'bits = "uniform:{size}"\nstaleness = "off"\n'
    )  # as the command writes it
    decided = decided_by(tmp_path / "run")
    assert decided.of == ("uniform", "off")
    shares = {
        int(bits): share for bits, share in bit_shares([records[-1]["bits"]]).items()
    }  # after those of the first epochs
    found = predicted(parts, replace(decided, shares=shares), bits=f"uniform:{size}")
    assert found.bytes_sent.sum() == pytest.approx(mean_bytes(records[2:]), rel=0.02)
    with pytest.raises(HpcgnnError, match="give --like or --shares"):
        predicted(parts, bits=f"uniform:{size}")


def facts_of(parts: Path) -> RowFacts:
    with PartsFile(parts) as file:
        return read_facts(file, "hybrid", "mean")


def test_sylvie_gives_bits_by_in_degrees_or_errors(parts: Path, tmp_path: Path):
    records = trained(parts, tmp_path / "degrees", 3, {"bits": "sylvie", "importance": "degree", "least_bits": 1})
    rows = records[0]["bits"]["layer 2's boundary rows"]
    assert records[0]["policy"] == {"base_bits": 1}
    shares = {int(bits): count / sum(rows.values()) for bits, count in rows.items()}
    assert facts_of(parts).by_importance(1) == pytest.approx(shares)
    found = predicted(parts, decided_by(tmp_path / "degrees"), bits="sylvie")
    assert found.bytes_sent.sum() == pytest.approx(mean_bytes(records), rel=0.02)
    assert "as in 2 epochs of" in found.assumes[0]
    records = trained(parts, tmp_path / "errors", 3, {"bits": "sylvie", "bits_period": 1})
    found = predicted(parts, bits="sylvie")
    assert found.bytes_sent.sum() == pytest.approx(mean_bytes(records[1:]), rel=0.1)
    assert "slows down in 0% of epochs, chosen at random, for the errors" in found.assumes[0]


@pytest.mark.slow
def test_adaqp_as_in_a_run(parts: Path, tmp_path: Path):
    settings = {"bits": "adaqp", "bits_period": 2, "group_rows": 20, "time_scale": "span"}
    records = trained(parts, tmp_path / "run", 9, settings)
    decided = decided_by(tmp_path / "run")
    assert decided.settings == {"bits_period": 2, "group_rows": 20, "time_scale": "span"}
    assert len(decided.shares or {}) > 1
    found = predicted(parts, decided, bits="adaqp")
    assert found.bytes_sent.sum() == pytest.approx(mean_bytes(records), rel=0.02)
    assert found.course is not None
    assert found.course.period == 2
    assert found.epoch.largest()[DECISIONS] > 0
    slower = predicted(parts, decided, bits="adaqp", bits_period=200)
    assert slower.epoch.largest()[DECISIONS] == pytest.approx(found.epoch.largest()[DECISIONS] / 100)


def test_policies_without_a_run_have_the_bits_of_their_rules(parts: Path):
    facts = facts_of(parts)
    weights = tuple([(peer, np.ones_like(beta)) for peer, beta in each] for each in facts.weights)
    alike = type(facts)(facts.degrees, weights, facts.looked_at, facts.ranks)
    # Computed by hand: 4 bits take 1/3 of the time between 2 and 8 bits, and save 96 % of the variance.
    assert [alike.by_variance(weight, 1) for weight in (0.0, 0.5, 1.0)] == [{2: 1.0}, {4: 1.0}, {8: 1.0}]
    assert len(facts.by_variance(0.7, 1)) > 1
    assert predicted(parts, bits="adaqp", variance_weight=0.0).course.shares == ((2, 1.0),)  # type: ignore[union-attr]
    for rule, bits in (("error", 2), ("corrected", 8), ("printed", 8)):
        found = predicted(parts, bits="pipeqs", staleness="pipeqs", drift_rule=rule)
        assert found.course.shares == ((bits, 1.0),), rule  # type: ignore[union-attr]


@pytest.mark.parametrize(("staleness", "turn"), [("pipeqs", 3), ("sancus", 4)])
def test_rows_that_change_little_are_sent_in_one_of_several_epochs(
    parts: Path, tmp_path: Path, staleness: str, turn: int
):
    settings = {"staleness": staleness, "drift_threshold": 2.0, "most_stale_epochs": 3}
    records = trained(parts, tmp_path / "run", 6 + 2 * turn, settings)
    found = predicted(parts, bits="8", **settings)
    sent = [record["bytes_sent"] for record in records[-2 * turn :]]
    assert sorted(map(bool, sent)) == [False] * (2 * turn - 2) + [True] * 2
    assert round(turn * found.bytes_sent.sum()) == max(sent)
    like = predicted(parts, decided_by(tmp_path / "run"), bits="8", **settings)
    assert like.bytes_sent.sum() == pytest.approx(mean_bytes(records), rel=0.01)
    every = predicted(parts, bits="8", staleness="pipeline")
    assert found.bytes_sent.sum() * turn == pytest.approx(every.bytes_sent.sum())
    assert found.rows_sent.sum() * turn == pytest.approx(every.rows_sent.sum())


def test_differences_have_the_bytes_of_rows(parts: Path, tmp_path: Path):
    records = trained(parts, tmp_path / "run", 2, {}, coding="delta")
    plain, delta = (predicted(parts, bits="8", message_coding=coding) for coding in ("plain", "delta"))
    assert delta.bytes_sent.sum() == plain.bytes_sent.sum() == records[-1]["bytes_sent"]
    assert delta.epoch.largest()["quantization"] > plain.epoch.largest()["quantization"]
    assert delta.assumes == ()


def test_a_course_mixes_its_epochs(parts: Path):
    fresh, mixed, stale = (
        predicted(parts, Assumptions(stale=share), SLOW, bits="8", staleness="sylvie", input_dropout=0.5)
        for share in (0.0, 0.25, 1.0)
    )
    assert fresh.epoch.total == pytest.approx(predicted(parts, None, SLOW, bits="8", input_dropout=0.5).epoch.total)
    assert stale.epoch.total == pytest.approx(
        predicted(parts, None, SLOW, bits="8", staleness="pipeline", input_dropout=0.5).epoch.total
    )
    assert mixed.epoch.total == pytest.approx(0.75 * fresh.epoch.total + 0.25 * stale.epoch.total)
    assert stale.epoch.total < fresh.epoch.total
    assert "25% of epochs use rows of the epoch before, as given" in mixed.assumes[0]


def test_epochs_that_send_nothing_wait_for_what_is_under_way(parts: Path):
    with PartsFile(parts) as file:
        own = read_parts(file, "hybrid")
    setup = setup_of({**MODEL, "ranks": RANKS, "bits": "8", "rate": "3mbit"}, cores=4)
    values = defaults()
    sending, reusing = (setup.workload(own, Wire(((8, 1.0),), sends=sends)) for sends in (True, False))
    turns = [
        EpochKind(each, NetworkTimes(setup).messages(values), freshness)
        for each, freshness in ((sending, STALE), (reusing, REUSED), (reusing, REUSED))
    ]
    first, second, third = cycle_of(turns, values, setup.machine)
    (alone,) = cycle_of([EpochKind(sending, turns[0].messages, FRESH)], values, setup.machine)
    same = epoch_of(EpochKind(sending, turns[0].messages), values, setup.machine)
    assert alone.total == pytest.approx(same.total)
    assert second.mean()["communication_wait"] > 10 * third.mean()["communication_wait"]
    assert third.mean()["wire"] == 0 < first.mean()["wire"]
    assert third.total < second.total < alone.total
    for phase in ("quantization", "aggregation"):  # rows that are not sent are not computed either
        assert third.mean()[phase] < first.mean()[phase], phase


def test_what_is_assumed_is_of_the_policies_that_are_asked_for(parts: Path):
    decided = Assumptions({2: 1.0}, of=("adaqp", "off"), source="as in a run")
    assert predicted(parts, decided, bits="adaqp").course.shares == ((2, 1.0),)  # type: ignore[union-attr]
    assert predicted(parts, decided, bits="uniform").course.shares[0][1] == pytest.approx(1 / 3)  # type: ignore[union-attr]
    assert predicted(parts, decided, bits="8").course is None


def test_shares_must_add_up_to_about_1(parts: Path):
    assert predicted(parts, Assumptions({2: 1.0005, 4: 0.0004}), bits="uniform").bytes_sent.sum() > 0
    for decided, problem in (
        (Assumptions({2: 0.5, 4: 0.3}), "must add up to 1"),
        (Assumptions({2: float("nan")}), "must add up to 1"),
        (Assumptions(stale=1.5), "stale share must lie between 0 and 1"),
        (Assumptions(sent=-0.1), "sent share must lie between 0 and 1"),
    ):
        with pytest.raises(HpcgnnError, match=problem):
            predicted(parts, decided, bits="uniform")


def test_epochs_that_all_reuse_send_nothing_and_wait_for_nothing(parts: Path):
    silent, rarely, sending = (
        predicted(parts, Assumptions(stale=1.0, sent=share), SLOW, bits="8", staleness="pipeqs")
        for share in (0.0, 1e-6, 1.0)
    )
    assert silent.bytes_sent.sum() == 0 < sending.bytes_sent.sum()
    assert silent.epoch.mean()["wire"] == 0 < sending.epoch.mean()["wire"]
    assert silent.epoch.total < sending.epoch.total
    assert rarely.epoch.total == pytest.approx(silent.epoch.total)
