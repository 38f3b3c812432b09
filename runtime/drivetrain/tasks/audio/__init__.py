"""Sounds: files in class folders, or named by a manifest, as spectrograms."""

from drivetrain.job.workload import Workload
from drivetrain.tasks.audio.job import AudioClassificationJob
from drivetrain.tasks.modality import FileKind, Lazy, Modality

SOUNDS = FileKind(
    "sound",
    (".wav", ".flac", ".ogg"),
    (".mp3", ".m4a", ".aac", ".wma", ".aif", ".aiff", ".opus", ".au", ".amr", ".caf", ".mp4", ".webm"),
    "convert recordings to .flac or .wav; readings of sensors belong in a table (series-classification)",
)

MODALITY = Modality(
    kind="sounds",
    job=AudioClassificationJob,
    tasks={"audio-classification": AudioClassificationJob},
    expected=Workload(layers={"Conv2d": 1}),
    reader=Lazy("tasks.audio.data.SoundReader"),
    restore=Lazy("tasks.audio.data.restore"),
    draft=Lazy("tasks.audio.draft.draft_manifest"),
    draft_folder=Lazy("tasks.audio.draft.draft_folder"),
    build_network=Lazy("tasks.audio.network.build"),
    draw_inputs=Lazy("tasks.audio.network.draw_inputs"),
    make_features=Lazy("tasks.audio.features.SoundFeatures"),
    check_earlier_run=Lazy("tasks.audio.earlier_run.check"),
    taken_from_earlier="sampling rate, mean and deviation",
    sample_files=SOUNDS,
)
