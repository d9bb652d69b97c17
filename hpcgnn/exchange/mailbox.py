"""The messages that an exchange keeps between epochs where stale rows may be used (PipeGCN's schedule, PipeQS §3.4).

Rows that were sent in one epoch may be waited for, and used, in a later one. At most one message is in flight at a time, and
there is memory for two: for the rows in use, and for the rows in flight. Shapes: s rows sent, r rows received, F columns.

Checkpoints hold these rows, and those that receivers hold for delta coding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import torch
import xxhash

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.typed import MESSAGE_BITS, QUANTIZED_BITS, Count
from hpcgnn.exchange.codecs import Codec, CodecTools, Differences, plain_rows, restored
from hpcgnn.exchange.passes import ExchangeId, Slot
from hpcgnn.kernels.packing import PARAMS_BYTES, payload_bytes
from hpcgnn.world.buffer import Pending

# Freshness of an exchange in an epoch. FRESH: a message is sent and waited for. STALE: a message is sent, and that of an earlier
# epoch is used. REUSED: no message is sent, and the last one sent is used. SKIPPED: no message is sent, and the last one that
# has arrived is used, even if a later one is on its way.
FRESH, STALE, REUSED, SKIPPED = "fresh", "stale", "reused", "skipped"


@dataclass(eq=False)
class Message:
    """The rows that this rank sends to, and receives from, all peers in one exchange."""

    codec: Codec
    sent: torch.Tensor  # wires of the codec, (items, item_bytes) uint8
    received: torch.Tensor
    epoch: int  # in which the rows were sent
    differences: Differences | None = None  # the rows that delta coding keeps
    mailbox: Mailbox | None = None  # keeps the message; None: its rows are used at once
    pending: Pending | None = None  # the started collective; None once the rows have arrived
    sums: torch.Tensor | None = None  # (b, F) over the boundary nodes' local neighbours in that epoch, for corrections
    call: int = 0  # number of earlier calls of its exchange in the same step
    is_constant: bool = False  # its rows are those of every epoch, unless the input of the exchange changes


@dataclass(frozen=True)
class StaleRowRules:
    """The treatment of received rows that are kept. reuses: every exchange keeps its rows; else, only those do whose input stays
    the same.
    """

    reuses: bool = True
    smooths_features: bool = False  # use a moving average of stale rows, decay * average + (1 - decay) * rows (PipeGCN)
    smooths_gradients: bool = False
    decay: float = 0.95
    corrects: bool = False  # correct stale rows by the change of local sums, unless they are averaged


class Mailbox:
    """The kept messages of one slot. corrects: whether stale rows are corrected."""

    def __init__(self, rules: StaleRowRules, tools: CodecTools, *, is_backward: bool) -> None:
        self.in_flight: Message | None = None  # to wait for in a later epoch
        self.arrived: Message | None = None  # its rows are in use
        self._smooths = rules.smooths_gradients if is_backward else rules.smooths_features
        self.corrects = rules.corrects and not self._smooths
        self._rules, self._tools = rules, tools
        self._average: torch.Tensor | None = None
        self._turn = 0

    def next_turn(self) -> int:
        """0 or 1: the half of the memory into which the next message is received. The other half holds the rows in use."""
        self._turn = 1 - self._turn
        return self._turn

    def accept(self, message: Message, epoch: int) -> None:
        """Use ``message``, which has arrived, from now on. epoch: the present epoch."""
        self.arrived = message
        if not self._smooths or message.is_constant:
            return
        with self._tools.timings.measure("quantization_seconds"):
            rows = message.codec.received_rows(message.received)
            if self._average is None or message.epoch == epoch:
                self._average = rows.clone()
            rows = self._average.lerp_(rows, 1 - self._rules.decay)
        message.codec, message.received = plain_rows(rows, self._tools)

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def _loaded(self, values: torch.Tensor | None) -> torch.Tensor | None:
        return None if values is None else values.to(self._tools.scratch.torch_device)

    def state(self) -> dict[str, Any]:
        """The messages, averages and sums that later epochs need. The message in flight must have arrived."""
        messages = {"arrived": self.arrived, "in_flight": self.in_flight}
        state: dict[str, Any] = {
            name: (message.codec.received_state(message.received), message.epoch)
            for name, message in messages.items()
            if message is not None
        }
        rows = {"average": self._average}
        rows |= {f"{name}_sums": message.sums for name, message in messages.items() if message is not None}
        return state | {name: values.to("cpu", copy=True) for name, values in rows.items() if values is not None}

    def load(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state`."""
        for name in ("arrived", "in_flight"):
            if name in state:
                content, epoch = state[name]
                codec, received = restored(content, self._tools)
                sums = self._loaded(state.get(f"{name}_sums"))
                setattr(self, name, Message(codec, received[:0], received, epoch, mailbox=self, sums=sums))
        self._average = self._loaded(state.get("average"))
        if self.arrived is not None and self._average is not None:  # the rows in use are the average itself
            self.arrived.codec, self.arrived.received = plain_rows(self._average, self._tools)


