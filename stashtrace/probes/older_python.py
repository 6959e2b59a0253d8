"""In a Python that is too old for the probes: say so in the recording, when torch is imported, and do nothing else.

The syntax is that of Python 3.6, and only the standard library is used. Older ones record without a word.
"""

import os
import sys

#: The modules whose import says that this process is a rank.
_WATCHED = "torch"
_LIBRARY = "libstashtrace.so"


class _Finder:
    """Meta path finder that finds nothing itself; it reports on the first import of torch."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        """Report if this is the import of torch, and let the other finders find it."""
        if name == _WATCHED:
            sys.meta_path.remove(self)
            report()
        return None


def install():
    # type: () -> None
    """Wait for torch."""
    sys.meta_path.insert(0, _Finder())


def report():
    # type: () -> None
    """Write the loss; on stderr if the recorder cannot be reached. Never raises."""
    words = "the probes need Python 3.10 or newer, this job runs Python %d.%d: only native collectors record it"
    sentence = words % sys.version_info[:2]
    try:
        import ctypes

        try:
            # The one that has been preloaded.
            library = ctypes.CDLL(_LIBRARY, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        except OSError:
            package = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
            library = ctypes.CDLL(os.path.join(package, _LIBRARY))
        write = library.stashtrace_report_no_probes
        write.argtypes = (ctypes.c_char_p,)
        write.restype = None
        write(sentence.encode("ascii"))
    except Exception as error:
        rank = os.environ.get("RANK", "-")
        sys.stderr.write(f"stashtrace[{rank} {os.getpid()}] error: {sentence} ({error!r})\n")
