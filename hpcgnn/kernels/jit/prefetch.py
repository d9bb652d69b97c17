"""The processor's prefetch instruction, which numba does not offer by itself."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

_READ, _SECOND_LEVEL_CACHE, _DATA = 0, 2, 1


@intrinsic
def prefetch(typing_context: Any, array: Any, row: Any, column: Any) -> Any:
    """Start to fetch the cache line of ``array[row, column]`` into the second-level cache."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type = signature.args[0]
        values = context.make_array(array_type)(context, builder, arguments[0])
        place = [context.cast(builder, arguments[k], signature.args[k], types.intp) for k in (1, 2)]
        address = cgutils.get_item_pointer(context, builder, array_type, values, place, wraparound=False)
        address = builder.bitcast(address, ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [address.type], function_type)
        builder.call(function, [address, number(_READ), number(_SECOND_LEVEL_CACHE), number(_DATA)])
        return context.get_dummy_value()

    return types.void(array, row, column), generate
