"""The files of tests that `make test` leaves out: they train in processes of their own, kill them, start engines, servers
and clusters, or build images. `make test-slow` runs them, as CI does. Single tests of other files have `pytest.mark.slow`.
"""

from __future__ import annotations

from pathlib import Path

SLOW_FOLDERS = ("docker", "faults", "gpu")
SLOW = frozenset(
    {
        "baselines/test_run_comparison",
        "benchmarks/test_gpu",
        "benchmarks/test_quality",
        "tasks/image/test_decoded_cache",
        "distributed/test_batch_sharding",
        "distributed/test_collectives",
        "distributed/test_differential",
        "distributed/test_gradient_exchange",
        "distributed/test_lost_nodes",
        "distributed/test_nodes",
        "distributed/test_ranks",
        "distributed/test_starters",
        "docs/test_library",
        "docs/test_tracker",
        "inference/test_evaluate",
        "inference/test_export",
        "job_spec/test_fuzzed_specs",
        "job_spec/test_many_specs",
        "job_spec/test_stored_data",
        "launch/test_follow_container",
        "models/networks/test_text_encoder",
        "models/test_feature_cache",
        "storage/test_bad_remote",
        "storage/test_object_store",
        "supervisor/remote_copy/test_killed_copies",
        "supervisor/remote_copy/test_only_copy",
        "supervisor/remote_copy/test_remote_training",
        "library/test_border_cases",
        "library/test_train",
        "library/test_machine",
        "supervisor/test_extended_run",
        "supervisor/test_hostile_names",
        "supervisor/test_killed_as_one",
        "library/test_library_data",
        "library/test_library_objects",
        "library/test_components",
        "supervisor/test_one_read",
        "supervisor/test_repeat",
        "supervisor/test_requested_plan",
        "supervisor/test_stored_job",
        "supervisor/test_supervisor",
        "supervisor/test_sweep",
        "test_base_image",
        "test_dev_container",
        "test_docs_data",
        "test_examples",
        "test_library_notebook",
        "test_loaded_modules",
        "test_notebook",
        "test_setup",
        "test_unfinished_runs",
        "test_wheel",
        "tracking/live/test_watch",
        "tracking/test_real_trackers",
        "training/evaluation/test_tested_model",
        "training/evaluation/test_worst_mistakes",
        "training/profiling/test_profiler",
        "training/test_agreement",
        "training/test_border_losses",
        "training/test_captured_step",
        "training/test_compile_failure",
        "training/test_device_reads",
        "training/test_late_results",
        "training/test_recorded_inputs",
        "training/test_run",
        "tuning/test_speed",
        "tuning/memory/test_micro_batch",
        "tuning/memory/test_profile",
        "tuning/test_batch_size",
        "tuning/test_kernel_crash",
        "tuning/test_lr_range",
        "tuning/test_numerics_check",
    }
)


def is_slow(path: Path) -> bool:
    """Whether a file of tests, by its path in `tests/`, belongs to the slow tier."""
    return path.parts[0] in SLOW_FOLDERS or path.with_suffix("").as_posix() in SLOW
