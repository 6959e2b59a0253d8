"""Which of DFTracer's calls are I/O, and which operation each is. Used by ``dftracer`` alone."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.model.kinds import IoOp

STDIO_CATEGORIES = frozenset(("STDIO",))
_CATEGORIES = STDIO_CATEGORIES | {"POSIX"}

_FAMILIES: dict[IoOp, str] = {
    IoOp.READ: "read",
    IoOp.WRITE: "write",
    IoOp.PREAD: "pread pread64",
    IoOp.PWRITE: "pwrite pwrite64",
    IoOp.READV: "readv",
    IoOp.WRITEV: "writev",
    IoOp.PREADV: "preadv preadv2 preadv64",
    IoOp.PWRITEV: "pwritev pwritev2 pwritev64",
    IoOp.OPEN: "open open64 openat openat64 creat creat64",
    IoOp.CLOSE: "close",
    IoOp.LSEEK: "lseek lseek64",
    IoOp.STAT: "stat lstat fstat fstatat stat64 lstat64 fstat64 statx "
    "__xstat __lxstat __fxstat __fxstatat __xstat64 __lxstat64 __fxstat64 __fxstatat64",
    IoOp.FSYNC: "fsync fdatasync",
    IoOp.MMAP: "mmap mmap64",
    IoOp.MUNMAP: "munmap",
    IoOp.MSYNC: "msync",
    IoOp.SENDFILE: "sendfile sendfile64",
    IoOp.FOPEN: "fopen fopen64 fdopen freopen",
    IoOp.FCLOSE: "fclose",
    IoOp.FREAD: "fread",
    IoOp.FWRITE: "fwrite",
    IoOp.FSEEK: "fseek fseeko rewind",
    IoOp.FFLUSH: "fflush",
    IoOp.UNLINK: "unlink unlinkat remove",
    IoOp.RENAME: "rename renameat",
    IoOp.MKDIR: "mkdir mkdirat",
    IoOp.READDIR: "opendir readdir readdir64 closedir",
    IoOp.TRUNCATE: "truncate ftruncate truncate64 ftruncate64",
    IoOp.FADVISE: "posix_fadvise posix_fadvise64",
}
#: Name of the call -> IoOp.
IO_OPS: dict[str, int] = {name: int(op) for op, names in _FAMILIES.items() for name in names.split()}
#: Calls whose result is a number of bytes, or of items of ``size`` bytes.
MOVES_BYTES = frozenset(
    name
    for op in (
        IoOp.READ, IoOp.WRITE, IoOp.PREAD, IoOp.PWRITE, IoOp.READV, IoOp.WRITEV, IoOp.PREADV, IoOp.PWRITEV,
        IoOp.SENDFILE, IoOp.FREAD, IoOp.FWRITE,
    )
    for name in _FAMILIES[op].split()
)  # fmt: skip


def is_io(category: str, name: str) -> bool:
    """Whether the call has a row in ``io``; the others (fork, fcntl, access, ...) are spans."""
    return category in _CATEGORIES and name in IO_OPS
