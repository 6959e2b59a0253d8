"""The same life of batches through torchdata's StatefulDataLoader, by the tests of torch's loader.

torchdata is not a dependency: without it all skip. To run them, name the Python of an environment in
``STASHTRACE_TEST_PYTHON`` (``pip install torch torchdata``).
"""

from __future__ import annotations

import subprocess

import pytest
from installed import needs_torch
from test_torch_dataloader import (  # noqa: F401
    SCRIPT,
    test_a_loader_inside_a_dataset_does_not_take_the_outer_batch,
    test_a_loop_that_is_left_early,
    test_an_error_in_a_worker_is_a_batch_that_was_made_and_never_returned,
    test_batch_sampler,
    test_batches_are_the_same_with_and_without_us,
    test_life_of_an_iterator_is_a_span,
    test_loaders_of_one_seed_are_distinguished,
    test_main_process_and_workers_agree,
    test_nothing_was_lost_and_nothing_said,
    test_out_of_order_batches_keep_their_index,
    test_persistent_workers_have_another_loader_id_in_each_epoch,
    test_pinning_is_a_phase_inside_the_wait,
    test_pipes_of_a_finished_loader_are_closed_at_once,
    test_roles_of_processes_and_threads,
    test_samples_without_batches_are_batches_of_one,
    test_without_the_variable_nothing_of_the_replay_is_loaded,
    test_without_workers_the_main_process_makes_the_batch_inside_its_wait,
    test_workers_of_an_iterable_that_end_early,
)
from traced import PYTHON, TracedRun, run_traced

pytestmark = pytest.mark.torch
needs_torch()
_FOUND = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torchdata') is None)"
_IMPORT = "from torchdata.stateful_dataloader import StatefulDataLoader as DataLoader"
_STATEFUL = SCRIPT.replace("import stashtrace\n", f"import stashtrace\n    {_IMPORT}\n")


def needs_torchdata() -> None:
    """Skip where it is not installed."""
    if subprocess.run([PYTHON, "-c", _FOUND], check=False).returncode:
        pytest.skip("torchdata is not installed")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    needs_torchdata()
    return run_traced(_STATEFUL, tmp_path_factory.mktemp("stateful"))


@pytest.fixture(scope="module")
def untraced(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    return run_traced(_STATEFUL, tmp_path_factory.mktemp("stateful_untraced"), traced=False)
