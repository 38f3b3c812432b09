"""Images: in class folders, named by a manifest, in a column of a table, or as arrays."""

from drivetrain.job.images import ImageJob
from drivetrain.job.workload import Workload
from drivetrain.tasks.modality import Lazy, Modality

MODALITY = Modality(
    kind="images",
    job=ImageJob,
    expected=Workload(layers={"Conv2d": 1}),
    reader=Lazy("data.images.image_data.ImageReader"),
    restore=Lazy("data.images.image_data.restore"),
    draft=Lazy("data.survey.image_draft.draft_manifest"),
    build_network=Lazy("models.build.build_image_network"),
    draw_inputs=Lazy("models.dummy_inputs.draw_images"),
    make_features=Lazy("baselines.sample_features.ImageFeatures"),
    explained=("classes",),
    check_explanation=Lazy("inference.heat_maps.compute_sample_map"),
    explain=Lazy("inference.heat_maps.explain"),
    check_earlier_run=Lazy("job_spec.data_columns.check_images"),
    adapt_arguments=Lazy("models.initial_weights.adapt_image_arguments"),
    taken_from_earlier="channels, mean and deviation",
    has_sample_files=True,
    has_pretrained=True,
    has_pictures=True,
)
