"""A replacement for ``hpcgnn`` in tests of studies: it writes the commands' files at once.

Every training is recorded in ``log`` beside the study in this folder. ``STANDIN_FAILS`` and ``STANDIN_HANGS`` are texts in the
command line of a training that must fail, or wait to be killed.
"""

import json
import os
import sys
import time
from pathlib import Path


def main(words: list[str]) -> None:
    command, *rest = words
    if command == "launch":
        os.execv(sys.executable, rest[rest.index("--") + 1 :])
    elif command in ("convert", "partition"):
        Path(rest[1]).write_text("made")
        print(json.dumps({"num_parts": 1, "words": words}))
    elif command == "plan":
        strategy = rest[rest.index("--strategy") + 1]
        print(json.dumps({"strategies": {strategy: {"rows": 7}}, "pairs": {strategy: []}}))
    elif command == "bench":
        print(json.dumps(bench(rest)))
    else:
        train(rest)


def train(words: list[str]) -> None:
    line = " ".join(words)
    out = Path(words[words.index("--out") + 1])
    with (out.parent.parent / "log").open("a") as stream:
        stream.write(out.name + "\n")
    if wanted(line, "STANDIN_FAILS"):
        sys.exit("hpcgnn: error: it was told to fail")
    if wanted(line, "STANDIN_HANGS"):
        time.sleep(600)
    (out / "checkpoints").mkdir()
    seed = int(words[words.index("--seed") + 1])
    seconds = 1.0 + seed
    (out / "metrics.jsonl").write_text("".join(json.dumps({"epoch": e, "seconds": seconds}) + "\n" for e in range(2)))
    summary = {"epoch_seconds_median": seconds, "finished": True, "versions": {"hpcgnn": "0"}}
    (out / "summary.json").write_text(json.dumps(summary))


def bench(words: list[str]) -> dict:
    if words[0] in ("pyg", "dgl", "sar"):
        return {"epoch_seconds_median": 4.0, "words": words, "epochs": {"seconds": [4.0]}, "versions": {"torch": "0"}}
    if "--nothing" in words:
        return {"found": 1}
    seconds = {"ours": 1.0, "other": 3.0}
    lines = [
        {"axes": {"subject": words[1], "contender": name}, "figures": {"seconds": value}}
        for name, value in seconds.items()
    ]
    return {"lines": lines, "versions": {"isa": os.environ.get("HPCGNN_ISA", "")}}


def wanted(line: str, name: str) -> bool:
    return bool(os.environ.get(name)) and os.environ[name] in line


main(sys.argv[1:])
