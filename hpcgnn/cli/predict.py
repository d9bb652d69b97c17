"""``hpcgnn predict``: scores of nodes, embeddings, scores of node pairs, or answers to questions."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hpcgnn.base.lazy import importing
from hpcgnn.cli import console
from hpcgnn.cli.options import AS_JSON, FILE, QUIET
from hpcgnn.cli.train import same_option
from hpcgnn.train.config import REAL_METRICS
from hpcgnn.world import MpiWorld, check_alike

_TOP = 10


@click.command(epilog="\b\nExample\n  mpirun -n 4 hpcgnn predict parts.h5 run --out predictions.h5")
@click.argument("parts", type=FILE)
@click.argument("run", type=FILE)
@click.option("--out", required=True, type=FILE,
              help="File to write, HDF5 except with --questions: /scores (nodes, classes) float32, before softmax or sigmoid, or "
                   "(nodes, targets) values of regression; for a run with --task link, /embeddings (nodes, hidden) "
                   "float32.")  # fmt: skip
@click.option("--pairs", type=FILE,
              help="For a run with --task link, write /pair_scores (pairs,) of the node pairs in this file instead: text with "
                   "two original ids a line, or a .npy file of integers (pairs, 2); for decoders but dot and mlp, also the "
                   "type of edges, as a third number. The source comes first. A higher score means a more likely link. "
                   "Each pair takes 8 x --hidden bytes of memory.")  # fmt: skip
@click.option("--questions", type=FILE,
              help="For a run with --task link, write the most likely tails of the questions in this file instead, to a csv "
                   "file: a line for each answer, with its name and score. A line of the questions is a head, and in a graph "
                   "with types of edges a comma and a type. Both are names; types may be numbers, and so are nodes "
                   "without names.")  # fmt: skip
@click.option("--top", type=click.IntRange(1), default=_TOP, show_default=True, help="Answers to each of --questions.")
@click.option("--new-only", is_flag=True, help="Leave out answers that are edges of the graph already.")
@click.option("--checkpoint", "which", type=click.Choice(["best", "last"]), default="best", show_default=True,
              help="Checkpoint of the run folder: that of the best validation metric, or the last one.")  # fmt: skip
@same_option("features")
@same_option("device")
@same_option("timeout")
@click.option("--force", is_flag=True, help="Overwrite --out if it exists.")
@QUIET
@AS_JSON
def predict(
    parts: Path, run: Path, out: Path, pairs: Path | None, questions: Path | None, top: int, new_only: bool, which: str,
    features: str, device: str, timeout: float, force: bool, quiet: bool, as_json: bool,
) -> None:  # fmt: skip
    """Write the scores of the trained model in RUN for every node of PARTS, in the order of original ids.

    RUN is a run folder or a checkpoint file. The number of ranks need not be the number of parts. PARTS may be another graph
    than the one of the training if its features have the same columns; a note on stderr then says what differs. Messages are
    sent along all its edges.
    """
    if pairs is not None and questions is not None:
        raise click.UsageError("--pairs and --questions ask for different files: give one of them")
    if questions is None and (new_only or top != _TOP):
        raise click.UsageError("--top and --new-only are about answers: give --questions as well")
    with importing():
        from hpcgnn.graph.local_graph import load
        from hpcgnn.train import answers, checkpoint
        from hpcgnn.train import predict as prediction
        from hpcgnn.train.run_folder import RunFolder
        from hpcgnn.world.devices import use_threads

    world = check_alike(MpiWorld(timeout_seconds=timeout))
    console.set_up_logging("warning", world.rank, quiet=quiet)
    use_threads(world)
    path = run if run.is_file() else checkpoint.folder(run) / f"{which}.pt"
    graph = load(parts, world, any_ranks=True, device=device, features=features)
    content = checkpoint.read(world, path, None)
    differing = prediction.other_data(graph, content)
    if differing and world.rank == 0 and not quiet:
        console.note(f"{path} was trained on another graph: {parts} differs in {differing}")
    inputs = [path, *RunFolder(run).files(), *filter(None, [pairs, questions])]
    if questions is not None:
        asked = answers.read_questions(graph, questions)
        found = answers.answer(graph, content, asked, top, new_only=new_only)
        answers.write_answers(graph, asked, found, out, force=force, inputs=inputs)
    elif pairs is not None:
        scores = prediction.score_pairs(graph, content, prediction.read_pairs(world, pairs))
        prediction.write_pair_scores(graph, scores, out, force=force, inputs=inputs)
    else:
        scores = prediction.predict(graph, content)
        what = "scores" if content["model_config"].get("decoder", "none") == "none" else "embeddings"
        prediction.write_predictions(graph, scores, out, force=force, what=what, inputs=inputs)
    world.close()
    facts = {"checkpoint": str(path), "trained_epochs": content["next_epoch"], "nodes": graph.meta.num_nodes}
    columns = "targets" if content.get("metric") in REAL_METRICS else "classes"
    if questions is not None:
        facts |= {"questions": len(asked.texts), "answers": int((found[0] >= 0).sum())}
    else:
        facts |= {"pairs": str(pairs)} if pairs else {columns if what == "scores" else "width": scores.shape[1]}
    facts |= {"ranks": world.size, "out": str(out)}
    if world.rank == 0 and as_json:
        print(json.dumps(facts))
    elif world.rank == 0 and not quiet:
        console.table("predictions written", ((name.replace("_", " "), value) for name, value in facts.items()))
