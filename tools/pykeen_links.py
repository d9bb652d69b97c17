"""Train DistMult and R-GCN on PyKEEN's small graphs with PyKEEN and with hpcgnn, and write the filtered metrics of both.

    python tools/pykeen_links.py docs/pykeen.json

It needs ``pip install pykeen``, whose wheel has the graphs and their splits, and the command ``hpcgnn``. Both train with all
triples in each step, in float32, from rows that are drawn alike, and rank the test triples with the weights of the last epoch.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pykeen
import torch
from pykeen import datasets
from pykeen.evaluation import RankBasedEvaluator
from pykeen.losses import BCEWithLogitsLoss
from pykeen.models import RGCN, DistMult, ERModel
from pykeen.nn import Embedding
from pykeen.training import SLCWATrainingLoop

GRAPHS = ("Nations", "UMLS", "Kinships")
WIDTH, EPOCHS, RATE, NEGATIVES, SEEDS = 64, 150, 0.02, 10, range(3)
METRICS = {"mrr": "both.realistic.inverse_harmonic_mean_rank", "hits@10": "both.realistic.hits_at_10"}
# Those of hpcgnn: rows of embeddings are uniform with variance 1 / WIDTH.
DRAWN = {
    "initializer": torch.nn.init.uniform_,
    "initializer_kwargs": {"a": -((3 / WIDTH) ** 0.5), "b": (3 / WIDTH) ** 0.5},
}
GLOROT = {"initializer": torch.nn.init.xavier_uniform_}


class WithBias(Embedding):
    """Rows with a vector that all nodes share, as those of hpcgnn."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self.bias = torch.nn.Parameter(torch.zeros(WIDTH))

    def _plain_forward(self, indices: torch.Tensor | None = None) -> torch.Tensor:
        return super()._plain_forward(indices) + self.bias


def with_means(made: RGCN) -> RGCN:
    """Weigh messages against triples by the number of triples with this relation and head, as hpcgnn does."""
    layer = made.entity_representations[0].layers[0]
    weighed = layer.bwd.forward

    def forward(
        x: torch.Tensor, source: torch.Tensor, target: torch.Tensor, edge_type: torch.Tensor, **given: Any
    ) -> Any:
        _, place, counts = torch.unique(edge_type * len(x) + target, return_inverse=True, return_counts=True)
        return weighed(
            x=x,
            source=source,
            target=target,
            edge_type=edge_type,
            **given | {"edge_weights": 1 / counts[place].float()},
        )

    layer.bwd.forward = forward
    return made


def of_pykeen(model: str, data: Any, seed: int) -> dict[str, float]:
    """The metrics of a model of PyKEEN: ``distmult`` and ``rgcn`` have the settings of hpcgnn, ``distmult with bias`` also its
    bias, ``rgcn with means`` also its weights of messages, and ``DistMult`` PyKEEN's unit norms and penalty of relations."""
    common = {"triples_factory": data.training, "random_seed": seed, "loss": BCEWithLogitsLoss()}
    if model == "DistMult":
        made = DistMult(embedding_dim=WIDTH, **common)
    elif model in ("distmult", "distmult with bias"):
        kind = Embedding if model == "distmult" else WithBias
        rows = [{"shape": WIDTH, **DRAWN}], [{"shape": WIDTH, **GLOROT}]
        made = ERModel(
            interaction="distmult", entity_representations=[kind], relation_representations=[None],
            entity_representations_kwargs=rows[0], relation_representations_kwargs=rows[1], **common,
        )  # fmt: skip
    else:
        made = RGCN(
            embedding_dim=WIDTH, num_layers=1, edge_dropout=0, self_loop_dropout=0, edge_weighting="inverse_in_degree",
            decomposition="block", decomposition_kwargs={"num_blocks": 8}, base_entity_initializer=DRAWN["initializer"],
            base_entity_initializer_kwargs=DRAWN["initializer_kwargs"], **common,
        )  # fmt: skip
    made = with_means(made) if model == "rgcn with means" else made
    loop = SLCWATrainingLoop(
        model=made, triples_factory=data.training, optimizer=torch.optim.Adam(made.parameters(), lr=RATE),
        negative_sampler="basic", negative_sampler_kwargs={"num_negs_per_pos": NEGATIVES, "filtered": True},
    )  # fmt: skip
    loop.train(data.training, num_epochs=EPOCHS, batch_size=data.training.num_triples, use_tqdm=False)
    known = [data.training.mapped_triples, data.validation.mapped_triples]
    found = RankBasedEvaluator().evaluate(
        made, data.testing.mapped_triples, batch_size=256, additional_filter_triples=known, use_tqdm=False
    )
    return {name: found.get_metric(key) for name, key in METRICS.items()}


