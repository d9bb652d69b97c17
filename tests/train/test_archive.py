"""Damage to checkpoints is found before any of their data is used."""

from __future__ import annotations

import errno
import io
import random
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import torch
from requires import require

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.train import archive

CONTENT = {
    "model": {"w": torch.randn(50, 30), "half": torch.zeros(3, dtype=torch.bfloat16), "none": torch.zeros(0, 4)},
    "no rows": torch.ones(1, dtype=torch.float64).expand(0),
    "plain": [1, (2.5, None), "text", True],
    "slots": {(1, False, 0, 4): (torch.arange(3), 7)},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    archive.write(tmp_path / "a.pt", CONTENT)
    return tmp_path / "a.pt"


def test_what_was_written_is_read(path):
    found = archive.read(path, path)
    assert archive.digest_of(found) == archive.digest_of(CONTENT)
    assert torch.equal(found["model"]["w"], CONTENT["model"]["w"])
    assert found["slots"].keys() == CONTENT["slots"].keys()
    assert archive.DIGEST not in found


def test_a_flipped_bit_is_found_or_changes_nothing(path):
    whole, draw, told = path.read_bytes(), random.Random(0), Counter()
    wanted = archive.digest_of(CONTENT)
    for _ in range(400):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            assert archive.digest_of(archive.read(path, path)) == wanted
            told["unchanged"] += 1
        except HpcgnnError as error:
            told["checksum" if f"{path} is damaged: the checksum of its member" in str(error) else "other"] += 1
    assert told["checksum"] > 200, told
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(HpcgnnError, match="is damaged or not a checkpoint"):
            archive.read(path, path)


def rewritten(path: Path, changes: dict[bytes, bytes], **how: int) -> None:
    """The same archive with other bytes in its pickle, and right checksums."""
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as found, zipfile.ZipFile(path, "w", **how) as made:
        for name in found.namelist():
            content = found.read(name)
            if name.endswith("data.pkl"):
                for old, new in changes.items():
                    assert old in content
                    content = content.replace(old, new, 1)
            made.writestr(name, content)


def number(value: int) -> bytes:
    """A number as pickles store it."""
    return b"\x8a\x09" + value.to_bytes(9, "little")


@pytest.mark.parametrize("has_digest", [True, False])
def test_a_size_in_a_header_takes_no_memory(tmp_path, has_digest):
    path, many = tmp_path / "a.pt", 10**12
    content = {"w": torch.arange(4.0)}
    one_by_one = {b"QK\x00K\x04\x85q\x08K\x01": b"QK\x00" + number(many) + b"\x85q\x08K\x00"}  # strides of 0
    stored = {b"cpuq\x06K\x04": b"cpuq\x06" + number(many), b"QK\x00K\x04": b"QK\x00" + number(many)}
    for changes in (one_by_one, stored, {b"QK\x00K\x04": b"QK\x00" + number(many)}):
        archive.write(path, content) if has_digest else torch.save(content, path)
        try:
            rewritten(path, changes)
        except AssertionError:
            require(False, "a torch that writes a storage's size as these bytes")
        with pytest.raises(HpcgnnError, match="is damaged"):
            archive.read(path, path)


@pytest.mark.parametrize("change", [(b"text", b"tekt"), (b"half", b"hall")], ids=["a value", "the name of a value"])
def test_what_was_changed_and_packed_again_has_another_digest(path, change):
    rewritten(path, {})
    archive.read(path, path)
    rewritten(path, dict([change]))
    with pytest.raises(HpcgnnError, match="its digest does not match its content"):
        archive.read(path, path)


def test_members_that_would_grow_are_refused(path):
    rewritten(path, {}, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(HpcgnnError, match="torch stores the members of a file differently"):
        archive.read(path, path)


@pytest.mark.parametrize("content", [[torch.ones(2)], {"f": torch.nn.Linear}, {"x": torch.ones(2).to_sparse()}])
def test_what_is_no_table_of_tensors_and_plain_values_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(HpcgnnError, match=r"a\.pt"):
        archive.read(tmp_path / "a.pt", tmp_path / "a.pt")


def test_a_full_disk_is_told_by_the_system(tmp_path):
    """torch's own RuntimeError would not name the file."""
    with pytest.raises(OSError, match="No space left") as told:
        archive.write(Path("/dev/full"), {"w": torch.ones(1 << 20)})
    assert told.value.errno == errno.ENOSPC
