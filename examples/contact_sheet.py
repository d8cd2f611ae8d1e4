"""Draw several prompts in one batch and lay them out with their captions: `python examples/contact_sheet.py`."""

import sys

from PIL import Image, ImageDraw

from edgedit import Pipeline

PROMPTS = ["a red apple", "a castle", "a cute owl", "a purple butterfly",
           "a photo of a fox", "a green car", "rocket", "a blue flower"]  # fmt: skip
COLUMNS, CELL, CAPTION, MARGIN = 4, 128, 18, 8


def main(path: str) -> None:
    with Pipeline.from_pretrained("embedded") as pipe:
        pictures = pipe(PROMPTS, num_inference_steps=20, seed=0).images
    rows = -(-len(PROMPTS) // COLUMNS)
    width, height = CELL + MARGIN, CELL + CAPTION + MARGIN
    sheet = Image.new("RGB", (COLUMNS * width + MARGIN, rows * height + MARGIN), "white")
    pen = ImageDraw.Draw(sheet)
    for index, (prompt, picture) in enumerate(zip(PROMPTS, pictures, strict=True)):
        left, top = MARGIN + index % COLUMNS * width, MARGIN + index // COLUMNS * height
        sheet.paste(picture.resize((CELL, CELL), Image.Resampling.NEAREST), (left, top))
        pen.text((left + CELL / 2, top + CELL + 4), prompt, "black", anchor="ma")
    sheet.save(path)
    print(path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "contact_sheet.png")
