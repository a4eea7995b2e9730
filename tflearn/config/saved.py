"""The configuration in the run directory."""

import difflib
import itertools

from absl import logging

from tflearn.run_dir import RunDir, write_atomically


def save(run_dir: RunDir, text: str) -> None:
    """Writes config.gin. One that differs is kept as config-1.gin, config-2.gin, ..., and the difference is logged.

    A finished run keeps its configuration.
    """
    path = run_dir.config
    old = path.read_text(encoding='utf-8') if path.exists() else None
    if old == text or run_dir.done.exists():
        return
    if old is not None:
        kept = next(
            older for n in itertools.count(1) if not (older := path.with_name(f'{path.stem}-{n}{path.suffix}')).exists()
        )
        write_atomically(kept, old)
        lines = difflib.unified_diff(old.splitlines(), text.splitlines(), kept.name, path.name, lineterm='', n=0)
        logging.info('continues with another configuration than before:\n%s', '\n'.join(lines))
    write_atomically(path, text)
