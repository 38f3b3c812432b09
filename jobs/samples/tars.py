"""Draws circles, squares and triangles, and writes them as tar files: the data of jobs/streamed.yaml.

python jobs/samples/tars.py FOLDER
"""

import io
import random
import sys
import tarfile
from pathlib import Path

from PIL import Image, ImageDraw

SIDE, PER_TAR = 24, 100


def draw_picture(kind, draw):
    image = Image.new("L", (SIDE, SIDE), draw.randrange(80))
    size, ink = draw.randrange(8, 16), draw.randrange(150, 256)
    x, y = draw.randrange(SIDE - size), draw.randrange(SIDE - size)
    pen = ImageDraw.Draw(image)
    if kind == "circle":
        pen.ellipse((x, y, x + size, y + size), ink)
    elif kind == "square":
        pen.rectangle((x, y, x + size, y + size), ink)
    else:
        pen.polygon((x, y + size, x + size // 2, y, x + size, y + size), ink)
    return image


def write_tar(path, seed):
    draw = random.Random(seed)
    with tarfile.open(path, "w") as tar:
        for number in range(PER_TAR):
            kind = draw.choice(("circle", "square", "triangle"))
            picture = io.BytesIO()
            draw_picture(kind, draw).save(picture, "PNG")
            for ending, content in (("png", picture.getvalue()), ("cls", kind.encode())):
                member = tarfile.TarInfo(f"{number:04}.{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def main(folder, train=12, validation=2):
    for split, count in (("train", train), ("validation", validation)):
        (folder / split).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            write_tar(folder / split / f"{number:04}.tar", f"{split} {number}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
