"""Settings are checked according to the metadata of their fields, and registries import only the classes that are asked for."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.settings import Checked, Registry, setting
from hpcgnn.nn.config import MODELS
from hpcgnn.policy.config import BITS_POLICIES, STALENESS_POLICIES


@dataclass(frozen=True)
class Example(Checked):
    count: int = setting(3, least=1, most=9)
    share: float = setting(0.5, least=0, below=1)
    rate: float | None = setting(None, above=0)
    mode: str = setting("a", choices=("a", "b"))
    late: str = setting("a", name="flag_name", choices=lambda: ("a", "c"))
    is_on: bool = setting(True)
    path: Path | None = setting(None)
    pair: tuple[float, float] = setting((0.0, 1.0))
    open_ended: float = setting(1.0, least=0)
    any_number: float = setting(1.0)
    many: int = setting(1, least=0)
    forever: float = setting(1.0, above=0, is_finite=False)


WRONG_TYPES = [{"count": 2.5}, {"count": [3]}, {"count": "3"}, {"share": np.zeros(2)}, {"mode": ["a"]}, {"mode": np.zeros(2)},
               {"is_on": "on"}, {"path": "file"}, {"pair": (1.0, "2")}, {"pair": 3}]  # fmt: skip
WRONG_VALUES = [{"count": 10**30}, {"open_ended": float("inf")}, {"open_ended": float("nan")}, {"any_number": float("nan")},
                {"many": 2**63}]  # fmt: skip


def test_what_a_field_allows_is_not_refused():
    Example().check()
    Example(count=9, share=0, rate=1, mode="b", late="c", is_on=False, path=Path("x"), forever=float("inf")).check()


@pytest.mark.parametrize(
    ("changes", "kind", "sentence"),
    [
        ({"count": 0}, ValueError, "count must be at least 1 and at most 9, not 0"),
        ({"count": 2.0}, TypeError, "count must be a whole number, not 2.0"),
        ({"count": True}, TypeError, "count must be a whole number, not True"),
        ({"count": None}, TypeError, "count must be a whole number, not None"),
        ({"share": 1}, ValueError, "share must be at least 0 and below 1, not 1"),
        ({"share": float("nan")}, ValueError, "share must be at least 0 and below 1, not nan"),
        ({"rate": 0.0}, ValueError, "rate must be above 0, not 0.0"),
        ({"mode": "c"}, ValueError, "mode must be one of a, b, not 'c'"),
        ({"late": "b"}, ValueError, "flag-name must be one of a, c, not 'b'"),
        ({"is_on": 1}, TypeError, "is_on must be true or false, not 1"),
        *((wrong, TypeError, None) for wrong in WRONG_TYPES),
        *((wrong, ValueError, None) for wrong in WRONG_VALUES),
    ],
)
def test_a_value_that_a_field_does_not_allow_is_refused_in_a_sentence_and_by_pythons_own_kind_of_error(
    changes, kind, sentence
):
    with pytest.raises(kind, match=f"^{sentence or next(iter(changes)) + ' must be '}") as refused:
        Example(**changes).check()
    assert isinstance(refused.value, HpcgnnError)


def test_numbers_of_numpy_become_pythons():
    example = Example(count=np.int64(4), share=np.float32(0.5))
    example.check()
    assert (type(example.count), type(example.share)) == (int, float)
    assert type(hpcgnn.ModelConfig("gcn", hidden=np.int32(8), layers=np.int64(2)).layers) is int


def test_parts_of_a_configuration_are_of_their_type():
    for wrong in ({"model": "gcn"}, {"train": {}}, {"messages": 8}, {"links": None}):
        with pytest.raises(TypeError, match=f"^{next(iter(wrong))} must be a "):
            hpcgnn.RunConfig(**wrong).check()
    with pytest.raises(TypeError, match=r"^policy must be a PolicyConfig, not 'adaqp'"):
        hpcgnn.TrainConfig(policy="adaqp").check()
    with pytest.raises(TypeError, match="settings must be a mapping"):
        hpcgnn.RunConfig.from_settings([1])
    with pytest.raises(ValueError, match="there is no setting 1"):
        hpcgnn.RunConfig.from_settings({1: 2})


def test_a_model_has_its_own_settings_and_no_others():
    config = hpcgnn.ModelConfig("gat", layers=2, heads=4)
    assert (config.layers, config.heads, config.output_heads) == (2, 4, 1)
    assert config == replace(hpcgnn.ModelConfig("gat", layers=2), heads=4)
    assert replace(config, model="gatv2") == hpcgnn.ModelConfig("gatv2", layers=2, heads=4)
    assert replace(hpcgnn.ModelConfig("gat"), model="gcn") == hpcgnn.ModelConfig("gcn")
    with pytest.raises(HpcgnnError, match=r"^teleport is not used by gcn: appnp and gcnii use it$"):
        hpcgnn.ModelConfig("gcn", teleport=0.1)
    with pytest.raises(HpcgnnError, match=r"^heads is not used by gcn"):
        replace(config, model="gcn")
    assert replace(hpcgnn.ModelConfig("sgc", hops=3), model="appnp") == hpcgnn.ModelConfig("appnp", hops=3)
    with pytest.raises(TypeError, match="takes 1 positional arguments"):
        hpcgnn.ModelConfig("gcn", 2)
    with pytest.raises(TypeError, match="no setting 'headz'"):
        hpcgnn.ModelConfig("gat", headz=3)
    with pytest.raises(HpcgnnError, match=r"^model must be one of appnp, .*, not 'gcm'"):
        hpcgnn.ModelConfig("gcm")
    with pytest.raises(AttributeError, match="no setting 'headz'"):
        _ = config.headz


def test_policies_have_theirs_together():
    config = hpcgnn.PolicyConfig("sylvie", "pipeqs", loss_window=2, drift_threshold=0.3, smoothing="both")
    assert (config.loss_window, config.drift_threshold, config.smoothing) == (2, 0.3, "both")
    with pytest.raises(HpcgnnError, match=r"^variance_weight is not used by --bits sylvie .*: --bits adaqp uses it$"):
        hpcgnn.PolicyConfig("sylvie", variance_weight=0.5)


def test_a_registry_imports_the_module_of_a_class_that_is_asked_for(tmp_path, monkeypatch):
    package = tmp_path / "shapes_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from hpcgnn.base.settings import LazyEntry, Registry\n"
        "SHAPES = Registry('shape', {name: LazyEntry(f'shapes_of_a_test.{name}', f'is {name}') for name in ('round', 'even')})\n"
    )
    for name in ("round", "even"):
        (package / f"{name}.py").write_text(
            f"from shapes_of_a_test import SHAPES\n@SHAPES.register({name!r})\nclass Shape:\n    pass\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    from shapes_of_a_test import SHAPES

    assert list(SHAPES) == ["even", "round"]
    assert SHAPES.summaries() == "even: is even; round: is round"
    assert "shapes_of_a_test.round" not in sys.modules
    assert SHAPES["round"].summary == "is round"
    assert "shapes_of_a_test.even" not in sys.modules
    with pytest.raises(HpcgnnError, match=r"^shape must be one of even, round, not 'odd'$"):
        SHAPES["odd"]


@pytest.mark.parametrize("registry", [MODELS, BITS_POLICIES, STALENESS_POLICIES], ids=["models", "bits", "staleness"])
def test_known_classes_are_where_the_registry_says(registry):
    for name in registry:
        assert registry[name].settings == registry.settings(name)


def test_two_classes_of_one_name_are_refused():
    registry: Registry = Registry("shape", {})

    @registry.register("round")
    class First:
        pass

    with pytest.raises(ValueError, match="there is a shape 'round' already"):

        @registry.register("round")
        class Second:
            pass
