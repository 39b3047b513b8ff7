"""Maps lines of the code that autograph generates to lines of the user's code."""

from __future__ import annotations

from tensorflow.python.autograph.impl import api as autograph_api

from tfdbg_arrow.writer.stacks import Location


def original_location(file_path: str, lineno: int) -> Location | None:
    """Returns the user's line for a line of a file that autograph generated; None for other files and lines.

    TensorFlow keeps this map per thread, and some threads do not have it. The cache of converted functions has it for
    all threads.
    """
    if "__autograph_generated_file" not in file_path:
        return None
    source_map = _autograph_maps.get(file_path)
    if source_map is None:
        source_map = _find_autograph_map(file_path)
        _autograph_maps[file_path] = source_map
    return source_map.get(lineno)


_autograph_maps: dict[str, dict[int, Location]] = {}


def _find_autograph_map(file_path: str) -> dict[int, Location]:
    for by_options in list(autograph_api._TRANSPILER._cache._cache.values()):
        for factory in list(by_options.values()):
            source_map = factory.source_map
            if factory.module is None or getattr(factory.module, "__file__", None) != file_path or not source_map:
                continue
            return {
                line.lineno: (origin.loc.filename, origin.loc.lineno, origin.function_name or "<lambda>")
                for line, origin in source_map.items()
                if line.filename == file_path
            }
    return {}
