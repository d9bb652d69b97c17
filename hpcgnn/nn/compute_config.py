"""Names and settings of the arithmetic of dense products; no torch is imported for them.

:mod:`hpcgnn.nn.compute` says what each name means, and :mod:`hpcgnn.nn.int8` the same of integers.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcgnn.settings import Checked, setting

AUTO, FLOAT32, BF16, EMULATED, TF32 = "auto", "float32", "bf16", "bf16-emulated", "tf32"
INT8, INT8_ALWAYS, INT4 = "int8", "int8-always", "int4"
INTEGERS = (INT8, INT8_ALWAYS)
COMPUTES = (AUTO, FLOAT32, BF16, EMULATED, TF32, *INTEGERS, INT4)
STOCHASTIC, NEAREST = "stochastic", "nearest"


@dataclass(frozen=True)
class Int8Config(Checked):
    """rounding: of floats to integers. before_softmax: quantize the last layer and attention's scores as well. most_error: of the
    first layer's output (Tango Eq. 4), in [0, 1]."""

    rounding: str = setting(
        STOCHASTIC,
        "With --compute int8: at random, so that the expected error is 0, or nearest.",
        name="int8_rounding",
        choices=(STOCHASTIC, NEAREST),
    )
    before_softmax: bool = setting(
        False,
        "With --compute int8: quantize the layer before the softmax and attention's scores as well, which costs accuracy.",
        name="int8_before_softmax",
    )
    most_error: float = setting(
        0.3,
        "With --compute int8: go on in float32 where the relative error of the first layer's output in the first epoch is not "
        "below this; 1 to go on in any case.",
        name="int8_most_error",
        least=0,
        most=1,
    )
