"""Arrays of a shape, an order or a type that does not fit are refused in a sentence."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from hpcgnn.data.arrays import label_array
from hpcgnn.data.sources import slabs
from hpcgnn.errors import HpcgnnError


def test_labels_of_another_shape_are_refused() -> None:
    for shape in ((5,), (7, 2), (6, 2, 2), ()):
        with pytest.raises(HpcgnnError, match="graph: y is int64 of shape"):
            label_array(np.zeros(shape, np.int64), 6, "graph")


@pytest.mark.parametrize(
    "values", [np.asfortranarray(np.ones((3, 2))), np.ones(3, complex)], ids=["columns first", "complex"]
)
def test_arrays_of_another_order_or_type_are_refused(tmp_path: Path, values: np.ndarray) -> None:
    np.save(tmp_path / "array.npy", values)
    np.savez(tmp_path / "arrays.npz", array=values)
    for read in (
        lambda: slabs.open_npy(tmp_path / "array.npy"),
        lambda: slabs.open_member(tmp_path / "arrays.npz", "array"),
    ):
        with pytest.raises(HpcgnnError, match="should be numbers in C order"):
            read()


def test_a_disk_that_fails_while_an_archive_is_opened_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "arrays.npz", array=np.ones(3))

    def failing(path: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(zipfile, "ZipFile", failing)
    with pytest.raises(HpcgnnError, match=r"arrays\.npz cannot be read as npz.*: .*Input/output error"):
        slabs.open_member(tmp_path / "arrays.npz", "array")
