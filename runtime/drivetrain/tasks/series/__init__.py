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
    draft=Lazy("tasks.series.draft.draft"),
    suggest=Lazy("tasks.series.draft.suggest"),
    build_network=Lazy("tasks.series.network.build"),
    draw_inputs=Lazy("tasks.series.network.draw_inputs"),
    make_features=Lazy("tasks.series.features.SeriesFeatures"),
    explained=("classes", "labels", "numbers"),
    explain=Lazy("inference.permutation_importance.explain"),
    list_columns=Lazy("tasks.series.network.list_channels"),
    check_earlier_run=Lazy("tasks.series.earlier_run.check"),
    adapt_arguments=Lazy("tasks.series.network.check_window"),
    taken_from_earlier="features and their scale",
    array_suffixes=(".npz",),
    is_ordered=True,
)
