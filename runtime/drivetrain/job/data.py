"""The `data:` part of the spec, one class per task."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from drivetrain.job.values import (
    BadShare,
    Cells,
    Column,
    Count,
    FilePath,
    Fold,
    Natural,
    NumberRange,
    OneOrMore,
    Positive,
    PositiveRange,
    Probability,
    Range,
    Spec,
    Validation,
)

Fit = Literal["crop", "pad", "squash"]


class Data(Spec):
    """Keys that all tasks share."""

    COLUMN_KEYS: ClassVar[tuple[str, ...]] = ()
    """Keys that name columns of every file."""

    train: FilePath = Field(
        description="training data: a file or folder, relative to the job's folder, then the project; or an address: "
        "hf://datasets/OWNER/NAME, s3://BUCKET/PATH, gs://BUCKET/PATH, https://HOST/PATH"
    )
    validation: Validation = Field(0.1, description="a fraction of the training data, or the path of separate data")
    test: FilePath | None = Field(
        None,
        description="data for a final test: evaluated once, after the training, with the best weights; no decision uses it",
    )
    fold: Fold | None = Field(
        None,
        description="such as 2/5: validate on the second of five parts of the training data; `drivetrain repeat JOB "
        "--folds 5` trains once for each part",
    )
    bad_samples: BadShare = Field(
        0.05,
        description="share of samples that may be unreadable; they are listed and skipped; a larger share is an error (exit "
        "code 3)",
    )


Encoding = Literal[
    "auto",
    "utf-8",
    "utf-16",
    "utf-16-le",
    "utf-16-be",
    "windows-1250",
    "windows-1251",
    "windows-1252",
    "windows-1253",
    "windows-1254",
    "latin-1",
    "iso-8859-2",
    "iso-8859-15",
    "cp437",
    "cp850",
    "mac-roman",
    "koi8-r",
    "shift-jis",
    "gb18030",
    "big5",
    "euc-kr",
]


class CsvOptions(Spec):
    """Format of CSV and TSV files. auto: detected in each file; a file that fits two formats is an error."""

    delimiter: Literal["auto", "comma", "semicolon", "tab", "pipe"] = Field(
        "auto", description="separator of the cells"
    )
    decimal: Literal["auto", "point", "comma"] = Field(
        "auto", description="point: as in 1,234.5; comma: as in 1.234,5; auto: detected from the numbers of the file"
    )
    encoding: Encoding = Field(
        "auto", description="character encoding; auto: UTF-8, UTF-16 with a byte order mark, or windows-1252"
    )

    skip: Natural = Field(0, description="lines above the header: titles, comments and empty lines")

    def list_settings(self) -> dict[str, str]:
        """List the options that are not auto, as on the command line."""
        return {key: str(value) for key, value in self.model_dump().items() if value not in ("auto", 0)}


class TableFileData(Data):
    """Keys of the tasks that read tables from files."""

    csv: CsvOptions = Field(CsvOptions(), description="format of CSV and TSV files, if it must not be detected")
    missing: Cells | None = Field(
        None,
        description='cells that mean no value, in addition to empty cells, NA, NaN, NULL and similar: "?" or -999',
    )


class RandAugment(Spec):
    """RandAugment (Cubuk et al. 2020)."""

    num_ops: Count = Field(2, description="operations per image")
    magnitude: Annotated[int, Field(ge=0, le=30)] = Field(9, description="strength of the operations, 0 to 30")


class ColorJitter(Spec):
    """Random brightness, contrast and saturation, each by a factor in [1 - x, 1 + x]."""

    brightness: Probability = Field(0.0, description="largest change of brightness")
    contrast: Probability = Field(0.0, description="largest change of contrast")
    saturation: Probability = Field(0.0, description="largest change of saturation")


class Erasing(Spec):
    """Random erasing (Zhong et al. 2020)."""

    probability: Probability = Field(0.25, description="share of images with a patch erased")
    area: Range = Field((0.02, 0.2), description="smallest and largest share erased")


class ResizedCrop(Spec):
    """A random crop of the image, resized to the full size (Szegedy et al. 2015)."""

    scale: Range = Field((0.35, 1.0), description="smallest and largest share")
    ratio: PositiveRange = Field((0.75, 1.333), description="narrowest and widest shape")


class Mixup(Spec):
    """Mixup (Zhang et al. 2018): blends pairs of samples and their labels."""

    alpha: Positive = Field(0.2, description="both parameters of the Beta distribution of the blend")
    probability: Probability = Field(1.0, description="share of the steps that are mixed")


class Cutmix(Spec):
    """CutMix (Yun et al. 2019): replaces a rectangle by the same rectangle of another image, and mixes labels by area."""

    alpha: Positive = Field(1.0, description="both parameters of the Beta distribution of the area")
    probability: Probability = Field(1.0, description="share of the steps that are mixed")


class ImageAugment(Spec):
    """Random augmentation of training images; random numbers depend only on (seed, epoch, sample)."""

    flip: bool = Field(False, description="flip half of the images horizontally")
    crop_padding: Natural = Field(0, description="pad by this many pixels, then crop at a random position")
    resized_crop: ResizedCrop | None = Field(None, description="a random crop, resized to the full size")
    randaugment: RandAugment | None = Field(None, description="RandAugment")
    color_jitter: ColorJitter | None = Field(None, description="brightness, contrast, saturation")
    erasing: Erasing | None = Field(None, description="random erasing")
    mixup: Mixup | None = Field(None, description="mixup, for the whole batch, with random numbers from (seed, step)")
    cutmix: Cutmix | None = Field(
        None, description="cutmix, for the whole batch, with random numbers from (seed, step)"
    )
    views: Count | None = Field(
        None,
        description="number of variants of each image that the epochs use in turn, so that outputs of frozen layers can be "
        "cached; absent: a new variant in every epoch",
    )

    @property
    def of_single_images(self) -> tuple[str, ...]:
        """Names of the requested changes that each image gets independently of its batch."""
        of_batches = ("mixup", "cutmix", "views")
        return tuple(name for name, requested in self if requested and name not in of_batches)


OFF, FOLDERS, NAMES = "off", "folders", "names"
"""Values of `data.groups` of files that are not the name of a column."""


class FileData(TableFileData):
    """Keys of tasks whose samples are files, named by class folders or by a manifest."""

    COLUMN_KEYS = ("path_column", "label_column")

    path_column: Column = Field(
        "path",
        description="column of a manifest that holds paths, relative to the manifest; or encoded images, in Parquet and Arrow",
    )
    label_column: OneOrMore = Field(("label",), description="column of a manifest with the number; or several columns")
    groups: Column | None = Field(
        None,
        description="column that groups files, such as a patient or a speaker: a fraction or a fold takes whole groups. In "
        "folders: `folders` or `names` (of files, without a number at their end). Absent: files of one source are recognized; "
        "off: every file is on its own",
    )


class ImageData(FileData):
    """Images and numbers: a CSV, JSONL or Parquet manifest, or an .npz with `images` (N, H, W, C) and `labels` (N,) or
    (N, K).
    """

    image_size: Annotated[int, Field(ge=4, le=2048)] | Literal["auto"] = Field(
        "auto", description="side of the square input of the network, in pixels; auto: chosen from the images"
    )
    fit: Fit = Field(
        "crop",
        description="how to make an image square; crop: keep its center; pad: add black bars; "
        "squash: resize without keeping the aspect ratio",
    )
    channels: Literal[1, 3, "auto"] = Field(
        "auto", description="1 for grayscale, 3 for color; auto: chosen from the images"
    )
    pixel_range: NumberRange | None = Field(
        None, description="values of black and white; absent: 0 and 255, 0 and 1, or all 16 bits; all else is an error"
    )
    augment: ImageAugment = Field(ImageAugment(), description="random changes to training images")


class FileLabels(FileData):
    """Keys of tasks that predict a class or several labels of a file."""

    label_column: OneOrMore = Field(
        ("label",),
        description="column of a manifest with the label; several columns: independent labels, each 0 or 1",
    )
    multi_label: bool | None = Field(
        None,
        description="true: a file has any number of labels; false: each cell is one class; absent: one class, and a column "
        "that looks like several labels is an error",
    )
    label_separator: Annotated[str, Field(min_length=1, max_length=4)] = Field(
        "auto",
        description="separator of the labels in a cell; auto: | ; or , as detected, or lists of JSONL and Parquet",
    )

    @property
    def several(self) -> bool:
        """Whether a file can have several labels."""
        return bool(self.multi_label) or len(self.label_column) > 1


class ImageClassificationData(FileLabels, ImageData):
    """Images and labels: a folder with one folder per class, a CSV, JSONL or Parquet manifest, a Parquet or Arrow file with a
    column of images, or an .npz with `images` and `labels`.
    """
