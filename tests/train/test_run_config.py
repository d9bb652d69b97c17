"""One configuration: the same combinations are refused by the command, in Python and for distributed models; names are mapped
both ways.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import click
import pytest
import small_graphs
import tomli_w
import torch
import torch_geometric.nn as pyg

import hpcgnn
from hpcgnn.cli import train_options
from hpcgnn.cli.train import train as train_command
from hpcgnn.comm import MessageConfig, Messages
from hpcgnn.comm.thread_world import one_rank
from hpcgnn.errors import HpcgnnError
from hpcgnn.nn.config import MODELS, describe, described
from hpcgnn.policy.config import BITS_POLICIES, FIXED
from hpcgnn.stop import StopRequest
from hpcgnn.train.run_config import RunConfig, settings_by_name

PRESETS = sorted((Path(hpcgnn.__file__).parent / "presets").glob("*.toml"))
OLD_CONFIG = Path(__file__).with_name(
    "config_of_before.toml"
)  # settings of a run from before settings belonged to models and policies
NEW_SETTINGS = {"node_aware": "auto"}  # settings that all runs use, and that older files do not have
DELTA = {"bits": "2", "message_coding": "delta"}
REFUSED = [
    # Settings that must not be combined.
    (DELTA, "--message-coding delta needs --dropout 0"),
    (DELTA | {"dropout": 0.0, "input_dropout": 0.2}, "and --input-dropout 0, not 0.2"),
    (DELTA | {"dropout": 0.0, "label_propagation": 0.5}, "--message-coding delta needs --label-redraw once"),
    (DELTA | {"dropout": 0.0, "task": "link"}, "--message-coding delta cannot be used with --task link"),
    (DELTA | {"dropout": 0.0, "staleness": "pipeline"}, "--message-coding delta needs --staleness off"),
    (DELTA | {"dropout": 0.0, "bits": "adaqp"}, "and --bits other than adaqp and pipeqs, which decide by rows and not by "),
    (DELTA | {"dropout": 0.0, "bits": "pipeqs"}, "which decide by rows and not by differences"),
    (DELTA | {"dropout": 0.0, "bits": "32"}, "choose --bits 16 or fewer"),
    (DELTA | {"dropout": 0.0, "eval_precision": "training"}, "evaluations send no differences"),
    ({"task": "link", "label_propagation": 0.5}, "--label-propagation cannot be used with --task link"),
    ({"task": "link", "metric": "accuracy"}, "with --task link, not 'accuracy'"),
    ({"metric": "hits@10"}, "with --task node, not 'hits@10'"),
    ({"cache_input_aggregation": True, "model": "gat"}, "gat does not begin with one"),
    ({"cache_input_aggregation": True, "input_dropout": 0.5}, "(--input-dropout)"),
    ({"cache_input_aggregation": True, "label_propagation": 0.5}, "(--label-propagation)"),
    ({"model": "gat", "heads": 3}, "heads must divide hidden"),
    ({"task": "link", "link_split": [0.5, 0.6]}, "two shares of at least 0 whose sum is below 1"),
    # Settings that the run does not use.
    ({"model": "gcn", "teleport": 0.1}, "--teleport is not used by gcn: appnp and gcnii use it"),
    ({"model": "gatv2", "attention": "partial"}, "--attention is not used by gatv2: gat uses it"),
    ({"model": "sgc", "layers": 2}, "--layers is not used by sgc: appnp, "),
    ({"model": "gat", "strategy": "pre"}, "--strategy is not used by gat, which sends the rows of neighbours as they are: "),
    ({"dense_weight_decay": 0.1}, "--dense-weight-decay is not used by sage: appnp and gcnii use it"),
    ({"bits": "sylvie", "variance_weight": 0.5}, "--variance-weight is not used by --bits sylvie"),
    ({"bits": "sylvie", "refit_links": True}, "--bits adaqp uses it"),
    ({"bits": "8", "bits_period": 3}, "--bits-period is not used by fixed bits with --staleness off: --bits adaqp and --bits"),
    ({"smoothing": "none"}, "--staleness pipeline, --staleness pipeqs and --staleness sylvie use it"),
    ({"staleness": "pipeline", "smoothing_decay": 0.5}, "--smoothing features, gradients and both use it"),
    ({"replay": "decisions.jsonl"}, "--replay is not used by a run without policies"),
    ({"label_redraw": "once"}, "--label-redraw is not used here: --label-propagation above 0 uses it"),
    ({"decay": 0.5}, "--decay is not used here: --schedule step and plateau use it"),
    ({"negatives": 1}, "--negatives is not used by --task node: --task link uses it"),
    ({"decoder": "dot"}, "--decoder is not used by --task node: --task link uses it"),
    # Impossible values.
    ({"layers": 0}, "layers must be at least 1 and at most 10000, not 0"),
    ({"bits": "3"}, "bits must be one of 32, 16, 8, 4, 2, 1, adaqp, pipeqs, sylvie, uniform, not '3'"),
    ({"timeout": 0}, "timeout must be above 0, not 0"),
    ({"layer": 3}, "there is no setting layer"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "sentence"), REFUSED)
def test_what_cannot_be_is_refused_in_a_sentence(settings, sentence):
    with pytest.raises(HpcgnnError) as refused:
        RunConfig.from_settings(settings).check()
    assert sentence in str(refused.value)


@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize(
    ("bits", "staleness"), [*itertools.product(BITS_POLICIES, ["off"]), ("fixed", "pipeline"), ("pipeqs", "pipeqs")]
)
def test_settings_go_there_and_back(model, bits, staleness):
    bits = "32" if bits == FIXED else bits
    run = RunConfig.from_settings({"model": model, "bits": bits, "staleness": staleness, "hidden": 64})
    run.check()
    told = run.settings()
    assert RunConfig.from_settings(told) == run
    tomli_w.dumps({name: value for name, value in told.items() if value is not None})
    unused = run.unused()
    not_told = {name for name, each in settings_by_name().items() if not each.setting.about.is_kept}
    assert told.keys() | unused.keys() | not_told == settings_by_name().keys()
    assert not told.keys() & unused.keys()


def test_presets_have_settings_that_their_models_use():
    assert len(PRESETS) > 3
    for path in PRESETS:
        given = tomllib.loads(path.read_text())
        run = RunConfig.from_settings(given)
        run.check()
        assert given.items() <= run.settings().items(), path


def test_options_are_the_settings_with_their_defaults():
    options = {option.name: option for option in train_command.get_params(click.Context(train_command))}
    assert settings_by_name().keys() < options.keys()
    assert len(options) == len(train_command.params) + len(settings_by_name()) + 1  # and --help
    defaults = {name: options[name].default for name in settings_by_name()}
    assert RunConfig.from_settings(defaults, lenient=defaults) == RunConfig()
    assert all(options[name].help for name in settings_by_name() if name not in ("seed", "weight_decay", "device"))


TOML = [
    ("epochs = 2.5", "epochs must be a whole number, not 2.5"),
    ('epochs = "5"', "epochs must be a whole number, not '5'"),
    ("epochs = [3]", "epochs must be a whole number, not [3]"),
    ("epochs = true", "epochs must be a whole number, not True"),
    ("epochs = 1e3", "epochs must be a whole number, not 1000.0"),
    ("epochs = 100000000000000000000", "epochs must be at least 1 and below 2^63"),
    ("lr = nan", "lr must be above 0 and at most 1e+30, not nan"),
    ("lr = inf", "lr must be above 0 and at most 1e+30 and finite, not inf"),
    ("lr = 1e38", "lr must be above 0 and at most 1e+30, not 1e+38"),
    ("weight_decay = 1e39", "weight_decay must be at least 0 and at most 1e+30, not 1e+39"),
    ('model = ["gcn"]', "model must be one of"),
    ("hidden = {a = 1}", "hidden must be a whole number"),
    ("link_split = [0.1]", "link_split must be two numbers"),
    ('link_split = ["a", 0.1]', "link_split must be two numbers"),
    ("quiet = 3", "quiet must be true or false"),
    ("parts = 3", "parts must be a text"),
    ('log_level = "loud"', "log_level cannot be 'loud'"),
    ('out = "elsewhere"', "out cannot be set in a file: give --out on the command line"),
    ("a = " + "[" * 100_000, "cannot read"),
    ("epochs = ", "cannot read"),
    ('modle = "gcn"', "has unknown settings: modle (did you mean model?); `hpcgnn train --help`"),
    ("zzz = 1\nouts = 1", "has unknown settings: outs, zzz; `hpcgnn train --help`"),
]


@pytest.mark.parametrize(("text", "sentence"), TOML)
def test_what_a_file_says_is_checked_before_it_becomes_a_default(tmp_path, text, sentence):
    path = tmp_path / "settings.toml"
    path.write_text(text)
    context = train_command.make_context("train", ["x.h5", "--out", str(tmp_path / "run"), "--config", str(path)])
    with pytest.raises(HpcgnnError) as refused:
        train_options.run_config(context, {}, set())  # where ranks agree on errors
    assert str(path) in str(refused.value)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


# -- one set of rules for all ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return small_graphs.on_ranks(
        one_rank(), small_graphs.random_multigraph(), tmp_path_factory.mktemp("one") / "parts.h5"
    )


def trainer(graph, settings):
    """A trainer as a Python program makes one."""
    run = RunConfig.from_settings(settings)
    links = hpcgnn.split_links(graph, run.links) if run.task == "link" else None
    model = hpcgnn.build_model(
        run.model,
        graph if links is None else links.train,
        messages=Messages(graph.world, run.messages),
        keep_input_aggregation=run.cache_input_aggregation,
    )
    return hpcgnn.Trainer(model, links or graph, run.train, stop=StopRequest())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (settings, sentence)
        for settings, sentence in REFUSED[: next(k for k, (_, s) in enumerate(REFUSED) if "teleport" in s)]
    ],
)
def test_a_trainer_refuses_what_the_command_refuses(graph, settings, sentence):
    trainer(graph, {"hidden": 16})
    with pytest.raises(HpcgnnError) as refused:
        trainer(graph, {"hidden": 16} | settings)
    assert sentence in str(refused.value)


def test_a_trainer_refuses_settings_of_its_own_that_nothing_uses(graph):
    model = hpcgnn.build_model(hpcgnn.ModelConfig("gcn", layers=2, hidden=8), graph)
    wrong = {
        "--dense-weight-decay is not used by gcn": hpcgnn.TrainConfig(dense_weight_decay=0.1),
        "--decay is not used here": replace(
            hpcgnn.TrainConfig(), schedule=replace(hpcgnn.TrainConfig().schedule, decay=0.1)
        ),
        "ModelConfig.label_inputs must be True": replace(
            hpcgnn.TrainConfig(), labels=replace(hpcgnn.TrainConfig().labels, rate=0.5)
        ),
    }
    for sentence, config in wrong.items():
        with pytest.raises(HpcgnnError, match=sentence):
            hpcgnn.Trainer(model, graph, config, stop=StopRequest())


def users_model(dropout: float) -> torch.nn.Module:
    return pyg.GraphSAGE(9, 8, 2, 4, dropout=dropout)


def test_distributed_models_are_held_to_the_same_rules(graph):
    delta = MessageConfig(2, "delta")
    with pytest.raises(HpcgnnError, match="--message-coding delta needs --dropout 0"):
        hpcgnn.distribute(users_model(0.5), graph, messages=delta, check=False)
    model = hpcgnn.distribute(users_model(0.0), graph, messages=delta, check=False)
    hpcgnn.Trainer(model, graph, stop=StopRequest())
    wrong = {
        "--message-coding delta needs --staleness off": hpcgnn.PolicyConfig(staleness="pipeline"),
        "which decide by rows and not by differences": hpcgnn.PolicyConfig("adaqp"),
    }
    for sentence, policy in wrong.items():
        with pytest.raises(HpcgnnError, match=sentence):
            hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(policy=policy), stop=StopRequest())
    with pytest.raises(HpcgnnError, match="with --task node, not 'hits@10'"):
        hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(metric="hits@10"), stop=StopRequest())
    with pytest.raises(HpcgnnError, match="dense-weight-decay is not used by GraphSAGE: appnp and gcnii use it"):
        hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(dense_weight_decay=0.1), stop=StopRequest())


# -- older runs --------------------------------------------------------------------------------------------------------


def test_files_of_older_runs_have_settings_that_nothing_uses():
    given = tomllib.loads(OLD_CONFIG.read_text())
    del given["parts"]
    run = RunConfig.from_settings(given, lenient=given)
    run.check()
    assert run.settings().items() <= (given | NEW_SETTINGS).items()
    with pytest.raises(HpcgnnError, match="--decoder is not used by --task node: --task link uses it"):
        RunConfig.from_settings(given)


def test_descriptions_of_older_models_are_those_of_new_ones():
    before = {
        "model": "gcnii", "layers": 4, "hidden": 16, "norm": "batch", "activation": "relu", "label_inputs": False, "heads": 8,
        "output_heads": 1, "hops": 0, "teleport": 0.2, "identity": 0.5, "decoder": "none", "features": 9, "classes": 4,
    }  # fmt: skip
    config = hpcgnn.ModelConfig("gcnii", layers=4, hidden=16, norm="batch", teleport=0.2, dropout=0.1)
    assert described(before) == replace(config, dropout=0.5)
    assert describe(described(before), 9, 4) == describe(config, 9, 4)
    assert describe(config, 9, 4) == {
        name: value for name, value in before.items() if name not in ("heads", "output_heads", "hops")
    }


def command(out: Path, *flags: object, parts: Path | str = "") -> subprocess.CompletedProcess[str]:
    words = [
        sys.executable,
        "-m",
        "hpcgnn",
        "train",
        *filter(None, (str(parts),)),
        "--out",
        str(out),
        *map(str, flags),
        "--quiet",
    ]
    return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.mark.mpi
def test_old_run_folders_go_on_and_are_repeated(graph, tmp_path):
    """An old config.toml has all settings; those that a flag sets without effect are refused all the same."""
    parts, run = graph.path, tmp_path / "run"
    text = OLD_CONFIG.read_text().replace('parts = "parts.h5"', f'parts = "{parts}"')
    (tmp_path / "old.toml").write_text(text)
    first = command(run, "--config", tmp_path / "old.toml", parts=parts)
    assert first.returncode == 0, first.stderr
    assert first.stderr == ""
    (run / "config.toml").write_text(text)  # as the older version left it, with its description of the model
    last = run / "checkpoints" / "last.pt"
    content = torch.load(last, weights_only=True)
    del content["digest"]
    content["version"] = 1
    content["model_config"] |= {"heads": 8, "output_heads": 1, "hops": 0, "teleport": 0.1, "identity": 0.5}
    torch.save(content, last)
    refused = command(run, "--resume", "--teleport", 0.2)
    assert "--teleport is not used by gcn: appnp and gcnii use it" in refused.stderr
    assert (refused.returncode, (run / "config.toml").read_text()) == (1, text)
    resumed = command(run, "--resume", "--epochs", 5)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 5
    new = tomllib.loads((run / "config.toml").read_text())
    assert new.keys() == {"parts"} | RunConfig.from_settings({"model": "gcn", "device": "cpu"}).settings().keys()
    assert new.items() <= (tomllib.loads(text) | NEW_SETTINGS | {"epochs": 5}).items()


@pytest.mark.mpi
def test_files_that_no_run_wrote_and_presets_are_held_to_the_rules(graph, tmp_path):
    (tmp_path / "mine.toml").write_text('model = "gcn"\nteleport = 0.1\n')
    mine = command(tmp_path / "run", "--config", tmp_path / "mine.toml", parts=graph.path)
    assert "--teleport is not used by gcn" in mine.stderr
    preset = command(tmp_path / "run", "--preset", "gat", "--model", "gcn", parts=graph.path)
    assert "is not used by gcn: gat and gatv2 use it" in preset.stderr
    assert (mine.returncode, preset.returncode) == (1, 1)
    assert not (tmp_path / "run").exists()
    old = OLD_CONFIG.read_text().replace('"gcn"', '"gatv2"')
    (tmp_path / "old.toml").write_text(old)
    again = command(tmp_path / "again", "--config", tmp_path / "old.toml", "--heads", 4, "--json", parts=graph.path)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["epochs"] == 3
    assert tomllib.loads((tmp_path / "again" / "config.toml").read_text())["heads"] == 4
