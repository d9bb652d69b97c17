"""The reasons why kernels in Triton cannot run, as words that follow "but"."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import triton

from hpcgnn.kernels.triton import launch


@pytest.fixture(autouse=True)
def asked_anew():
    launch.missing.cache_clear()
    yield
    launch.missing.cache_clear()


def test_no_gpu_an_old_version_and_no_compiler_are_told(monkeypatch):
    assert launch.missing() is None
    with monkeypatch.context() as changed:
        changed.setattr(triton, "__version__", "3.2.0")
        launch.missing.cache_clear()
        assert launch.missing() == "triton 3.2.0 is older than 3.3: torch 2.7 and later install a newer one"
    monkeypatch.setattr(launch, "interprets", lambda: False)
    if not torch.cuda.is_available():
        launch.missing.cache_clear()
        assert "no GPU that torch can use" in launch.missing()

    class Driver:
        @property
        def active(self):
            raise RuntimeError("Failed to find C compiler.\nPlease specify one.")

    said = launch._problem_of_the_driver(SimpleNamespace(runtime=SimpleNamespace(driver=Driver())))
    assert said.endswith("needs a C compiler and Python's headers (Failed to find C compiler. Please specify one.)")
