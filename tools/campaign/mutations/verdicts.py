"""The outcomes that count as defects of a reader."""

from __future__ import annotations

from pathlib import Path

from campaign.mutations.case import Case
from campaign.mutations.fork import Outcome
from campaign.mutations.mutation import FREE, REFUSE, SAME

_MIB = 1 << 20
# Memory above that for the valid file and twice the size of the damaged one, for late imports and for arenas of malloc.
_RESIDENT_SLACK, _ADDRESS_SLACK = 32 * _MIB, 256 * _MIB
_ERROR_EXITS = (1, 2)
_HARNESS = 99


def defects(case: Case, outcome: Outcome, valid: Outcome) -> dict[str, str]:
    """The kinds of defects in an outcome, with a phrase about each. valid: the outcome for the undamaged file."""
    found = {}
    if len(set(outcome.ranks)) > 1:
        found["ranks"] = f"ranks end with {outcome.ranks}"
    if outcome.code_ran:
        found["code"] = "code that is in the file ran"
    if "Traceback (most recent call last)" in outcome.stderr:
        found["traceback"] = _last_line(outcome.stderr)
    if outcome.exit is None:
        found["hang"] = "the deadline passed"
    elif outcome.exit < 0 or any(code < 0 for code in outcome.ranks):
        found["signal"] = f"signal {[-code for code in outcome.ranks or [outcome.exit] if code < 0]}"
    elif outcome.exit == _HARNESS:
        return {"harness": _last_line(outcome.stderr)}
    elif outcome.exit == 0:
        if wrong := _accepted(case, outcome, valid):
            found["accepted"] = wrong
    elif outcome.exit not in _ERROR_EXITS and not outcome.ranks:
        found["exit"] = f"exit code {outcome.exit}"
    elif not found and (wrong := _not_a_sentence(case, outcome)):
        found["sentence"] = wrong
    if case.reader.reads_files and (wrong := _memory(outcome, valid)):
        found["memory"] = wrong
    if outcome.left_behind and outcome.exit is not None and outcome.exit >= 0:
        found["leftover"] = ", ".join(outcome.left_behind)
    return found


def _accepted(case: Case, outcome: Outcome, valid: Outcome) -> str:
    """A phrase about a wrongly accepted file, if it is one."""
    expects, touches = outcome.mutation.get("expects", SAME), outcome.mutation.get("touches", "")
    own_copies = len(set(case.reader.ranks)) > 1  # each rank reads only slabs from its copy
    if expects == REFUSE and touches and (own_copies or not case.reader.reads(touches)):
        expects = SAME
    if expects == REFUSE:
        return "accepted what the schema forbids" + (", with another result" if outcome.digest != valid.digest else "")
    if expects == FREE:
        return ""
    wanted = valid.digest if expects == SAME else expects
    return "" if outcome.digest == wanted else "accepted, with a result that is not the file's"


def _not_a_sentence(case: Case, outcome: Outcome) -> str:
    """A phrase about a wrong message, if it is one."""
    lines = [
        line for line in outcome.stderr.splitlines() if line.strip() and "PMIX ERROR" not in line
    ]  # messages of Open MPI itself
    if outcome.exit == 2:  # click prints usage, a hint, and the sentence
        lines = lines[-1:] if lines and lines[0].startswith("Usage:") else lines
    names = outcome.mutation.get("names") or [Path(case.target).name]
    if len(lines) != 1 or not lines[0].startswith(("hpcgnn: error", "Error:")):
        return f"{len(lines)} lines where one is wanted: {' | '.join(lines)[:300]}"
    if outcome.mutation.get("expects") == FREE and not outcome.mutation.get(
        "names"
    ):  # a valid other file, which may have another result
        return ""
    return "" if any(name in lines[0] for name in names) else f"does not name {' or '.join(names)}: {lines[0][:300]}"


def _memory(outcome: Outcome, valid: Outcome) -> str:
    allowed = 2 * outcome.file_bytes
    resident = outcome.resident_bytes - valid.resident_bytes - allowed - _RESIDENT_SLACK
    addresses = outcome.address_bytes - valid.address_bytes - allowed - _ADDRESS_SLACK
    if resident <= 0 and addresses <= 0:
        return ""
    taken = f"{outcome.resident_bytes / _MIB:.0f} MiB, {outcome.address_bytes / _MIB:.0f} MiB of addresses"
    return f"{taken}, for a file of {outcome.file_bytes} bytes"


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
