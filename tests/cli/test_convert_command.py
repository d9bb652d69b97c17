"""The output of the command convert: a JSON object, a table, or nothing."""

import json

from command_line import said


def test_json_is_one_object(tmp_path):
    flags = ["--json", "--self-loops", "--split", "random:0.5,0.2,0.3,1"]
    values = json.loads(said("convert", "sbm:nodes=100,blocks=2", tmp_path / "g.h5", *flags))
    assert (values["num_nodes"], values["num_classes"]) == (100, 2)
    assert values["split_sizes"] == {"train_mask": 50, "val_mask": 20, "test_mask": 30}
    assert values["file_bytes"] == (tmp_path / "g.h5").stat().st_size
    assert values["seconds"] > 0
    assert values["peak_memory_bytes"] > 1 << 20


def test_table_and_quiet(tmp_path):
    table = said("convert", "sbm:nodes=1000,blocks=2", tmp_path / "g.h5")
    wanted = [
        "1,000",
        "16,000 undirected",
        "64 dense",
        "2 single-label",
        "600 / 200 / 200",
        "seconds of compiling",
        "peak memory",
    ]
    assert [word for word in wanted if word not in table] == []
    lines = [line.split() for line in table.splitlines()]
    assert ["source", "sbm:nodes=1000,blocks=2"] in lines
    assert "".join(table.split()).startswith(f"{tmp_path}/g.h5")
    assert said("convert", "sbm:nodes=1000", tmp_path / "g.h5", "--force", "--quiet") == ""
