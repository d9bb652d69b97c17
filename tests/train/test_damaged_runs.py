"""Run folders with a file that no run has written: one sentence, the same on all ranks, before anything is used."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small_graphs
import torch
from command_line import said
from damages import budget, change_bytes, change_nested, change_values, refusal
from hypothesis import given
from hypothesis import strategies as st
from trainings import trainer_of

import hpcgnn
from hpcgnn.base import whole_file
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.policy.clock import Clock, read_log
from hpcgnn.train import archive, checkpoint, predict
from hpcgnn.train.run_folder import RunFolder
from hpcgnn.world import World
from hpcgnn.world.thread_world import on_threads

SETTINGS = {"model": "gcn", "layers": 2, "hidden": 8, "checkpoint_every": 2}
SETTINGS |= {"bits": "adaqp", "staleness": "pipeqs", "bypass": "late"}
LAST, BEST, MESSAGES = "checkpoints/last.pt", "checkpoints/best.pt", "checkpoints/messages/4-1.pt"


def train(
    world: World,
    parts: Path,
    out: Path,
    epochs: int = 4,
    *,
    resume: bool = False,
    log: Path | None = None,
    seed: int = 0,
):
    graph, clock = hpcgnn.load(parts, world), Clock(None if log is None else read_log(world, log))
    trainer = trainer_of(graph, SETTINGS | {"epochs": epochs, "seed": seed}, run=RunFolder(out), clock=clock)
    if resume:
        trainer.resume()
    trainer.fit()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    small_graphs.in_parts(folder / "parts.h5", small_graphs.random_multigraph(), 2)
    for seed, name in enumerate(("run", "other")):
        on_threads(2, lambda world, out=folder / name, seed=seed: train(world, folder / "parts.h5", out, seed=seed))
    return folder


@pytest.fixture
def run(whole, tmp_path) -> Path:
    shutil.copytree(whole / "run", tmp_path / "run")
    return tmp_path / "run"


def resumed(whole: Path, run: Path) -> None:
    on_threads(2, lambda world: train(world, whole / "parts.h5", run, 6, resume=True))


def refused(job: Callable[[], object], *words: str) -> None:
    with pytest.raises(HpcgnnError) as told:
        job()
    assert told.value.agreed, "all ranks say it"
    assert all(word in str(told.value) for word in words), str(told.value)


def edited(path: Path, place: tuple[Any, ...], value: Any) -> None:
    """Edit a checkpoint as a version without digests would have written it."""
    content = torch.load(path, weights_only=True)
    del content["digest"]
    content["version"] = 1
    *above, name = place
    table = content
    for each in above:
        table = table[each]
    if value is ...:
        del table[name]
    else:
        table[name] = value(table[name]) if callable(value) else value
    torch.save(content, path)


def with_nan(values: torch.Tensor) -> torch.Tensor:
    return torch.full_like(values, float("nan"))


FIELDS = [  # of the checkpoint
    (("next_epoch",), ..., "next_epoch is missing"),
    (("model",), ["w"], "model must be a table of names and values, not a list"),
    (("model",), {}, "has 2 layers, but there are only 0 weights"),
    (("model", "stranger"), torch.ones(2), "has weights stranger, which this model does not have"),
    (("model", "layers.0.weight"), lambda w: w.T.contiguous(), "(8, 9) float32, but this model has (9, 8) float32"),
    (("model", "layers.0.weight"), lambda w: w.double(), "float64, but this model has"),
    (("model", "layers.0.weight"), with_nan, "NaN or infinite values in the weights layers.0.weight"),
    (("best_model", "layers.0.weight"), lambda w: w[:1].clone(), "but this model has"),
    (("best", "val_metric"), float("nan"), "best.val_metric must be a number that is finite"),
    (("optimiser", "state", 0, "exp_avg"), lambda w: w[:1].clone(), "optimiser, parameter 0"),
    (("optimiser", "state", 0, "exp_avg_sq"), with_nan, "NaN or infinite values"),
    (("optimiser", "state"), lambda state: {99: state[0]}, "an optimiser with more parameters"),
    (("optimiser", "param_groups"), [], "other groups of parameters"),
    (("model_config", "model"), ..., "model_config: model is missing"),
    (("model_config", "hidden"), 10**12, "no weights have this width"),
    (("model_config", "layers"), 10**12, "layers, but there are only"),
    (("policies", "state", "bits", "due"), "x", "due must be a whole number or nothing"),
    (("policies", "state", "staleness"), 3, "policies: staleness"),
    (("version",), 7, "it has no digest"),
    (("seed",), 3, "was made with --seed 3, not 0: resume with the same value"),
]  # fmt: skip


def test_what_ranks_kept_may_not_be_exchanged(whole, run):
    """They look like files for other parts, with which a run would start its exchanges from the beginning."""
    mine, theirs = run / MESSAGES, run / MESSAGES.replace("-1.pt", "-0.pt")
    mine.write_bytes(theirs.read_bytes())
    refused(lambda: resumed(whole, run), str(mine), "belongs to rank 0")


@pytest.mark.parametrize("files", ["4-*.pt", "4-1.pt"])
def test_what_ranks_kept_in_another_run_is_refused(whole, run, files):
    """It fits the parts, the model and the policies; the checkpoint has the digest of all ranks' files."""
    for other in (whole / "other" / MESSAGES).parent.glob(files):
        shutil.copy(other, (run / MESSAGES).parent)
    for job in (lambda: resumed(whole, run), lambda: said("check", run)):
        assert "messages does not belong to its checkpoint" in str(refusal(job, run)[0])


