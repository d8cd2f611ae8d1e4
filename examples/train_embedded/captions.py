"""The sentences that a name is taught in: drawn at random for training, listed for the tokenizers."""

import string

import numpy as np

BEFORE = [
    *["", "a"] * 6,
    *["the", "one", "my", "draw a", "photo of", "picture of a", "a picture of a", "a photo of a"],
    *["an image of a", "a drawing of a", "an emoji of a", "an icon of a", "a painting of a"],
]
ADJECTIVES = ["small", "big", "cute", "little", "nice", "simple", "bright", "large", "cute little"]
AFTER = [
    " emoji",
    " icon",
    " on white background",
    " on a white background",
    ".",
    " picture",
    " on white",
    "!",
]
COLOUR_WORDS = [
    "red",
    "orange",
    "yellow",
    "green",
    "blue",
    "purple",
    "pink",
    "brown",
    "black",
    "white",
    "grey",
    "gray",
]
OTHER_WORDS = ["and", "with", "in", "of", "on", "an", "two", "three", "colorful", "dark", "light"]


def phrase(before: str, name: str, after: str = "") -> str:
    """Joins the parts, with "an" for "a" before a vowel."""
    if before.endswith("a") and name[:1] in "aeiou":
        before += "n"
    return f"{before} {name}".strip() + after


def draw_caption(names: list[str], rng: np.random.RandomState) -> str:
    """A sentence around one of the names; the first is as frequent as all others together."""
    name = names[0] if len(names) == 1 or rng.rand() < 0.5 else names[rng.randint(1, len(names))]
    if rng.rand() < 0.12:
        name = f"{ADJECTIVES[rng.randint(len(ADJECTIVES))]} {name}"
    before = BEFORE[rng.randint(len(BEFORE))]
    return phrase(before, name, AFTER[rng.randint(len(AFTER))] if rng.rand() < 0.15 else "")


def draw_nonsense(rng: np.random.RandomState) -> str:
    """One or two words of random letters, as a typo or an unknown thing looks to the text encoders."""
    letters = list(string.ascii_lowercase)
    return " ".join("".join(rng.choice(letters, rng.randint(3, 10))) for _ in range(rng.randint(1, 3)))


def corpus(captions: list[list[str]]) -> list[str]:
    """Text that the tokenizers are trained on: every name in every sentence, and single characters."""
    names = [name for all_names in captions for name in all_names]
    lines = [phrase(before, name) for before in dict.fromkeys(BEFORE) for name in names]
    lines += [phrase("", name, after) for after in AFTER for name in names[::10]]
    lines += [word for word in (*ADJECTIVES, *COLOUR_WORDS, *OTHER_WORDS) for _ in range(20)]
    lines += list(string.ascii_lowercase + string.digits + ".,!?-'") * 2
    return lines
