"""Pictures and captions: 64x64 Noto emoji on white, and objects of it in other colours.

The pictures come from an npm package, which this program does not fetch:

    npm pack emoji-datasource-google@16.0.0 && tar xzf emoji-datasource-google-16.0.0.tgz
    python data.py --package package

names.tsv says which emoji are used and what they are called (the first name is the main one),
recoloured.tsv which objects are drawn in every colour. Writes work/pictures.npz and work/captions.json.
"""

import argparse
import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent
SIZE_PX = 64


@dataclass(frozen=True)
class Tint:
    """A hue in degrees, and how saturation and value change so that the colour reads as its name."""

    hue: float
    saturation: float
    lift: float = 0.0  # towards full value
    value: float = 1.0


COLORS = {
    "red": Tint(0, 1.15, value=0.92),
    "orange": Tint(28, 1.1, lift=0.55),
    "yellow": Tint(52, 1.1, lift=0.55),
    "green": Tint(120, 1.15, value=0.8),
    "blue": Tint(215, 1.15, value=0.92),
    "purple": Tint(275, 1.15, value=0.92),
    "pink": Tint(335, 0.55, lift=0.5),
}


@dataclass
class Pictures:
    """images: uint8 [N, 64, 64, 3]; captions: names of each; kinds: "base", "recoloured" or "held_out"."""

    images: np.ndarray
    captions: list[list[str]]
    kinds: np.ndarray

    def indices(self, *kinds: str) -> np.ndarray:
        return np.flatnonzero(np.isin(self.kinds, kinds))

    def index_of(self, caption: str) -> int:
        return next(index for index, names in enumerate(self.captions) if caption in names)

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(directory / "pictures.npz", images=self.images)
        text = {"captions": self.captions, "kinds": self.kinds.tolist()}
        (directory / "captions.json").write_text(json.dumps(text, indent=0), encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> "Pictures":
        with np.load(directory / "pictures.npz") as arrays:
            images = arrays["images"]
        text = json.loads((directory / "captions.json").read_text(encoding="utf-8"))
        return cls(images, text["captions"], np.array(text["kinds"]))


def read_table(name: str) -> list[tuple[str, str]]:
    with open(HERE / name, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t"))
    return [(short_name, text) for short_name, text in rows[1:]]


class EmojiPackage:
    """The unpacked npm package: short name -> picture on white."""

    def __init__(self, directory: Path) -> None:
        entries = json.loads((directory / "emoji.json").read_text(encoding="utf-8"))
        self._files = {
            entry["short_name"]: directory / "img" / "google" / "64" / entry["image"] for entry in entries
        }

    def picture(self, short_name: str) -> Image.Image:
        drawn = Image.open(self._files[short_name]).convert("RGBA").resize((SIZE_PX, SIZE_PX), Image.LANCZOS)
        page = Image.new("RGBA", drawn.size, "white")
        page.alpha_composite(drawn)
        return page.convert("RGB")


def recolour(picture: Image.Image, tint: Tint) -> Image.Image:
    """Turn the dominant hue of the picture to that of the tint; other hues and greys stay."""
    hsv = np.asarray(picture.convert("HSV"), dtype=np.float32) / 255
    hue, saturation, value = hsv[..., 0] * 360, hsv[..., 1], hsv[..., 2]
    weights = saturation * value * (saturation > 0.25)
    histogram, _ = np.histogram(hue, bins=36, range=(0, 360), weights=weights)
    smooth = histogram + np.roll(histogram, 1) + np.roll(histogram, -1)
    distance = (hue - (smooth.argmax() * 10 + 5) + 180) % 360 - 180

    turned = np.stack(
        [
            (tint.hue + 0.4 * distance) % 360 / 360,
            np.minimum(1, saturation * tint.saturation),
            (value + (1 - value) * tint.lift) * tint.value,
        ],
        axis=-1,
    )
    dominant = (np.abs(distance) < 50) & (saturation > 0.2)
    mixed = np.where(dominant[..., None], turned, hsv)
    return Image.fromarray(np.round(mixed * 255).astype(np.uint8), mode="HSV").convert("RGB")


def build(package: EmojiPackage) -> Pictures:
    """Every named emoji, then every recoloured object. A caption belongs to one picture: the first.

    Of every second object one colour is held out, so that what was never seen can be judged.
    """
    images, captions, kinds = [], [], []
    for short_name, names in read_table("names.tsv"):
        images.append(np.asarray(package.picture(short_name)))
        captions.append(names.split("|"))
        kinds.append("base")
    taken = {name for names in captions for name in names}
    colors = list(COLORS)
    for index, (short_name, noun) in enumerate(read_table("recoloured.tsv")):
        held_out = colors[index % len(colors)] if index % 2 == 0 else None
        for color, tint in COLORS.items():
            if f"{color} {noun}" in taken:
                continue
            images.append(np.asarray(recolour(package.picture(short_name), tint)))
            captions.append([f"{color} {noun}"])
            kinds.append("held_out" if color == held_out else "recoloured")
    return Pictures(np.stack(images), captions, np.array(kinds))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--package", type=Path, required=True, help="the unpacked npm package")
    parser.add_argument("--work", type=Path, default=HERE / "work")
    arguments = parser.parse_args()
    pictures = build(EmojiPackage(arguments.package))
    pictures.save(arguments.work)
    for kind in ("base", "recoloured", "held_out"):
        print(f"{kind}: {len(pictures.indices(kind))} pictures")


if __name__ == "__main__":
    main()
