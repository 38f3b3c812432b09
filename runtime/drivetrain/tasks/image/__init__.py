"""Images: in class folders, named by a manifest, in a column of a table, or as arrays."""

from drivetrain.job.workload import Workload
from drivetrain.tasks.image.job import ImageClassificationJob, ImageJob, ImageRegressionJob
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
    reader=Lazy("tasks.image.data.ImageReader"),
    restore=Lazy("tasks.image.data.restore"),
    draft=Lazy("tasks.image.draft.draft_manifest"),
    draft_folder=Lazy("tasks.image.draft.draft_folder"),
    build_network=Lazy("tasks.image.network.build"),
    draw_inputs=Lazy("tasks.image.network.draw_inputs"),
    make_features=Lazy("tasks.image.features.ImageFeatures"),
    explained=("classes",),
    check_explanation=Lazy("tasks.image.heat_maps.compute_sample_map"),
    explain=Lazy("tasks.image.heat_maps.explain"),
    check_earlier_run=Lazy("tasks.image.earlier_run.check"),
    adapt_arguments=Lazy("tasks.image.network.adapt_arguments"),
    keep_decoded=Lazy("tasks.image.image_files.keep_decoded"),
    taken_from_earlier="channels, mean and deviation",
    sample_files=IMAGES,
    has_pretrained=True,
    has_pictures=True,
)