KEPT = ("kept", "mailboxes", (1, False, 0, 4))
OF_RANKS = [  # of what a rank keeps
    (("kept",), ..., "must be a table"),
    ((*KEPT, "arrived"), None, "arrived must be"),
    ((*KEPT, "in_flight"), lambda sent: (sent[0], -1), "of at least 0"),
    (KEPT, ..., "does not belong to its checkpoint"),
    (("kept", "mailboxes", (9, False, 0, 4)), {}, "which this model does not exchange"),
    ((*KEPT, "last"), torch.zeros(1, 4), "but the exchange needs numbers"),
    ((*KEPT, "arrived_sums"), lambda rows: rows[1:].clone(), "sums of layer 2's boundary rows"),
    (("policies", "bits", "layer 1's boundary rows", "sent"), lambda bits: bits[1:].clone(), "the bit-widths and ranges of"),
    (("policies", "bits", "layer 1's boundary rows", "sent"), lambda bits: bits + 1, "the bit-widths and ranges of"),
    (("policies", "bits", "layer 1's boundary rows"), ..., "the exchanges are not those of this model"),
    (("policies", "changes", "layer 2's gradients", "kept", (0, 4), "epochs"), [1], "the sampled rows have the shape"),
]  # fmt: skip


OF_FILES = [(LAST, *field) for field in FIELDS] + [(MESSAGES, *field) for field in OF_RANKS]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "place", "value", "sentence"), OF_FILES, ids=[sentence for *_, sentence in OF_FILES])
def test_every_field_is_checked(whole, run, name, place, value, sentence):
    edited(run / name, place, value)
    refused(lambda: resumed(whole, run), str(run), sentence)


def test_a_place_in_a_message_stays_inside(whole, run):
    """Native code uses it as an index."""
    content = torch.load(run / MESSAGES, weights_only=True)
    box = next(box for box in content["kept"]["mailboxes"].values() if "groups" in box.get("in_flight", [{}])[0])
    for number in (1, 2, 3):
        place = box["in_flight"][0]["groups"][0][number]
        for wrong in (-1, 1 << 40):
            kept, place[0] = int(place[0]), wrong
            del content["digest"]
            torch.save(content, run / MESSAGES)
            refused(lambda: resumed(whole, run), str(run), "have a position outside of the message")
            content["digest"], place[0] = "", kept


def flip(path: Path, content: bytes) -> None:
    """Flip a bit in the middle of this part of the file."""
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(content) + len(content) // 2] ^= 4
    path.write_bytes(damaged)


def predicted(whole: Path, run: Path) -> None:
    def job(world: World) -> None:
        content = checkpoint.read(world, run / BEST, None)
        predict.predict(hpcgnn.load(whole / "parts.h5", world), content)

    on_threads(2, job)


DAMAGE = {
    "the checksum of its member": lambda path: flip(path, weight_in(path)),
    "is missing": lambda path: edited(path, ("parts_uuid",), ...),
    "has no weights": lambda path: edited(path, ("model", "layers.0.weight"), ...),
    "no checkpoint": lambda path: path.unlink(),
    "not a checkpoint": lambda path: path.write_bytes(b""),
}


