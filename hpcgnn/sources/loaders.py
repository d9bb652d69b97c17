"""Running the loaders of PyG and OGB: where they keep their files, what they may ask, and why they failed, in one sentence.

They keep data sets as pickles, and a pickle may name any function to be called. Python reports each name to audit hooks before it
looks it up, whichever library unpickles, so one hook sees all names, and refuses everything that could run code.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import functools
import gzip
import http.client
import os
import socket
import ssl
import sys
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from hpcgnn.base.errors import HpcgnnError, quoted
from hpcgnn.data.h5 import GZIP, ZIP, begins_with
from hpcgnn.sources.slabs import one_line

_OF_NETWORK = (ConnectionError, TimeoutError, socket.gaierror, ssl.SSLError, http.client.HTTPException)
_OF_SYSTEM = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
_PIECE_BYTES = 1 << 20


def default_root(kind: str) -> Path:
    """The folder for downloads of ``kind`` (``pyg`` or ``ogb``) if the user names no root."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "hpcgnn" / kind


@contextlib.contextmanager
def warnings_off() -> Iterator[None]:
    """Suppress warnings that other packages give about each other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def loading(where: str, root: Path, *, may_download: bool = False) -> Iterator[None]:
    """Run another project's loader: its output goes to stderr, no pickle that it reads can run code, and any error becomes one
    sentence (HpcgnnError). may_download: answer a question about the size of a download with yes. Other questions go to the
    terminal. Without one, files are not updated, and any other question is an error, because a job would wait for the answer
    without end."""

    def answer(prompt: object = "") -> str:
        question = " ".join(str(prompt).split())
        if may_download and "download" in question.lower():
            return "y"
        if sys.stdin is not None and sys.stdin.isatty():
            return asked(prompt)
        if "update" in question.lower():
            print("The files that are there are read.", file=sys.stderr)
            return "n"
        raise HpcgnnError(
            f"{where}: its loader asks {quoted(question)}, and there is no terminal to answer on: run the command once on a "
            "terminal, or, if it asks about a download, add ?download=yes"
        )

    asked = builtins.input
    try:
        builtins.input = answer
        with contextlib.redirect_stdout(sys.stderr), warnings_off(), plain_pickles(f"{where} in {root}"):
            yield
    except HpcgnnError:
        raise
    except (Exception, SystemExit) as error:  # loaders raise errors of network and parser libraries, of any type
        given_up = isinstance(error, SystemExit)
        told = "the loader has given up" if given_up else f"{type(error).__name__}: {one_line(error)}"
        raise HpcgnnError(f"{where} cannot be loaded from {root}: {told}{_advice(error, root)}") from error
    finally:
        builtins.input = asked


def _advice(error: BaseException, root: Path) -> str:
    """The advice after an error of a loader; begins with a separator."""
    if isinstance(error, SystemExit):
        return ", as after the answer no to its question about a download"
    if isinstance(error, TypeError) and "required positional argument" in str(error):
        return "; the class has several graphs: write CLASS/NAME, such as WikipediaNetwork/chameleon"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, _OF_NETWORK) or type(cause).__module__.startswith("urllib"):
            return "; without a network, copy the downloaded files there and name the folder with ?root=DIR"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, OSError) and error.errno in _OF_SYSTEM:
        return ""
    if cut := _cut_files(root, into_gzip=isinstance(error, (EOFError, zlib.error))):
        names = " and ".join(map(str, cut[:3])) + (", and others" if len(cut) > 3 else "")
        return f"; a download, or a job before this one, was cut short: delete {names}, and run the command again"
    return "; if the data set's files there are damaged, delete them, and run the command again"


def _cut_files(root: Path, *, into_gzip: bool) -> list[Path]:
    """Files of data sets, at most three folders below ``root``, that are empty or cut short. into_gzip: read gzipped files to
    their end."""
    found = {path for depth in ("*", "*/*", "*/*/*", "*/*/*/*") for path in root.glob(depth)}
    return [path for path in sorted(found) if path.is_file() and _is_cut(path, into_gzip=into_gzip)]


def _is_cut(path: Path, *, into_gzip: bool) -> bool:
    try:
        if into_gzip and begins_with(path, GZIP):
            with gzip.open(path) as file:
                while file.read(_PIECE_BYTES):
                    pass
        is_empty = path.parent.name == "raw" and not path.stat().st_size
        return is_empty or (begins_with(path, ZIP) and not zipfile.is_zipfile(path))
    except (EOFError, zlib.error):
        return True
    except OSError:
        return False


# Names in pickles of arrays, sparse matrices, tensors and graphs, by modules. None of these objects does more than hold values.
_KNOWN = {
    "__builtin__ builtins": "bytearray complex dict frozenset list object set slice",
    "_codecs": "encode",
    "collections": "OrderedDict defaultdict",
    "copy_reg copyreg": "_reconstructor",
    "numpy": "dtype ndarray",
    "numpy.core.multiarray numpy._core.multiarray": "_reconstruct scalar",
    "numpy.core.numeric numpy._core.numeric": "_frombuffer",
    **{
        f"scipy.sparse.{kind} scipy.sparse._{kind}": f"{kind}_matrix {kind}_array"
        for kind in ("csr", "csc", "coo", "lil", "dia", "dok", "bsr")
    },
    "torch": "Size device BoolStorage ByteStorage CharStorage DoubleStorage FloatStorage HalfStorage IntStorage LongStorage"
    " ShortStorage BFloat16Storage bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64",
    "torch._utils": "_rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_sparse_tensor",
    "torch.storage": "UntypedStorage TypedStorage _load_from_bytes",  # the last one unpickles, and the hook sees that as well
    "torch.serialization": "_get_layout",
    "torch_geometric.data.data": "Data DataEdgeAttr DataTensorAttr",
    "torch_geometric.data.storage": "BaseStorage GlobalStorage NodeStorage EdgeStorage",
}
_NAMES = {(module, name) for modules, names in _KNOWN.items() for module in modules.split() for name in names.split()}
_loaded: ContextVar[str] = ContextVar("what is being loaded; empty where all pickles are let through", default="")


@contextlib.contextmanager
def plain_pickles(what: str) -> Iterator[None]:
    """Allow only arrays, tensors, graphs and plain values in pickles that this thread reads inside the context; other threads and
    processes are not guarded. what: the thing that is loaded, for the sentence. Raises HpcgnnError for a pickle that names
    anything else, before Python looks that up."""
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
    if event == "pickle.find_class" and _loaded.get() and arguments not in _NAMES:
        raise HpcgnnError(
            f"{_loaded.get()} has a pickle that names {'.'.join(map(str, arguments))}, which is not data and might run code: "
            "download its files again from their publisher"
        )