_PlainSlot = tuple[Count, bool, Count, Count]  # the fields of Slot


_KeptMessage = tuple[dict[str, Any], Count] | msgspec.UnsetType  # with the epoch in which it was sent
_KeptRows = torch.Tensor | msgspec.UnsetType


class _Box(msgspec.Struct, forbid_unknown_fields=True):
    """State of a mailbox: messages, the sums of the epochs in which they were sent, and rows."""

    arrived: _KeptMessage = msgspec.UNSET
    in_flight: _KeptMessage = msgspec.UNSET
    last: _KeptRows = msgspec.UNSET  # in files of earlier versions
    average: _KeptRows = msgspec.UNSET
    arrived_sums: _KeptRows = msgspec.UNSET
    in_flight_sums: _KeptRows = msgspec.UNSET


class _Rows(msgspec.Struct, forbid_unknown_fields=True):
    """A message of :class:`hpcgnn.exchange.codecs.PlainCodec`."""

    rows: torch.Tensor


class _Packed(msgspec.Struct, forbid_unknown_fields=True):
    """A message of :class:`hpcgnn.exchange.codecs.PackedCodec`."""

    bytes: torch.Tensor
    groups: list[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]]
    width: Count


class KeptState(msgspec.Struct):
    """The whole state of :class:`hpcgnn.exchange.mailbox.StaleRows`."""

    mailboxes: dict[_PlainSlot, _Box]
    differences: dict[_PlainSlot, tuple[torch.Tensor, torch.Tensor]]
    # whether the input of an exchange stays the same; of inputs that need no gradient
    constant: dict[_PlainSlot, bool] = {}


class RowCounts(NamedTuple):
    """Numbers of rows that an exchange sends and receives, and of nodes to which it adds received rows."""

    sent: int
    received: int
    boundary_nodes: int


def check_kept(state: Any, counts: Mapping[ExchangeId, RowCounts], where: str) -> None:
    """Raise HpcgnnError unless ``state`` fits exchanges with these counts of rows. where: name of the file, for the error."""
    kept = typed.validated(state, KeptState, where)
    for slot, box in kept.mailboxes.items():
        (_, received, boundary), name = _rows_of(slot, counts, where)
        for message in (box.arrived, box.in_flight):
            if not isinstance(message, msgspec.UnsetType):
                _check_message(message[0], received, slot[3], f"{where}: {name}")
        of_boundary = [(sums, boundary, f"sums of {name}") for sums in (box.arrived_sums, box.in_flight_sums)]
        for rows, count, what in (*of_boundary, (box.last, received, name), (box.average, received, name)):
            if not isinstance(rows, msgspec.UnsetType):
                _check_rows(rows, count, slot[3], f"{where}: {what}")
    for slot, differences in kept.differences.items():
        (*both, _), name = _rows_of(slot, counts, where)
        for rows, count in zip(differences, both, strict=True):
            _check_rows(rows, count, slot[3], f"{where}: {name}")


def shape_of(state: dict[str, Any]) -> int:
    """A 64-bit hash of the slots that have kept rows and of the epochs in which these were sent; the same on all ranks."""
    boxes = {
        slot: {name: value[1] if isinstance(value, tuple) else None for name, value in box.items()}
        for slot, box in state["mailboxes"].items()
    }
    kept = sorted((slot, sorted(box.items())) for slot, box in boxes.items())
    told = repr((kept, sorted(state["differences"]), sorted(state.get("constant", {}).items())))
    return xxhash.xxh3_64_intdigest(told.encode())


def _rows_of(slot: _PlainSlot, counts: Mapping[ExchangeId, RowCounts], where: str) -> tuple[RowCounts, str]:
    exchange = ExchangeId(slot[0], slot[1])
    if exchange not in counts:
        raise HpcgnnError(f"{where} has {exchange.name}, which this model does not exchange")
    return counts[exchange], exchange.name


def _check_rows(rows: torch.Tensor, count: int, width: int, where: str) -> None:
    if tuple(rows.shape) != (count, width) or not rows.is_floating_point():
        raise HpcgnnError(
            f"{where} are {rows.dtype} of shape {tuple(rows.shape)}, but the exchange needs numbers of shape ({count}, {width})"
        )


def _check_message(content: dict[str, Any], count: int, width: int, where: str) -> None:
    if "rows" in content:
        _check_rows(typed.validated(content, _Rows, where).rows, count, width, where)
        return
    packed = typed.validated(content, _Packed, where)
    if packed.bytes.dtype != torch.uint8 or packed.bytes.dim() != 2 or packed.width != width:
        raise HpcgnnError(f"{where} are not the bytes of rows of {width} values")
    seen = torch.zeros(count, dtype=torch.int64)
    for bits, rows, payload_at, params_at in packed.groups:
        places = (rows, payload_at, params_at)
        if bits not in MESSAGE_BITS or any(
            each.dtype != torch.int64 or each.shape != rows.shape[:1] for each in places
        ):
            raise HpcgnnError(f"{where} do not have the positions of rows as whole numbers")
        _check_range(rows, count, where)
        _check_range(payload_at, packed.bytes.numel() - payload_bytes(width, bits) + 1, where)
        if bits in QUANTIZED_BITS:
            _check_range(params_at, packed.bytes.numel() - PARAMS_BYTES + 1, where)
        seen.index_add_(0, rows, torch.ones_like(rows))
    if bool((seen != 1).any()):
        raise HpcgnnError(f"{where} do not have each of {count} rows once")


