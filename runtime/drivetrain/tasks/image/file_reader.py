"""Steps for reading files with labels that all kinds of files share: list, check, and hold out for validation."""

from __future__ import annotations

from typing import ClassVar, cast

from drivetrain.data import copies
from drivetrain.data.copies import Contents
from drivetrain.data.dataset import Head, InputRecord
from drivetrain.data.partition import Division, Partition
from drivetrain.data.reading import Reader
from drivetrain.data.source import Source
from drivetrain.data.stateless_random import Ids
from drivetrain.data.target_columns import Strata, TargetColumn
from drivetrain.tasks.image import held_out, image_table, image_targets
from drivetrain.tasks.image.image_table import AnyFiles
from drivetrain.tasks.image.image_targets import LabelForm
from drivetrain.tasks.image.job import FileJob


class FileReader(Reader[AnyFiles]):
    """Reads the files of a job from class folders or a manifest."""

    table_class: ClassVar[type[image_table.FileTable]]
    job: FileJob

    def __init__(self, job: FileJob, recorded: InputRecord | None) -> None:
        super().__init__(job, recorded)
        self.form = LabelForm.of_job(job.data, ask=not (recorded and recorded.same_data))

    def read(self, source: Source) -> AnyFiles:
        """Read and check the training files, decoding each once."""
        table_class, column = cast("type[AnyFiles]", self.table_class), self.job.data.path_column
        table = image_table.read(table_class, source, column, self.form, decodes=not self.tables_only)
        target, rows = table.targets[""], table.usable
        image_targets.check(target, rows, source.key, table.kind)
        if target.indices is not None:
            contents, classes = table.images.contents[rows], target.list_names(rows)
            title = lambda index: table.images.title(int(rows[index]))  # noqa: E731
            table.notes += copies.note_contradictions(contents, classes, title, table.noun)
        return table

    def digest(self, table: AnyFiles) -> tuple[Contents, bool]:
        """Digest the decoded content of each file."""
        return table.images.contents[table.usable], False

    def find_strata(self, table: AnyFiles, target: TargetColumn) -> Strata:
        """Find the class of each file, or its rarest label."""
        return image_targets.find_strata(target, table.usable)

    def hold_out(self, table: AnyFiles, division: Division | None) -> Partition:
        """Hold out files: by the user's groups, by sources, or one by one."""
        assert division is not None
        target, partition = table.targets[""], None
        if table.groups is None and not self.tables_only:
            strata = self.find_strata(table, target)
            partition = held_out.divide(self.job, table, strata, division, self.recorded)
        partition = partition or super().hold_out(table, division)
        partition.notes[:0] = image_targets.note_values(target, table.usable)
        return partition

    def build_head(self, name: str, table: AnyFiles, training: Ids) -> Head:
        """Build the head; there may be as many classes as there are files."""
        return image_targets.build_head(table.targets[name], table.usable, training, table.source.key)
