"""Data of the user's own code: of a file of the job, or passed in by a Python program."""

from drivetrain.job.custom import CustomJob, CustomTask
from drivetrain.job.workload import Workload
from drivetrain.tasks.modality import Lazy, Modality

MODALITY = Modality(
    kind="own",
    job=CustomTask,
    tasks={"custom": CustomJob},
    # The network may have any convolution, but not surely one of images.
    expected=Workload(layers={"Conv": 1}),
    load=Lazy("data.custom.custom_data.load"),
    read=Lazy("data.custom.custom_data.read"),
    build_network=Lazy("models.build.build_user_network"),
    draw_inputs=Lazy("models.dummy_inputs.draw_user_inputs"),
    is_user_code=True,
)
