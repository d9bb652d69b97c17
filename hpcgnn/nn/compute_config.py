"""Names and settings of the arithmetic of dense products; this module does not import torch.

:mod:`hpcgnn.nn.compute` explains the names, and :mod:`hpcgnn.nn.int8` explains those of 8-bit integers.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcgnn.base.settings import Checked, setting

AUTO, FLOAT32, BF16, EMULATED, TF32 = "auto", "float32", "bf16", "bf16-emulated", "tf32"
INT8, INT8_ALWAYS, INT4 = "int8", "int8-always", "int4"
INTEGERS = (INT8, INT8_ALWAYS)
COMPUTES = (AUTO, FLOAT32, BF16, EMULATED, TF32, *INTEGERS, INT4)
STOCHASTIC, NEAREST = "stochastic", "nearest"


@dataclass(frozen=True)
class Int8Config(Checked):
    """Settings of training in 8-bit integers.

    rounding: of floats to integers. before_softmax: quantize the last layer and attention's scores as well. most_error: the
    largest relative error of the first layer's output (Tango Eq. 4), in [0, 1], with which training continues in integers.
    """

    rounding: str = setting(
        STOCHASTIC,
        "Rounding of --compute int8: stochastic has an expected error of 0; nearest rounds to the nearest integer.",
        name="int8_rounding",
        choices=(STOCHASTIC, NEAREST),
    )
    before_softmax: bool = setting(
        False,
        "With --compute int8, also quantize the layer before the softmax and the attention scores, which costs accuracy.",
        name="int8_before_softmax",
    )
    most_error: float = setting(
        0.3,
        "With --compute int8, largest relative error of the first layer's output in the first epoch; at this error or above, "
        "training continues in float32. 1 continues in int8 whatever the error is.",
        name="int8_most_error",
        least=0,
        most=1,
    )