def weight_in(path: Path) -> bytes:
    return torch.load(path, weights_only=True)["model"]["layers.0.weight"].numpy().tobytes()


@pytest.mark.parametrize("sentence", DAMAGE)
def test_predictions_refuse_what_training_refuses(whole, run, sentence):
    predicted(whole, run)
    DAMAGE[sentence](run / BEST)
    refused(lambda: predicted(whole, run), str(run / BEST), sentence)


LINES = [
    ("metrics.jsonl", [], "line 2: it must be a table"),
    ("metrics.jsonl", {"epoch": 0}, "line 2: epoch 0 comes after epoch 0"),
    ("metrics.jsonl", {"bits": "8"}, "line 2: bits"),
    ("metrics.jsonl", {"bits": {"layer": {"3": 1}}}, "line 2"),
    ("decisions.jsonl", {"observed": {"late": 3}}, "line 2: observed.late must be a list"),
    ("decisions.jsonl", {"epoch": 2}, "line 3: epoch 2 comes after epoch 2"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "sentence"), LINES)
def test_lines_of_a_run_are_checked_by_all_ranks(whole, run, tmp_path, name, change, sentence):
    lines = [json.loads(line) for line in (run / name).read_text().splitlines()]
    lines[1] = lines[1] | change if isinstance(change, dict) else change
    (run / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    refused(lambda: resumed(whole, run), str(run / name), sentence, "remove it to resume")
    if name == "decisions.jsonl":
        again = tmp_path / "again"
        job = lambda world: train(world, whole / "parts.h5", again, log=run / name)  # noqa: E731
        refused(lambda: on_threads(2, job), str(run / name), sentence, "needs the decisions.jsonl of a run")
    assert {path: path.read_bytes() for path in before} == before


def test_what_a_killed_run_has_left_goes_when_it_is_resumed(whole, run):
    gone = 2**22 + 1  # above every process id
    folders = (run, run / "checkpoints", (run / MESSAGES).parent)
    left = [folder / f".x.{whole_file._host()}.{gone}.hpcgnn.tmp" for folder in folders]
    for path in left:
        path.touch()
    resumed(whole, run)
    assert not any(path.exists() for path in left)


# -- drawn damage ------------------------------------------------------------------------------------------------------


def drawn_damage(data: st.DataObject, path: Path) -> tuple[str, str]:
    """Damage a file of a run. Return the damage in words, and "digest" if the digest or checksums must show it, "values" if only
    the values can."""
    if path.suffix != ".pt":
        return change_values(data, path), "values"
    if data.draw(st.integers(0, 2)) == 0:
        return change_bytes(data, path), "digest"
    content = torch.load(path, weights_only=True)
    changed, what = change_nested(data, content)
    if has_new_digest := data.draw(st.booleans()):
        archive.write(path, {name: value for name, value in changed.items() if name != archive.DIGEST})
    else:
        torch.save(changed, path)
    return what, "values" if has_new_digest else "digest"


def check_read(path: Path, wanted: str, what: str, noticed: str) -> bool:
    """Check that a checkpoint is refused, or has the values of the whole one; return whether it is refused."""
    error, found = refusal(lambda: archive.digest_of(archive.read(path, path)), path)
    assert error or noticed == "values" or found == wanted, f"{path.name} is read with other values: {what}"
    return error is not None


@budget(30)
@given(data=st.data())
def test_drawn_damage_is_one_sentence_or_changes_nothing(whole: Path, data: st.DataObject) -> None:
    """Every file of a run, and every field of each."""
    with tempfile.TemporaryDirectory(dir=whole) as folder:
        run = Path(shutil.copytree(whole / "run", Path(folder) / "run"))
        path = data.draw(st.sampled_from(sorted(each for each in run.rglob("*") if each.is_file())))
        wanted = archive.digest_of(archive.read(path, path)) if path.suffix == ".pt" else ""
        what, noticed = drawn_damage(data, path)
        if wanted:
            check_read(path, wanted, what, noticed)
        refusal(lambda: said("check", run, "--json"), run)
        refusal(lambda: said("show", run, "--json"), run)
        refusal(lambda: predicted(whole, run), run)
        error, _ = refusal(lambda: resumed(whole, run), run)
        assert error is None or error.agreed, "all ranks say it"
