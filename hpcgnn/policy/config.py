"""Which policies decide about messages, and their settings."""

from __future__ import annotations

from dataclasses import dataclass

from hpcgnn.errors import HpcgnnError

BITS_POLICIES = ("uniform", "adaqp", "sylvie", "pipeqs")
STALENESS_POLICIES = ("off", "pipeline", "sylvie", "pipeqs")
SMOOTHINGS = ("none", "features", "gradients", "both")
DRIFT_RULES = DESCENT_RULES = ("corrected", "printed")
SAFE_BITS = 8  # of policies that know nothing yet, or have failed


@dataclass(frozen=True)
class PolicyConfig:
    """bits: ``fixed`` (as MessageConfig has them) or one of :data:`BITS_POLICIES`. staleness: one of
    :data:`STALENESS_POLICIES`.

    uniform and AdaQP: ``bits_period`` epochs from one assignment to the next. AdaQP (its Table 8): ``variance_weight``
    (lambda) of variance against time, ``group_rows`` rows share an assignment. Sylvie (§V-A): ``loss_memory`` (lambda) of the
    running average of the loss, whose descent is compared with that of ``loss_window`` (delta) epochs ago; ``descent_rule``: see
    :mod:`hpcgnn.policy.sylvie`. PipeQS (§3.5):
    ``drift_threshold`` (E), ``drift_rule`` for bits: see :mod:`hpcgnn.policy.pipeqs`. ``most_stale_epochs``: rows are never
    used later than so many epochs after they were sent. PipeGCN's smoothing of stale rows: ``smoothing`` of ``features``,
    ``gradients``, ``both`` or ``none``, ``smoothing_decay`` of it from the epochs before.
    """

    bits: str = "fixed"
    staleness: str = "off"
    bits_period: int = 50
    variance_weight: float = 0.5
    group_rows: int = 100
    loss_memory: float = 0.9
    loss_window: int = 5
    descent_rule: str = "corrected"
    drift_threshold: float = 0.1
    drift_rule: str = "corrected"
    most_stale_epochs: int = 4
    smoothing: str = "none"
    smoothing_decay: float = 0.95

    @property
    def is_off(self) -> bool:
        """Whether nothing is decided while training."""
        return self.bits == "fixed" and self.staleness == "off"

    @property
    def keeps_rows(self) -> bool:
        """Whether received rows are needed after their epoch."""
        return self.staleness != "off" or self.compares

    @property
    def compares(self) -> bool:
        """Whether received rows are compared with those of the message before."""
        return "pipeqs" in (self.bits, self.staleness)

    def check(self, message_coding: str = "plain") -> None:
        """Raise HpcgnnError for settings that do not exist or do not go together, or not with ``message_coding``."""
        if message_coding == "delta" and (self.keeps_rows or self.bits == "adaqp"):
            raise HpcgnnError(
                "--message-coding delta needs --staleness off, and --bits other than adaqp and pipeqs, which go by rows: a "
                "difference is to what the receiver has"
            )
        for name, known in (
            ("bits", ("fixed", *BITS_POLICIES)),
            ("staleness", STALENESS_POLICIES),
            ("drift_rule", DRIFT_RULES),
            ("descent_rule", DESCENT_RULES),
            ("smoothing", SMOOTHINGS),
        ):
            if getattr(self, name) not in known:
                raise HpcgnnError(f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}")
        for name in ("bits_period", "group_rows", "loss_window", "most_stale_epochs"):
            if getattr(self, name) < 1:
                raise HpcgnnError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("variance_weight", "loss_memory", "smoothing_decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise HpcgnnError(f"{name} must be between 0 and 1, not {getattr(self, name)}")
        if not self.drift_threshold >= 0:
            raise HpcgnnError(f"drift_threshold must be at least 0, not {self.drift_threshold}")
        if self.smoothing != "none" and self.staleness == "off":
            raise HpcgnnError("smoothing is of stale rows: choose --staleness pipeline or another with it")
