"""The command line of a benchmark: its description, and --json, the file for its numbers."""

import argparse
import json
import pathlib
from typing import Any

from benchmarks import tables


def parser(description: str | None, json_help: str = 'writes the results there') -> argparse.ArgumentParser:
    """Returns a parser that shows the description as it is, and has --json."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument('--json', type=pathlib.Path, help=json_help)
    return made


def kept(path: pathlib.Path | None) -> dict[str, Any]:
    """Returns what an earlier call wrote to the file of --json; nothing if there is none."""
    return json.loads(path.read_text()) if path and path.exists() else {}


def write(path: pathlib.Path | None, results: Any) -> None:
    """Writes results to the file of --json, if one is given."""
    if path:
        path.write_text(json.dumps(results, indent=2) + '\n')


def finish(path: pathlib.Path | None, rows: list[dict[str, Any]]) -> None:
    """Prints a table, and writes its rows to the file of --json, if one is given."""
    print(tables.table(rows))
    write(path, rows)
