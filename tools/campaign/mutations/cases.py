"""The files that each reader gets, and the ways to damage them."""

from __future__ import annotations

from pathlib import Path

from campaign.mutations import oracles, readers
from campaign.mutations.arrays import of_arrays
from campaign.mutations.case import Case
from campaign.mutations.checkpoints import of_checkpoint
from campaign.mutations.forked_ranks import launcher
from campaign.mutations.hdf5 import of_hdf5, of_resealed_hdf5
from campaign.mutations.inputs import GRAPHS, has_checksums
from campaign.mutations.more_cases import more_cases
from campaign.mutations.mutation import Mutator
from campaign.mutations.places import of_place
from campaign.mutations.readers import under_mpirun
from campaign.mutations.settings import of_json, of_lines, of_toml
from campaign.mutations.text import of_bytes, of_text


def all_cases(inputs: Path) -> list[Case]:
    """All cases, for these inputs."""
    return [*_sources(), *_graphs(inputs), *_parts(inputs), *_runs(), *_on_ranks(inputs), *more_cases()]


def _sources() -> list[Case]:
    formats = (
        ("edgelist", oracles.edge_list, ("edges.txt", "weights.txt", "commas.txt", "edges.txt.gz")),
        ("metis", oracles.metis, ("plain.graph", "weights.graph")),
        ("mtx", oracles.matrix_market, ("real.mtx", "pattern.mtx")),
    )
    found = []
    for kind, oracle, names in formats:
        ways = ([*of_text(oracle)] * 5, of_place(may_be_missing=False))
        for name in names:
            weighted = ([of_text(oracle)] * 6) + [ways[1]]
            found.append(Case(kind, readers.convert(kind, name), ((name, name),), name, tuple(weighted), 4))
    for name in GRAPHS:
        ways = (of_arrays(), of_arrays(), of_arrays(), of_bytes(), of_bytes(), of_place(may_be_missing=False))
        file = f"{name}.npz"
        found.append(Case("npz", readers.convert("npz", file), ((file, file),), file, ways, 10))
    return found


def _hdf5_ways(path: Path) -> tuple[list[Mutator], ...]:
    checked = has_checksums(path)
    ways = of_hdf5(checked=checked)
    fourth = of_resealed_hdf5() if checked else ways
    return (ways, ways, ways, fourth, of_bytes(checked=checked), of_place(may_be_missing=False))


def _graphs(inputs: Path) -> list[Case]:
    found = []
    for name, version in _versions():
        file = f"{name}-graph{version}.h5"
        ways = _hdf5_ways(inputs / file)
        found.append(Case(f"graph.h5{version}", readers.PARTITION, ((file, "graph.h5"),), "graph.h5", ways, 6))
    return found


def _versions() -> list[tuple[str, str]]:
    """Graphs of several versions, with and without checksums."""
    return [(name, version) for name in GRAPHS for version in ("", "-v1")]


def _parts(inputs: Path) -> list[Case]:
    found = []
    for name, version in _versions():
        of_one, of_two = ((f"{name}-{parts}{version}.h5", "parts.h5") for parts in (1, 2))
        ways, ways2 = (_hdf5_ways(inputs / source) for source, _ in (of_one, of_two))
        kind, kind2 = f"parts.h5{version}", f"parts.h5{version} of 2"
        found += [
            Case(kind, readers.TRAIN, (of_one,), "parts.h5", ways, 4),
            Case(kind, readers.LOAD, (of_one,), "parts.h5", ways, 2),
            Case(kind2, readers.LOAD, (of_two,), "parts.h5", ways2, 2),
            Case(kind2, readers.PLAN, (of_two,), "parts.h5", ways2, 2),
            Case(kind2, readers.PLAN_POST, (of_two,), "parts.h5", ways2, 2),
            Case(kind2, readers.TRAIN_THREADS, (of_two,), "parts.h5", ways2, 8),
        ]
        if name == "plain":
            run = ("run", "run")
            found += [
                Case(kind, readers.PREDICT, (of_one, run), "parts.h5", ways, 5),
                Case(kind2, readers.PREDICT_ANY, (of_two, run), "parts.h5", ways2, 4),
            ]
    return found


