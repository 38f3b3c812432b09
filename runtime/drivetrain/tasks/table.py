"""Tables: one sample per row, with numbers and categories."""

from drivetrain.job.tables import TableClassificationJob, TableJob, TableRegressionJob
from drivetrain.job.workload import Workload
from drivetrain.tasks.modality import Lazy, Modality

MODALITY = Modality(
    kind="table",
    job=TableJob,
    tasks={"tabular-classification": TableClassificationJob, "tabular-regression": TableRegressionJob},
    expected=Workload(),
    reader=Lazy("data.tables.table_data.TableReader"),
    restore=Lazy("data.tables.table_data.restore"),
    draft=Lazy("data.survey.look.draft_rows"),
    build_network=Lazy("models.build.build_table_network"),
    draw_inputs=Lazy("models.dummy_inputs.draw_rows"),
    make_features=Lazy("baselines.sample_features.TableFeatures"),
    explained=("classes", "labels", "numbers"),
    explain=Lazy("inference.permutation_importance.explain"),
    list_columns=Lazy("inference.permutation_importance.list_columns"),
    check_earlier_run=Lazy("job_spec.data_columns.check_table"),
    prefers_loss=True,
    taken_from_earlier="features, categories and scale",
)
