"""Loads the data of an image job from shards: labels are read before the training, images during it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from drivetrain.data import bad_samples, stateless_random
from drivetrain.data.bad_samples import BadSample
from drivetrain.data.dataset import Dataset, Head, InputRecord
from drivetrain.data.images import geometry, image_files, manifest, pixel_scale
from drivetrain.data.images.augment import Augment
from drivetrain.data.images.image_data import MAX_MEASURED_IMAGES, compute_preprocessing
from drivetrain.data.images.image_split import ImageSplit
from drivetrain.data.images.image_targets import ImageTargets, LabelForm
from drivetrain.data.images.preprocess import ImagePreprocessing, from_preprocessing
from drivetrain.data.images.source import ImageSource
from drivetrain.data.images.streamed_images import EncodedImages, StreamedImages, StreamedSplit, undecodable_error
from drivetrain.data.stateless_random import Ids
from drivetrain.data.streaming import index as indices
from drivetrain.data.streaming import open_stream, parquet_index, tar_index
from drivetrain.data.streaming.cache import ShardCache
from drivetrain.data.streaming.index import Index
from drivetrain.data.streaming.reader import Rows, ShardReader, TarRows
from drivetrain.data.streaming.shard import TAR, ShardStore
from drivetrain.job.images import ImageJob
from drivetrain.pretrained import image_input

MAX_SAMPLED_SHARDS = 8
"""Largest number of shards whose images give size, channels, mean and deviation."""


@dataclass
class _Source:
    """The images of the shards of one address, with their targets."""

    key: str
    images: StreamedImages
    targets: ImageTargets
    rows: Ids
    """Rows of the index that can be used, ascending; `targets` are theirs."""
    separator: str
    """What separates the labels of a cell; empty if no cell has several."""
    notes: list[str] = field(default_factory=list)

    @property
    def index(self) -> Index:
        """The index of the shards."""
        return self.images.reader.index

    def build_split(self, rows: Ids, head: Head) -> StreamedSplit:
        """A split of some rows, with their targets."""
        return StreamedSplit(self.images, rows, self.targets.tensor(self.target_positions(rows), head, self.key))

    def target_positions(self, rows: Ids) -> Ids:
        """Positions of some rows in `targets`."""
        return np.searchsorted(self.rows, rows).astype(np.int64)


def load(job: ImageJob, recorded: InputRecord | None = None) -> Dataset:
    """Index the shards of a job, and choose the preprocessing by images of some of them.

    Args:
        job: a job with `data.stream`.
        recorded: preprocessing and heads of the run, if it read this data before, or of an earlier one.

    Raises:
        DataError: if the shards cannot be used.
        SpecError: if the cache is too small for the order.
    """
    stream = job.data.stream
    assert stream is not None
    cache = open_stream.open_cache(stream)
    form = LabelForm.of_job(job.data, ask=not (recorded and recorded.same_data))
    train, train_rows, validation_source, validation_rows = _read_and_divide(job, form, cache)
    sources = [train] if validation_source is train else [train, validation_source]

    def compute_head() -> Head:
        return train.targets.head(train.target_positions(train.rows), train.target_positions(train_rows), train.key)

    head = recorded.head("", compute_head) if recorded else compute_head()
    prepare, notes = _choose_preprocessing(job, train, train_rows, head, recorded)
    for source in sources:
        source.images = source.images.fit_to(prepare.image_size, prepare.channels, prepare.resize)
    splits = train.build_split(train_rows, head), validation_source.build_split(validation_rows, head)
    order = open_stream.order_of(job, stream, train.index, train_rows)
    classes = splits[0].targets[""].numpy() if head.classes and not head.several else None
    return Dataset(
        *splits,
        heads={"": head},
        preprocessing=prepare.to_json() | {"path_column": job.data.path_column, **form.to_json(train.separator)},
        prepare=prepare,
        decoded=False,
        order=order,
        notes=[
            f"{len(train_rows):,} training and {len(validation_rows):,} validation images, {head.outputs_text}",
            *(
                note
                for source in sources
                for note in (open_stream.note_indexed(source.key, source.index), *source.notes)
            ),
            *open_stream.unseen_notes(head, splits, "images"),
            *open_stream.shuffle_notes(order, classes),
            *open_stream.check_cache(job, stream, train.images.reader),
            *notes,
        ],
        facts={"stream": {"shards": len(train.index.shards), "streams": order.streams, "window": order.window}},
        fetched=cache.counts if any(source.images.reader.is_remote() for source in sources) else None,
        shards={source.key: source.index.recorded() for source in sources},
        content=lambda: {source.key: source.index.digest() for source in sources},
    )


def _read_and_divide(job: ImageJob, form: LabelForm, cache: ShardCache) -> tuple[_Source, Ids, _Source, Ids]:
    """Index the shards and divide their rows into training and validation.

    Returns:
        The source of the training images, their rows, the source of the validation images, and their rows. Both have
        the same source if the validation images are held out of the training shards.
    """
    train = _index_source(job, job.data.train, form, "data.train", cache)
    train.targets.check(train.target_positions(train.rows), train.key)
    if isinstance(job.data.validation, str):
        declared_form = replace(form, separator=train.separator or form.separator)
        validation_source = _index_source(job, job.data.validation, declared_form, "data.validation", cache)
        return train, train.rows, validation_source, validation_source.rows
    train_rows, validation_rows = open_stream.hold_out(
        train.index, train.rows, job.data.validation, job.train.seed, train.key
    )
    return train, train_rows, train, validation_rows


def _index_source(job: ImageJob, address: str, form: LabelForm, key: str, cache: ShardCache) -> _Source:
    """Index the shards of one address, and check their targets."""
    store = open_stream.open_store(job, address, key)
    index, shard_rows, rows_without_image = _index_shards(store, job.data.path_column, form, key, cache)
    separator_holder = manifest.ManifestRows()
    unusable_targets, take_targets = manifest.targets(separator_holder, index.rows, form, Path(address), key)
    reasons = dict.fromkeys(rows_without_image.tolist(), "no image") | unusable_targets
    bad = [BadSample(index.title(row), reasons[row]) for row in sorted(reasons)]
    left_out = bad_samples.check(bad, len(index.rows), job.data.bad_samples, key)
    usable = np.setdiff1d(np.arange(len(index.rows), dtype=np.int64), np.array(sorted(reasons), np.int64))
    targets = take_targets(usable.tolist())
    return _Source(
        key,
        StreamedImages(ShardReader(store, index, cache, shard_rows)),
        targets,
        usable,
        separator_holder.separator,
        left_out,
    )


def _index_shards(
    store: ShardStore, images: str, form: LabelForm, key: str, cache: ShardCache
) -> tuple[Index, Rows, Ids]:
    """Index the shards of a store, of which `images` is the column of the images.

    Returns:
        The index, how its rows are read from the shards, and the rows that have no image.
    """
    first = store.shards()[0]
    if first.kind == TAR:
        look = partial(tar_index.read, columns=form.columns, key=key)
        index = indices.read(store, cache, look, ["tar", *form.columns])
        offsets, sizes = (index.rows[name].fill_null(-1).to_numpy() for name in (tar_index.OFFSET, tar_index.SIZE))
        return index, TarRows(offsets, sizes), np.flatnonzero((offsets < 0) | (sizes == 0))
    classes = store.class_names()
    purpose = ["images", images, *form.columns, *map(str, classes.items())]
    look = partial(parquet_index.read, images=images, columns=form.columns, key=key, classes=classes)
    glance = partial(parquet_index.glance, images=images, columns=form.columns, key=key, classes=classes)
    index = indices.read(store, cache, look, purpose, glance)
    return index, parquet_index.ImageRows(images, key), np.flatnonzero(index.rows[parquet_index.LACKS].to_numpy())


def _choose_preprocessing(
    job: ImageJob, train: _Source, train_rows: Ids, head: Head, recorded: InputRecord | None
) -> tuple[ImagePreprocessing, list[str]]:
    """The preprocessing, as stored or by some of the training images, and notes."""
    if recorded and recorded.same_data:
        stored = from_preprocessing(dict(recorded.preprocessing))
        return replace(stored, augment=Augment(job.data.augment, job.train.seed, stored.mean)), []
    expected = image_input.read_expected(job)
    source = _sample_images(train, train_rows, job.train.seed)
    size, channels, shape, notes = geometry.decide(job, source, recorded, expected)
    decoding_notes: list[str] = []
    earlier = from_preprocessing(dict(recorded.preprocessing)) if recorded else None
    if earlier:
        source.images, shape = pixel_scale.read_as_trained(
            source.images, source.rows, earlier, source.key, starts_from=True
        )
    else:
        shape, decoding_notes = pixel_scale.measure_training_files(source.images, source.rows, shape, source.key)
    source.fit(size, channels, shape)
    split = ImageSplit(source.images, source.rows, None)
    preprocessing, preprocessing_notes = compute_preprocessing(job, split, head.classes, expected, shape)
    preprocessing = replace(
        preprocessing,
        takes_bytes=pixel_scale.takes_bytes(source.images, source.rows, (preprocessing.low, preprocessing.high)),
    )
    if earlier:
        augment = Augment(job.data.augment, job.train.seed, earlier.mean)
        return replace(earlier, augment=augment, classes=head.classes, image_size=size, resize=shape), notes
    sample_note = f"size, channels, mean and deviation are those of {len(source.rows):,} training images"
    return preprocessing, [*notes, *decoding_notes, sample_note, *preprocessing_notes]


def _sample_images(train: _Source, train_rows: Ids, seed: int) -> ImageSource:
    """Read and decode some of the training images, from a few shards.

    Raises:
        DataError: if one of them cannot be decoded.
    """
    shard_numbers = train.index.shard_of(train_rows)
    used_shards = np.unique(shard_numbers)
    random = stateless_random.make_generator(seed, "statistics")
    sampled_shards = used_shards[random.permutation(len(used_shards))[:MAX_SAMPLED_SHARDS]]
    rows = train_rows[np.isin(shard_numbers, sampled_shards)]
    rows = np.sort(rows[random.permutation(len(rows))[:MAX_MEASURED_IMAGES]])
    titles = [train.index.title(row) for row in rows.tolist()]
    images, broken = image_files.check_images("", titles, EncodedImages(train.images.reader.read(rows)))
    for bad in broken.values():
        raise undecodable_error(bad.title, bad.reason)
    return ImageSource(train.key, images, train.targets, np.arange(len(rows), dtype=np.int64), [])