def _check_range(places: torch.Tensor, end: int, where: str) -> None:
    if places.numel() and not 0 <= int(places.min()) <= int(places.max()) < end:
        raise HpcgnnError(f"{where} have a position outside of the message")


@dataclass(eq=False)
class _Input:
    """The input of an exchange. is_constant: it has been the same tensor, with the same values, in all training steps."""

    x: torch.Tensor | None = None  # None after a resume, until the first step
    version: int = 0
    is_constant: bool = True

    def stays(self, x: torch.Tensor) -> bool:
        """Return whether ``x`` is the input that was given before."""
        if self.is_constant and self.x is not None:
            # the same object: a rank without nodes, whose tensors have no memory, must come to the same answer
            self.is_constant = x is self.x and x._version == self.version
        self.x, self.version = (x, x._version) if self.is_constant else (None, 0)
        return self.is_constant


class StaleRows:
    """The kept rows of one model's exchanges, by :class:`Slot`."""

    def __init__(self) -> None:
        self.rules: StaleRowRules | None = None  # None: rows are used in the epoch in which they were sent
        self.changes = 0  # number of times that mailboxes or differences were replaced
        self.mailboxes: dict[Slot, Mailbox] = {}
        self.differences: dict[Slot, Differences] = {}
        self._inputs: dict[Slot, _Input] = {}

    def begin(self, rules: StaleRowRules | None) -> None:
        """Keep rows as ``rules`` says from now on; drop the rows that an earlier trainer of the model kept."""
        self.rules, self.mailboxes, self.differences, self._inputs = rules, {}, {}, {}
        self.changes += 1

    def stays(self, slot: Slot, x: torch.Tensor) -> bool:
        """Return whether the rows of ``slot`` are made of the input ``x`` of all earlier training steps; true in the first. Ranks
        agree, because all of them compute by the same program.
        """
        if self.rules is None:
            return False
        known = self._inputs.setdefault(slot, _Input())
        was_constant = known.is_constant
        stays = known.stays(x)
        if was_constant and not stays and not self.rules.reuses and self.mailboxes.pop(slot, None) is not None:
            self.changes += 1
        return stays

    def mailbox(self, slot: Slot, tools: CodecTools, *, is_constant: bool = False) -> Mailbox | None:
        """The mailbox of ``slot``, made on first use; None where rows are used in the epoch in which they were sent."""
        if self.rules is None or not (self.rules.reuses or is_constant):
            return None
        if slot not in self.mailboxes:
            self.mailboxes[slot] = Mailbox(self.rules, tools, is_backward=slot.is_backward)
        return self.mailboxes[slot]

    def differences_of(self, slot: Slot, codec: Codec) -> Differences | None:
        """The rows that ``codec`` keeps for ``slot``, zeros at first; None if it keeps none."""
        if slot not in self.differences:
            new = codec.new_differences()
            if new is None:
                return None
            self.differences[slot] = new
        return self.differences[slot]

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """This rank's kept rows as tensors and plain values. Messages in flight must have arrived (:meth:`Messages.drain`)."""
        return {
            "mailboxes": {tuple(slot): box.state() for slot, box in self.mailboxes.items()},
            "differences": {
                tuple(slot): (kept.sent.cpu(), kept.received.cpu()) for slot, kept in self.differences.items()
            },
            "constant": {tuple(slot): known.is_constant for slot, known in self._inputs.items()},
        }

    def load(self, state: dict[str, Any], tools: CodecTools, *, is_delta: bool) -> None:
        """Restore the rows of :meth:`state` that the present settings keep as well."""
        self.changes += 1
        found: dict[_PlainSlot, tuple[torch.Tensor, torch.Tensor]] = state["differences"] if is_delta else {}
        torch_device = tools.scratch.torch_device
        self.differences = {
            Slot(*slot): Differences(*(each.to(torch_device) for each in rows)) for slot, rows in found.items()
        }
        if self.rules is None:
            return
        constant = state.get("constant", {})
        self._inputs = {Slot(*slot): _Input(is_constant=stays) for slot, stays in constant.items()}
        for slot, content in state["mailboxes"].items():
            box = self.mailbox(Slot(*slot), tools, is_constant=constant.get(slot, False))
            if box is not None:
                box.load(content)
                if box.arrived is not None:
                    box.arrived.is_constant = constant.get(slot, False)