def _runs() -> list[Case]:
    one = (("plain-1.h5", "parts.h5"), ("run", "run"))
    two = (("plain-2.h5", "parts.h5"), ("run2", "run"))
    timed = (("plain-2.h5", "parts.h5"), ("run2/link_costs.json", "new/link_costs.json"))
    replayed = (("plain-2.h5", "parts.h5"), ("run2/decisions.jsonl", "decisions.jsonl"))
    config = (("plain-1.h5", "parts.h5"), ("config.toml", "config.toml"))
    checkpoint = (of_checkpoint(), of_checkpoint(), of_checkpoint(), of_bytes(), of_place(may_be_missing=True))
    needed = (of_checkpoint(), of_checkpoint(), of_checkpoint(), of_bytes(), of_place(may_be_missing=False))
    metrics, decisions = of_lines(needed=("epoch",)), of_lines(needed=("epoch", "observed"))
    costs = of_json(needed=("seconds_per_byte", "seconds_per_message"))
    may = of_place(may_be_missing=True)
    log, settings = of_place(may_be_missing=True, may_be_empty=True), of_place(may_be_missing=False, may_be_empty=True)
    toml = of_toml()
    return [
        Case("last.pt", readers.RESUME, one, "run/checkpoints/last.pt", checkpoint, 24),
        Case("last.pt", readers.PREDICT_LAST, one, "run/checkpoints/last.pt", needed, 10),
        Case("best.pt", readers.PREDICT, one, "run/checkpoints/best.pt", needed, 14),
        Case("last.pt", readers.RESUME_THREADS, two, "run/checkpoints/last.pt", checkpoint, 12),
        Case("messages/2-0.pt", readers.RESUME_THREADS, two, "run/checkpoints/messages/2-0.pt", checkpoint, 8),
        Case("messages/2-1.pt", readers.RESUME_THREADS, two, "run/checkpoints/messages/2-1.pt", checkpoint, 4),
        Case("metrics.jsonl", readers.RESUME, one, "run/metrics.jsonl", (metrics,) * 6 + (log,), 14),
        Case("decisions.jsonl", readers.RESUME_THREADS, two, "run/decisions.jsonl", (decisions,) * 6 + (log,), 8),
        Case(
            "decisions.jsonl", readers.REPLAY_THREADS, replayed, "decisions.jsonl", (decisions,) * 6 + (settings,), 10
        ),
        Case("link_costs.json", readers.TRAIN_THREADS, timed, "new/link_costs.json", (costs,) * 6 + (may,), 8),
        Case("config.toml", readers.RESUME, one, "run/config.toml", (toml,) * 6 + (log,), 10),
        Case("config.toml", readers.CONFIG, config, "config.toml", (toml,) * 6 + (settings,), 20),
    ]


def _on_ranks(inputs: Path) -> list[Case]:
    """Cases under mpirun, if it is Open MPI's. Damage affects both ranks, or the copy of one."""
    if launcher() is None:
        return []
    both, apart = (lambda reader: under_mpirun(reader, apart=False)), (lambda reader: under_mpirun(reader, apart=True))
    one = (("plain-2.h5", "parts.h5"),)
    run = (*one, ("run2", "run"))
    config = (*one, ("config.toml", "config.toml"))
    ways, toml = _hdf5_ways(inputs / "plain-2.h5"), of_toml()
    checkpoint = (of_checkpoint(), of_checkpoint(), of_bytes())
    messages = "checkpoints/messages/2-1.pt"
    return [
        Case("parts.h5 of 2", both(readers.TRAIN), one, "parts.h5", ways, 8),
        Case("parts.h5 of 2", both(readers.PREDICT), (*one, ("run", "run")), "parts.h5", ways, 4),
        Case("parts.h5 of 2", apart(readers.TRAIN), _twice(one), "other/parts.h5", ways, 6),
        Case("parts.h5 of 2", apart(readers.TRAIN), _twice(one), "parts.h5", ways, 3),
        Case("last.pt", both(readers.RESUME_ADAQP), run, "run/checkpoints/last.pt", checkpoint, 6),
        Case("messages/2-1.pt", both(readers.RESUME_ADAQP), run, f"run/{messages}", checkpoint, 5),
        Case("config.toml", apart(readers.CONFIG), _twice(config), "other/config.toml", (toml,), 4),
    ]


def _twice(copies: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """The copies for the second rank as well."""
    return copies + tuple((source, f"other/{name}") for source, name in copies)
