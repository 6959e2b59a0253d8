"""Tasks of a Dask cluster: one call per chunk of the work, results in the order of the chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TypeVar

from stashtrace.errors import StashtraceError

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")


def on_cluster(
    call: Callable[[Chunk], Result], chunks: Sequence[Chunk], cluster: str, finished: Callable[[Chunk], None]
) -> list[Result]:
    """Call a function with each chunk on the workers of a cluster, and call ``finished`` with each chunk that is done.

    ``cluster``: address of a Dask scheduler, e.g. ``tcp://host:8786``. Raises StashtraceError if distributed is not
    installed, or the cluster does not answer.
    """
    if find_spec("distributed") is None:
        raise StashtraceError("a Dask cluster needs distributed", hint="pip install 'stashtrace[fleet]'")
    from distributed import Client, as_completed

    try:
        client = Client(cluster, timeout="10s")
    except (OSError, ValueError, TimeoutError) as error:
        raise StashtraceError(f"no Dask scheduler answers at {cluster}", hint="start one: dask scheduler") from error
    with client:
        futures = [client.submit(call, chunk, pure=False) for chunk in chunks]
        place = {future.key: at for at, future in enumerate(futures)}
        for future in as_completed(futures):
            finished(chunks[place[future.key]])
        return list(client.gather(futures))
