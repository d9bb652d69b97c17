"""A guard for pickles that the loaders of other projects read: it allows values, and refuses everything that could run code.

The loaders of ogb and PyG keep data sets as pickles, and a pickle may name any function to be called. Python reports each name
to audit hooks before it looks it up, whichever library unpickles, so that one hook sees all names.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from contextvars import ContextVar

from hpcgnn.base.errors import HpcgnnError

_EVENT = "pickle.find_class"
# Names in pickles of arrays, sparse matrices, tensors and graphs. None of these objects does more than hold values.
_KNOWN = {
    "__builtin__": "bytearray complex dict frozenset list object set slice",
    "builtins": "bytearray complex dict frozenset list object set slice",
    "_codecs": "encode",
    "collections": "OrderedDict defaultdict",
    "copy_reg": "_reconstructor",
    "copyreg": "_reconstructor",
    "numpy": "dtype ndarray",
    "numpy.core.multiarray": "_reconstruct scalar",
    "numpy._core.multiarray": "_reconstruct scalar",
    "numpy.core.numeric": "_frombuffer",
    "numpy._core.numeric": "_frombuffer",
    **dict.fromkeys(("scipy.sparse.csr", "scipy.sparse._csr"), "csr_matrix csr_array"),
    **dict.fromkeys(("scipy.sparse.csc", "scipy.sparse._csc"), "csc_matrix csc_array"),
    **dict.fromkeys(("scipy.sparse.coo", "scipy.sparse._coo"), "coo_matrix coo_array"),
    **dict.fromkeys(("scipy.sparse.lil", "scipy.sparse._lil"), "lil_matrix lil_array"),
    **dict.fromkeys(("scipy.sparse.dia", "scipy.sparse._dia"), "dia_matrix dia_array"),
    **dict.fromkeys(("scipy.sparse.dok", "scipy.sparse._dok"), "dok_matrix dok_array"),
    **dict.fromkeys(("scipy.sparse.bsr", "scipy.sparse._bsr"), "bsr_matrix bsr_array"),
    "torch": "Size device BoolStorage ByteStorage CharStorage DoubleStorage FloatStorage HalfStorage IntStorage LongStorage"
    " ShortStorage BFloat16Storage bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64",
    "torch._utils": "_rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_sparse_tensor",
    "torch.storage": "UntypedStorage TypedStorage _load_from_bytes",  # the last one unpickles, and the hook sees that as well
    "torch.serialization": "_get_layout",
    "torch_geometric.data.data": "Data DataEdgeAttr DataTensorAttr",
    "torch_geometric.data.storage": "BaseStorage GlobalStorage NodeStorage EdgeStorage",
}
_NAMES = {(module, name) for module, names in _KNOWN.items() for name in names.split()}
_loaded: ContextVar[str] = ContextVar("what is being loaded; empty where all pickles are let through", default="")


@contextlib.contextmanager
def plain_pickles(what: str) -> Iterator[None]:
    """Allow only arrays, tensors, graphs and plain values in pickles that this thread reads inside the context. Other threads,
    and processes that a loader starts, are not guarded. what: the thing that is loaded, for the sentence.

    Raises:
        HpcgnnError: for a pickle that names anything else, before Python looks that up.
    """
    _listen()
    before = _loaded.set(what)
    try:
        yield
    finally:
        _loaded.reset(before)


@functools.cache
def _listen() -> None:
    """Install the audit hook, only once, because it stays as long as the process."""
    sys.addaudithook(_refuse_others)


def _refuse_others(event: str, arguments: tuple[object, ...]) -> None:
    if event == _EVENT and _loaded.get() and arguments not in _NAMES:
        raise HpcgnnError(
            f"{_loaded.get()} has a pickle that names {'.'.join(map(str, arguments))}, which is not data and might run code: "
            "download its files again from their publisher"
        )
