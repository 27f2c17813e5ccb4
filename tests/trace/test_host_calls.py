"""Keys of GPU work: process and correlation id."""

import numpy as np

from nsysprof.trace.nsys.host_calls import launch_keys


def test_calls_of_a_process_without_gpu_work_ask_for_nothing_where_ids_lie_far_apart() -> None:
    """Its number is below that of one with such work, whose ids are searched for."""
    keys = launch_keys(np.array([1, 1]), np.array([1, 1 << 50]))
    assert keys.slots(np.array([0, 1]), np.array([1, 1])).tolist() == [-1, 0]
