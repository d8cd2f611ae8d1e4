"""Output files: their names, checks before any work, and writing that never leaves half a file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

    from edgedit.parallel.context import ParallelContext

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}


def picture_paths(output: Path, count: int) -> list[Path]:
    """``output`` for one picture, ``name-0.png``, ... for several. ValueError for other formats."""
    if output.suffix.lower() not in FORMATS:
        raise ValueError(f"output {str(output)!r}: the name must end in {', '.join(FORMATS)}")
    if count == 1:
        return [output]
    return [output.with_name(f"{output.stem}-{index}{output.suffix}") for index in range(count)]


def check_writable(paths: Sequence[Path]) -> None:
    """ValueError unless every path can be created: its directory is there, and writable."""
    for path in paths:
        folder = path.parent
        if not folder.is_dir():
            raise ValueError(f"cannot write {path}: there is no directory {folder}")
        if path.is_dir():
            raise ValueError(f"cannot write {path}: it is a directory")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ValueError(f"cannot write {path}: the directory {folder} is not writable")


def problem_with(context: ParallelContext, paths: Sequence[Path]) -> str | None:
    """Why a path cannot be written, on every rank. World rank 0 writes, so its word counts for all."""
    problem = None
    if context.rank == 0:
        try:
            check_writable(paths)
        except ValueError as error:
            problem = str(error)
    answer: str | None = context.broadcast_object(problem)
    return answer


def write_files(writers: Mapping[Path, Callable[[Path], None]]) -> None:
    """Each writer fills a file beside its path; all are renamed once all are complete."""
    beside = {path: path.with_name(f".{path.name}.{os.getpid()}.partial") for path in writers}
    try:
        for path, write in writers.items():
            write(beside[path])
        for path, partial in beside.items():
            os.replace(partial, path)
    finally:
        for partial in beside.values():
            partial.unlink(missing_ok=True)


def picture_writer(image: Image, path: Path, parameters: Mapping[str, Any]) -> Callable[[Path], None]:
    """Saves ``image`` in the format of ``path``; a PNG carries the generation parameters as text."""
    from PIL.PngImagePlugin import PngInfo

    kind = FORMATS[path.suffix.lower()]
    options: dict[str, Any] = {}
    if kind == "PNG":
        options["pnginfo"] = PngInfo()
        options["pnginfo"].add_itxt("parameters", readable(parameters))
        options["pnginfo"].add_itxt("edgedit", json.dumps(parameters, ensure_ascii=False))
    return lambda partial: image.save(partial, format=kind, **options)


def array_writer(array: Any) -> Callable[[Path], None]:
    """Saves a numpy array as .npy."""

    def write(partial: Path) -> None:
        import numpy as np

        with partial.open("wb") as file:  # a path would get ".npy" appended
            np.save(file, array, allow_pickle=False)

    return write


def readable(parameters: Mapping[str, Any]) -> str:
    """The layout that viewers of generated pictures know: prompt, negative prompt, then key: value."""
    rest = {key: value for key, value in parameters.items() if key not in ("prompt", "negative_prompt")}
    lines = [str(parameters["prompt"])]
    if parameters.get("negative_prompt") is not None:
        lines.append(f"Negative prompt: {parameters['negative_prompt']}")
    lines.append(", ".join(f"{key.replace('_', ' ').capitalize()}: {value}" for key, value in rest.items()))
    return "\n".join(lines)