def hpcgnn(*words: object) -> str:
    """Run a command, and return what it prints."""
    command = [shutil.which("hpcgnn") or "hpcgnn", *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def prepared(data: Any, folder: Path) -> int:
    """Write ``plain.h5`` and ``inverse.h5``, the parts of a graph without and with the inverse of each triple. Returns the number
    of relations."""
    (folder / "triples").mkdir()
    for name, part in (("train", data.training), ("valid", data.validation), ("test", data.testing)):
        lines = ("\t".join((f"e{s}", f"r{r:03}", f"e{t}")) for s, r, t in part.mapped_triples.tolist())
        (folder / "triples" / f"{name}.txt").write_text("\n".join(lines) + "\n")
    for name, asked in (("plain", ""), ("inverse", "&inverse=yes")):
        hpcgnn("convert", f"edgelist:{folder}/triples?names=yes{asked}", folder / f"{name}-graph.h5", "--quiet")
        hpcgnn("partition", folder / f"{name}-graph.h5", folder / f"{name}.h5", "--parts", 1, "--quiet")
    return int(data.num_relations)


def of_hpcgnn(model: str, relations: int, seed: int, folder: Path) -> dict[str, float]:
    """The metrics of hpcgnn's model; messages of ``rgcn`` also travel against the triples, as in PyKEEN."""
    own: tuple[object, ...] = ("plain.h5", "--layers", 0)
    if model == "rgcn":
        own = "inverse.h5", "--model", "rgcn", "--layers", 1, "--blocks", 8, "--target", ",".join(
            str(2 * each) for each in range(relations))  # fmt: skip
    parts, *settings = own
    out = folder / f"{model}-{seed}"
    hpcgnn(
        "launch", "-n", 1, "-t", 1, "--", "hpcgnn", "train", folder / str(parts), "--out", out,
        "--task", "link", "--decoder", "distmult", "--embed", "all", "--hidden", WIDTH,
        "--dropout", 0, "--norm", "none", "--epochs", EPOCHS, "--eval-every", EPOCHS, "--lr", RATE, "--negatives", NEGATIVES,
        "--seed", seed, "--compute", "float32", *settings,
    )  # fmt: skip
    found = json.loads((out / "summary.json").read_text())["test_ranking"]
    return {name: found[name] for name in METRICS}


def measured(graphs: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A line for each graph, model and library, with the metrics of each seed."""
    for graph in graphs:
        data = getattr(datasets, graph)()
        with tempfile.TemporaryDirectory() as name:
            relations = prepared(data, Path(name))
            for library, model in (
                ("hpcgnn", "distmult"), ("pykeen", "distmult"), ("pykeen", "distmult with bias"), ("pykeen", "DistMult"),
                ("hpcgnn", "rgcn"), ("pykeen", "rgcn"), ("pykeen", "rgcn with means"),
            ):  # fmt: skip
                began, found = time.perf_counter(), []
                for seed in SEEDS:
                    is_own = library == "hpcgnn"
                    found.append(
                        of_hpcgnn(model, relations, seed, Path(name)) if is_own else of_pykeen(model, data, seed)
                    )
                line: dict[str, Any] = {"graph": graph, "library": library, "model": model}
                for metric in METRICS:
                    of_seeds = [each[metric] for each in found]
                    line |= {
                        metric: round(mean(of_seeds), 4),
                        f"{metric} of seeds": [round(each, 4) for each in of_seeds],
                    }
                    line[f"{metric} deviation"] = round(stdev(of_seeds), 4)
                print(line, f"{time.perf_counter() - began:.0f} s", flush=True)
                yield line


def main() -> None:
    """Measure, and write the results to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("graphs", nargs="*", default=GRAPHS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    gc.freeze()  # PyKEEN collects garbage after each step
    told = json.loads(hpcgnn("info", "--json"))
    told = {name: told[name] for name in ("hpcgnn", "torch", "cores", "machine", "isa")}
    told |= {"pykeen": pykeen.get_version(), "torch of pykeen": torch.__version__}
    settings = {"hidden": WIDTH, "epochs": EPOCHS, "lr": RATE, "negatives": NEGATIVES, "seeds": len(SEEDS)}
    result: dict[str, Any] = {"versions": told, "settings": settings, "results": []}
    for line in measured(asked.graphs):
        result["results"].append(line)
        asked.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
