"""Images: in class folders, named by a manifest, in a column of a table, or as arrays."""

from drivetrain.job.images import ImageClassificationJob, ImageJob, ImageRegressionJob
from drivetrain.job.workload import Workload
from drivetrain.tasks.modality import FileKind, Lazy, Modality

IMAGES = FileKind(
    "image",
    (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".jfif", ".jpe", ".avif"),
    (
        *(".heic", ".heif", ".jxl", ".jp2", ".j2k", ".jpx", ".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".psd", ".exr"),
        *(".hdr", ".dcm", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf"),
    ),
    "convert drawings to .png; texts belong in a table with a row for each text: its text and its label",
    can_be_in_tables=True,
)

MODALITY = Modality(
    kind="images",
    job=ImageJob,
    tasks={"image-classification": ImageClassificationJob, "image-regression": ImageRegressionJob},
    expected=Workload(layers={"Conv2d": 1}),
    reader=Lazy("data.images.image_data.ImageReader"),
    restore=Lazy("data.images.image_data.restore"),
    draft=Lazy("data.survey.image_draft.draft_manifest"),
    draft_folder=Lazy("data.survey.image_draft.draft_folder"),
    build_network=Lazy("models.build.build_image_network"),
    draw_inputs=Lazy("models.dummy_inputs.draw_images"),
    make_features=Lazy("baselines.sample_features.ImageFeatures"),
    explained=("classes",),
    check_explanation=Lazy("inference.heat_maps.compute_sample_map"),
    explain=Lazy("inference.heat_maps.explain"),
    check_earlier_run=Lazy("job_spec.data_columns.check_images"),
    adapt_arguments=Lazy("models.initial_weights.adapt_image_arguments"),
    taken_from_earlier="channels, mean and deviation",
    sample_files=IMAGES,
    has_pretrained=True,
    has_pictures=True,
)
