"""One configuration: the same combinations are refused by the command, in Python and for distributed models; names are mapped
both ways.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import click
import pytest
import tomli_w
import torch
from rank_pool import Completed
from requires import require_module
from trainings import lines, trainer_of

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.process import StopRequest
from hpcgnn.cli.train import run_config as configured
from hpcgnn.cli.train import train as train_command
from hpcgnn.exchange import MessageConfig
from hpcgnn.nn.config import MODELS
from hpcgnn.policy.config import BITS_POLICIES, FIXED
from hpcgnn.train.run_config import RunConfig, settings_by_name

PRESETS = sorted((Path(hpcgnn.__file__).parent / "presets").glob("*.toml"))
# Settings of a run from before settings belonged to models and policies
OLD_CONFIG = Path(__file__).with_name("config_of_before.toml")
NEW_SETTINGS = {
    "node_aware": "auto",
    "measure_imbalance": False,
    "loss": "auto",
    "class_weight": "none",
    "label_smoothing": 0.0,
    "activations": "keep",
    "features": "memory",
    "memory_limit": "none",
    "embed": "",
    "target": "",
    "edge_types": "ignore",
}  # settings that all runs use, and that older files do not have
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
    ({"measure_imbalance": True}, "--measure-imbalance needs --overlap off"),
    ({"task": "link", "label_propagation": 0.5}, "--label-propagation cannot be used with --task link"),
    ({"task": "link", "metric": "accuracy"}, "with --task link, not 'accuracy'"),
    ({"task": "link", "metric": "r2"}, "with --task link, not 'r2'"),
    ({"metric": "hits@10"}, "with --task node, not 'hits@10'"),
    ({"cache_input_aggregation": True, "model": "gat"}, "gat does not begin with one"),
    ({"cache_input_aggregation": True, "input_dropout": 0.5}, "(--input-dropout)"),
    ({"cache_input_aggregation": True, "label_propagation": 0.5}, "(--label-propagation)"),
    ({"model": "gat", "heads": 3}, "heads must divide hidden"),
    ({"task": "link", "link_split": [0.5, 0.6]}, "two shares of at least 0 whose sum is below 1"),
    ({"model": "gat", "halo": "pieces", "staleness": "pipeline"}, "--halo pieces keeps no row for a later epoch"),
    (DELTA | {"model": "gat", "halo": "pieces", "dropout": 0.0}, "--halo pieces keeps no row for a later epoch"),
    ({"model": "gat", "halo": "pieces", "attention": "partial"}, "halo pieces needs attention halo"),
    ({"model": "gat", "halo": "pieces", "edge_types": "sum"}, "halo pieces needs attention halo, and edge_types ignore"),
    # Settings that the run does not use.
    ({"model": "gcn", "halo": "pieces"}, "--halo is not used by gcn: gat, gatv2, hgt, rgat and transformer use it"),
    ({"model": "gcn", "teleport": 0.1}, "--teleport is not used by gcn: appnp and gcnii use it"),
    ({"model": "gatv2", "attention": "partial"}, "--attention is not used by gatv2: gat uses it"),
    ({"model": "sgc", "layers": 2}, "--layers is not used by sgc: appnp, "),
    ({"model": "gat", "strategy": "pre"}, "--strategy is not used by gat, which sends the rows of neighbours as they are: "),
    ({"dense_weight_decay": 0.1}, "--dense-weight-decay is not used by sage: appnp and gcnii use it"),
    ({"bits": "sylvie", "variance_weight": 0.5}, "--variance-weight is not used by --bits sylvie"),
    ({"bits": "sylvie", "refit_links": True}, "--bits adaqp uses it"),
    ({"bits": "8", "bits_period": 3}, "--bits-period is not used by fixed bits with --staleness off: --bits adaqp, --bits auto"),
    ({"smoothing": "none"}, "--staleness pipeline, --staleness pipeqs, --staleness sancus and --staleness sylvie use it"),
    ({"staleness": "pipeline", "smoothing_decay": 0.5}, "--smoothing features, gradients and both use it"),
    ({"replay": "decisions.jsonl"}, "--replay is not used by a run without policies"),
    ({"label_redraw": "once"}, "--label-redraw is not used here: --label-propagation above 0 uses it"),
    ({"decay": 0.5}, "--decay is not used here: --schedule step and plateau use it"),
    ({"negatives": 1}, "--negatives is not used by --task node: --task link uses it"),
    ({"decoder": "dot"}, "--decoder is not used by --task node: --task link uses it"),
    ({"loss": "mae", "class_weight": "balanced"}, "--class-weight is not used here: --loss auto uses it"),
    ({"task": "link", "loss": "mse"}, "--loss is not used by --task link: --task node uses it"),
    ({"task": "link", "class_weight": "balanced"}, "--class-weight is not used by --task link: --task node uses it"),
    ({"int8_rounding": "nearest"}, "--int8-rounding is not used by --compute auto: --compute int8 uses it"),
    ({"compute": "bf16-emulated", "int8_before_softmax": True}, "--int8-before-softmax is not used by --compute bf16-emulated"),
    ({"compute": "float32", "int8_most_error": 0.5}, "--int8-most-error is not used by --compute float32"),
    # Impossible values.
    ({"layers": -1}, "layers must be at least 0 and at most 10000, not -1"),
    ({"layers": 0}, "layers must be at least 1 here: 0 is for --task link, and a --model has layers"),
    ({"layers": 0, "model": "appnp", "task": "link"}, "layers must be at least 1 here: 0 is for --task link"),
    ({"decoder": "complex", "hidden": 7, "task": "link"}, "--decoder complex needs an even --hidden, for complex rows, not 7"),
    ({"bits": "3"}, "bits must be one of 32, 16, 8, 4, 2, 1, adaqp, auto, pipeqs, sylvie, uniform, uniform:BYTES, not '3'"),
    ({"bits": "uniform:much"}, "--bits uniform:BYTES needs a number of bytes, such as uniform:2.5e6, not much"),
    ({"bits": "uniform:0"}, "epoch_bytes must be at least 1, not 0"),
    ({"bits": "sylvie:7"}, "uniform, uniform:BYTES, not 'sylvie:7'"),
    ({"timeout": 0}, "timeout must be above 0, not 0"),
    ({"label_propagation": 1.0}, "label-propagation must be at least 0 and below 1, not 1.0"),
    ({"label_smoothing": 1.0}, "label_smoothing must be at least 0 and below 1"),
    ({"label_propagation": -0.1}, "label-propagation must be at least 0 and below 1, not -0.1"),
    ({"label_propagation": 0.5, "label_redraw": "x"}, "label-redraw must be one of epoch, once, not 'x'"),
    ({"schedule": "none"}, "schedule must be one of constant, cosine, step, plateau, not 'none'"),
    ({"schedule": "step", "decay": 0.0}, "decay must be above 0 and at most 1, not 0.0"),
    ({"schedule": "step", "decay_every": 0}, "decay_every must be at least 1, not 0"),
    ({"warmup": -1}, "warmup must be at least 0, not -1"),
    ({"layer": 3}, "there is no setting layer"),
    ({"compute": "int8", "int8_most_error": 1.5}, "int8-most-error must be at least 0 and at most 1, not 1.5"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "sentence"), REFUSED)
def test_what_cannot_be_is_refused_in_a_sentence(settings, sentence):
    with pytest.raises(HpcgnnError) as refused:
        RunConfig.from_settings(settings).check()
    assert sentence in str(refused.value)


NAMES = [*MODELS]
POLICIES = [*((bits, "off") for bits in (*BITS_POLICIES, "uniform:70000")), ("fixed", "pipeline"), ("pipeqs", "pipeqs")]


@pytest.mark.parametrize("number", range(max(len(NAMES), len(POLICIES))))
def test_settings_go_there_and_back(number):
    model, (bits, staleness) = NAMES[number % len(NAMES)], POLICIES[number % len(POLICIES)]
    bits = "32" if bits == FIXED else bits
    run = RunConfig.from_settings({"model": model, "bits": bits, "staleness": staleness, "hidden": 64})
    run.check()
    told = run.settings()
    assert RunConfig.from_settings(told) == run
    tomli_w.dumps({name: value for name, value in told.items() if value is not None})
    unused = run.unused()
    not_told = {name for name, each in settings_by_name().items() if not each.setting.is_kept}
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


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("parts.h5", False),
        ("--cache-input-aggregation parts.h5", True),
        ("parts.h5 --cache-input-aggregation", True),
        ("--cache-input-aggregation on parts.h5", True),
        ("--cache-input-aggregation auto parts.h5", "auto"),
        ("--cache-input-aggregation off parts.h5", False),
    ],
)
@pytest.mark.parametrize("in_file", ["", "true", "false", '"auto"', '"on"', '"off"'])
def test_a_choice_that_was_a_flag_still_is_one(tmp_path, words, value, in_file):
    Path(tmp_path / "mine.toml").write_text(f"cache_input_aggregation = {in_file}\n" if in_file else "")
    Path(tmp_path / "parts.h5").touch()
    words = words.replace("parts.h5", str(tmp_path / "parts.h5")).split()
    context = train_command.make_context("train", ["--out", "run", "--config", str(tmp_path / "mine.toml"), *words])
    given = {name: context.params[name] for name in settings_by_name()}
    of_file = {"": False, "true": True, "false": False, '"auto"': "auto", '"on"': True, '"off"': False}[in_file]
    wanted = value if len(words) > 1 else of_file
    config = configured(context, given, set())
    assert config.cache_input_aggregation is wanted or config.cache_input_aggregation == wanted == "auto"
    assert RunConfig.from_settings(config.settings()) == config


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
        configured(context, {}, set())  # where ranks agree on errors
    assert str(path) in str(refused.value)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


# -- one set of rules for all ------------------------------------------------------------------------------------------


COMBINATIONS = REFUSED[: next(number for number, (_, sentence) in enumerate(REFUSED) if "teleport" in sentence)]


@pytest.mark.parametrize(("settings", "sentence"), COMBINATIONS)
def test_a_trainer_refuses_what_the_command_refuses(graph, settings, sentence):
    trainer_of(graph, {"hidden": 16})
    with pytest.raises(HpcgnnError) as refused:
        trainer_of(graph, {"hidden": 16} | settings)
    assert sentence in str(refused.value)


def test_distributed_models_are_held_to_the_same_rules(graph):
    def users_model(dropout: float) -> torch.nn.Module:
        return require_module("torch_geometric.nn").GraphSAGE(9, 8, 2, 4, dropout=dropout)

    delta, config = MessageConfig(2, "delta"), hpcgnn.TrainConfig
    with pytest.raises(HpcgnnError, match="--message-coding delta needs --dropout 0"):
        hpcgnn.distribute(users_model(0.5), graph, messages=delta, check=False)
    model = hpcgnn.distribute(users_model(0.0), graph, messages=delta, check=False)
    hpcgnn.Trainer(model, graph, stop=StopRequest())
    wrong = {
        "--message-coding delta needs --staleness off": config(policy=hpcgnn.PolicyConfig(staleness="pipeline")),
        "which decide by rows and not by differences": config(policy=hpcgnn.PolicyConfig("adaqp")),
        "with --task node, not 'hits@10'": config(metric="hits@10"),
        "dense-weight-decay is not used by GraphSAGE: appnp and gcnii use it": config(dense_weight_decay=0.1),
    }
    for sentence, refused in wrong.items():
        with pytest.raises(HpcgnnError, match=sentence):
            hpcgnn.Trainer(model, graph, refused, stop=StopRequest())


# -- older runs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def command(mpi_ranks, graph):
    def run(out: Path, *flags: object) -> Completed:
        parts = [] if "--resume" in flags else [graph.path]
        return mpi_ranks(1).command("train", *parts, "--out", out, *flags, "--quiet", check=False)

    return run


@pytest.mark.mpi
def test_old_run_folders_go_on_and_are_repeated(command, graph, tmp_path):
    """An old config.toml has all settings; those that a flag sets without effect are refused all the same."""
    run = tmp_path / "run"
    text = OLD_CONFIG.read_text().replace('parts = "parts.h5"', f'parts = "{graph.path}"')
    (tmp_path / "old.toml").write_text(text)
    first = command(run, "--config", tmp_path / "old.toml")
    assert (first.returncode, first.stderr) == (0, "")
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
    assert len(lines(run)) == 5
    new = tomllib.loads((run / "config.toml").read_text())
    assert new.keys() == {"parts"} | RunConfig.from_settings({"model": "gcn", "device": "cpu"}).settings().keys()
    assert new.items() <= (tomllib.loads(text) | NEW_SETTINGS | {"epochs": 5}).items()


@pytest.mark.mpi
def test_files_that_no_run_wrote_and_presets_are_held_to_the_rules(command, tmp_path):
    (tmp_path / "mine.toml").write_text('model = "gcn"\nteleport = 0.1\n')
    for flags, sentence in (
        (("--config", tmp_path / "mine.toml"), "--teleport is not used by gcn"),
        (("--preset", "gat", "--model", "gcn"), "is not used by gcn: gat, gatv2, hgt, rgat and transformer use it"),
    ):
        refused = command(tmp_path / "run", *flags)
        assert sentence in refused.stderr
        assert refused.returncode == 1
    assert not (tmp_path / "run").exists()
    (tmp_path / "old.toml").write_text(OLD_CONFIG.read_text().replace('"gcn"', '"gatv2"'))
    again = command(tmp_path / "again", "--config", tmp_path / "old.toml", "--heads", 4, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["epochs"] == 3
    assert tomllib.loads((tmp_path / "again" / "config.toml").read_text())["heads"] == 4
