"""Series: windows of several channels over time, from a long table or arrays."""

from drivetrain.job.workload import Workload
from drivetrain.tasks.modality import Lazy, Modality
from drivetrain.tasks.series.job import SeriesClassificationJob, SeriesJob, SeriesRegressionJob

MODALITY = Modality(
    kind="series",
    job=SeriesJob,
    tasks={"series-classification": SeriesClassificationJob, "series-regression": SeriesRegressionJob},
    expected=Workload(layers={"Conv1d": 1, "LSTM": 1}),
    reader=Lazy("tasks.series.data.SeriesReader"),
    restore=Lazy("tasks.series.data.restore"),
    draft=Lazy("tasks.series.draft.draft_series"),
    build_network=Lazy("models.build.build_series_network"),
    draw_inputs=Lazy("models.dummy_inputs.draw_windows"),
    make_features=Lazy("baselines.sample_features.SeriesFeatures"),
    explained=("classes", "labels", "numbers"),
    explain=Lazy("inference.permutation_importance.explain"),
    list_columns=Lazy("inference.permutation_importance.list_channels"),
    check_earlier_run=Lazy("job_spec.data_columns.check_series"),
    adapt_arguments=Lazy("models.initial_weights.check_window"),
    taken_from_earlier="features and their scale",
    array_suffixes=(".npz",),
    is_ordered=True,
)
