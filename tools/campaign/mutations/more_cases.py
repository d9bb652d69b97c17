"""The files of :mod:`more_inputs` that each reader gets, and the ways to damage them.

These files have no checksums, and there is no second parser, so an accepted file may have any result. Only the way in which the
reader ends is checked.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from campaign.mutations.case import Case
from campaign.mutations.checkpoints import of_checkpoint
from campaign.mutations.hdf5 import of_hdf5
from campaign.mutations.mutation import FREE, Mutation, Mutator
from campaign.mutations.places import of_place
from campaign.mutations.readers import Reader, convert, hpcgnn
from campaign.mutations.settings import of_lines, of_nested_json, of_nested_toml, of_toml
from campaign.mutations.text import of_bytes, of_words

MAG, PAPERS = "mag240m_kddcup2021", "ogbn_papers100M"
_STUDY = (("study", "study"),)
_FITTED = (("model.toml", "model.toml"),)


def more_cases() -> list[Case]:
    """All of these cases."""
    return [*_sources(), *_runs(), *_studies(), *_models(), *_checked()]


def free(*ways: list[Mutator]) -> tuple[list[Mutator], ...]:
    """The same mutators, but an accepted file may have any result."""

    def freed(mutator: Mutator) -> Mutator:
        def mutate(path: Path, rng: np.random.Generator) -> Mutation:
            done = mutator(path, rng)
            return Mutation(done.what, FREE, done.touches)

        return mutate

    return tuple([freed(mutator) for mutator in way] for way in ways)


_BYTES = free(of_bytes(checked=False), of_bytes(checked=False), of_place(may_be_missing=True))
_TEXT = free(of_words(), of_words(), of_bytes(checked=False), of_place(may_be_missing=True))
_TOML = free(
    of_nested_toml(),
    of_nested_toml(),
    of_nested_toml(),
    of_toml(),
    of_bytes(checked=False),
    of_place(may_be_missing=True),
)
_JSON = free(
    of_nested_json(), of_nested_json(), of_nested_json(), of_bytes(checked=False), of_place(may_be_missing=True)
)


def command(*arguments: str) -> Reader:
    """A command whose result is not compared."""
    reader = hpcgnn(*arguments, result=lambda: "")
    return Reader(" ".join(arguments[: 2 if arguments[0] in ("study", "model") else 1]), reader.run, reader.result)


def _sources() -> list[Case]:
    found = [
        Case("parquet", convert("parquet", "table.parquet"), (("table.parquet",) * 2,), "table.parquet", _BYTES, 8),
        Case("binedges", convert("binedges", "pairs.bin"), (("pairs.bin",) * 2,), "pairs.bin", _BYTES, 2),
        Case("dgl", convert("dgl", "dgl.bin"), (("dgl.bin",) * 2,), "dgl.bin", _BYTES, 6),
        Case("graphml", convert("graphml", "g.graphml"), (("g.graphml",) * 2,), "g.graphml", _TEXT, 4),
    ]
    web = (("web.graph", "web.graph"), ("web.properties", "web.properties"))
    for name, ways, weight in (("web.graph", _BYTES, 6), ("web.properties", _TEXT, 6)):
        found.append(Case("bvgraph", convert("bvgraph", "web.graph"), web, name, ways, weight))
    paper, cites = f"{MAG}/processed/paper", f"{MAG}/processed/paper___cites___paper"
    for name, ways in (
        (f"{paper}/node_feat.npy", _BYTES),
        (f"{paper}/node_label.npy", _BYTES),
        (f"{cites}/edge_index.npy", _BYTES),
        (f"{MAG}/meta.pt", _BYTES),
        (f"{MAG}/split_dict.pt", _BYTES),
    ):
        found.append(Case("mag240m", _ogb("mag240m"), ((MAG, MAG),), name, ways, 4))
    for name in ("raw/data.npz", "raw/node-label.npz", "split/time/train.csv.gz"):
        found.append(Case("papers100M", _ogb("ogbn-papers100M"), ((PAPERS, PAPERS),), f"{PAPERS}/{name}", _BYTES, 4))
    return found


def _ogb(name: str) -> Reader:
    return command("convert", f"ogb:{name}?root=.", "out.h5", "--quiet")


def _runs() -> list[Case]:
    """The files of a run that a report and a prediction read."""
    report = command("report", "run", "--out", "page.html", "--quiet")
    pairs = (("run-link", "run"), ("plain-1.h5", "parts.h5"))
    found = [
        Case("a run", report, (("run", "run"),), f"run/{name}", ways, 6)
        for name, ways in (
            ("metrics.jsonl", free(of_lines(needed=("epoch",)), of_nested_json(), of_bytes(checked=False))),
            ("summary.json", _JSON),
            ("ranks.json", _JSON),
            ("config.toml", _TOML),
        )
    ]
    for name in ("pairs.txt", "pairs.npy"):
        predict = command("predict", "parts.h5", "run", "--out", "p.h5", "--pairs", name, "--quiet")
        ways = _TEXT if name.endswith("txt") else _BYTES
        found.append(Case("pairs", predict, (*pairs, (name, name)), name, ways, 5))
    launch = command("launch", "-n", "4", "--hostfile", "hosts", "--ranks-per-host", "2", "--dry-run", "--", "true")
    return [*found, Case("hostfile", launch, (("hosts", "hosts"),), "hosts", _TEXT, 3)]


def _studies() -> list[Case]:
    records = free(of_lines(needed=("key", "status")), of_nested_json(), of_nested_json(), of_bytes(checked=False))
    targets = (*_STUDY, ("targets.toml", "targets.toml"))
    specification = (("study.toml", "study.toml"),)
    report = command("study", "report", "study")
    submit = command("study", "submit", "study.toml", "--out", "new", "--dry-run")
    return [
        Case("a study", report, _STUDY, "study/records.jsonl", records, 8),
        Case("a study", report, _STUDY, "study/study.toml", _TOML, 6),
        Case("a study", command("report", "study", "--out", "page.html"), _STUDY, "study/records.jsonl", records, 4),
        Case("a study", command("study", "check", "study", "targets.toml"), targets, "targets.toml", _TOML, 8),
        Case("a study", command("study", "list", "study.toml"), specification, "study.toml", _TOML, 10),
        Case("a study", submit, specification, "study.toml", _TOML, 4),
    ]


def _models() -> list[Case]:
    decisions = free(of_lines(needed=("epoch",)), of_nested_json(), of_bytes(checked=False))
    fitted = (*_FITTED, ("plain-2.h5", "parts.h5"))
    like = (*fitted, ("run-adaqp", "run"))
    predict = command("model", "predict", "model.toml", "parts.h5", "--rate", "1gbit", "--quiet")
    network = command("model", "predict", "model.toml", "parts.h5", "--network", "profile.toml", "--quiet")
    as_before = command("model", "predict", "model.toml", "parts.h5", "--bits", "adaqp", "--like", "run", "--quiet")
    return [
        Case("a cost model", predict, fitted, "model.toml", _TOML, 10),
        Case("a cost model", network, (*fitted, ("profile.toml", "profile.toml")), "profile.toml", _TOML, 6),
        Case("a cost model", as_before, like, "run/config.toml", _TOML, 4),
        Case("a cost model", as_before, like, "run/decisions.jsonl", decisions, 4),
    ]


def _checked() -> list[Case]:
    """The reader `hpcgnn check`, which reads every byte of files with checksums."""
    ways = (of_hdf5(checked=True), of_hdf5(checked=True), of_bytes(), of_place(may_be_missing=False))
    stored = (of_checkpoint(), of_checkpoint(), of_bytes(), of_place(may_be_missing=False))
    names = ("graph.h5", "parts.h5", "last.pt")
    sources = ("plain-graph.h5", "plain-2.h5", "run/checkpoints/last.pt")
    readers = [command("check", name, "--quiet") for name in names]
    found = zip(readers, sources, names, (ways, ways, stored), strict=True)
    return [Case(f"{name}", reader, ((source, name),), name, how, 6) for reader, source, name, how in found]
