"""Random values that no program should have to expect, and random damage to files."""

import os
import pathlib
import random
import shutil

NUMBERS = (
    '-1', '0', '1', '3', '-0', '1e9', '999999999999999999999', '-1e18', '1e308', '1e999', '-1e999', '0.5', 'nan',
    'NaN', '-inf', 'inf', '0x10', '1_000', '1,5', '٣', '1e-320', '+', '1.2.3', ' 7 ', '9' * 400,
)  # fmt: skip
WORDS = (
    '', ' ', 'None', 'True', 'yes', 'ü', '火', '\udcff', 'a' * 300, 'a/b', '..', '../..', '*', '[', '{}', '$HOME', '~',
    '%s%n', '-', '--', "'", '"', '\\', 'a\nb', '\x1b[31m', 'greedy_policy', 'random', 'default', 'x=y', 'x=y=z', ',,',
    'tflearn.nope:f', 'os:getcwd', ':', 'json:nope', 'cpu', 'mirrored:x', 'mirrored:0', 'tpu:', 'float32', 'int8',
)  # fmt: skip
ADDRESSES = (
    'localhost', 'localhost:', ':80', 'localhost:0', 'localhost:-1', 'localhost:65536', 'localhost:99999999999999',
    'localhost:http', 'localhost:80:80', '[::1]:x', '[::1', '::1', '[::1]:1', '[:::::]:9', '[g]:1', 'http://localhost:1',
    'a..b:80', '.:80', f'{"a" * 64}.b:80', f'{"a." * 200}b:80', 'ü.example:80', '1.2.3.4.5:80', '999.1.1.1:80',
    '-:80', 'localhost:1', 'localhost:٨٠', 'localhost :80', '', ' ', '*:80', '0.0.0.0:1', 'localhost:+80', 'unix:x:1',
    'no-such-host.invalid:80', 'localhost:80/path', '\udcff:80', 'a\nb:80', '127.1:1', 'localhost:00001',
)  # fmt: skip
GIN_VALUES = (
    '-1', '0', '1', '2', '0.5', '-0.5', '1e999', '-1e999', '1e308', '1e-320', '10**9', '1000000000000000000000', 'True',
    'False', 'None', '""', '"a"', '"ü"', '"\\x00"', '"\\udcff"', '"a/b"', '[]', '()', '{}', '(1,)', '[1, "a"]',
    '[[[[1]]]]', '(-1, 64)', '(0,)', '("64", 64)', '{"a": 1}', '{1: {}}', '{[]: 1}', 'b"a"', '1j', '@dqn.make_agent',
    '@dqn.make_agent()', '@nope.nope', '@nope.nope()', '@schedules.linear()', '@a/b/schedules.linear', '%nope',
    '%make_agent', '%gin.REQUIRED', '@', '%', '@@', '@.', '%.', '((', '"open', '1 +', '=', '\\', '#', "r'", 'lambda: 0',
    '0x', '1__0', '"a" "b"', '"a" 1', 'print(1)', 'nan', 'ü', '\u2028', '1 2', '\n', '1\nx', '1; 2', '[' * 400,
    '[' * 400 + ']' * 400, '9' * 5000, '-' * 3000 + '1', '@tflearn.jobs.train.train', '@os.system', '@json.nope()',
)  # fmt: skip
GIN_STATEMENTS = (
    'import nope', 'import tflearn.jobs.nope', 'from tflearn import nope', 'from nope import nope', 'import', 'from',
    'from . import x', 'import json', 'import json as tflearn', 'from tflearn.agents import dqn as train',
    'from __gin__ import nope', 'include "nope.gin"', "include '.'", "include '/dev/null'", 'include', "include ''",
    "include 'dqn_cartpole.gin'", "include 'jobs'", "include '\\x00'", f"include '{'a' * 300}'", '', '   ', '#', 'x',
    'x =', '= 1', 'x.y = 1', '.x = 1', 'x. = 1', 'x/ = 1', '/x.y = 1', 'a/b/c.d.e = 1', 'x = %x', 'x = @x()', '\\',
    'train', 'train.train', 'train.train.nope = 1', 'train.train.run_dir = 1', 'train.stop = None', 'x.y = @x.y()', '"',
    'train.StopConditions.num_train_steps: 3', 'def f(): pass', 'x' * 5000, 'import ' + 'a.' * 300 + 'b', '\ufeffx = 1',
    'make_environment = %make_environment', 'make_agent = 3', 'make_agent = @make_agent', 'experience = None',
    'make_environment = @json.dumps', 'experience = @json.dumps()', '(\n', 'x = (\n1\n)', 'train.train = 1',
)  # fmt: skip


def misspelt(rng: random.Random, name: str) -> str:
    """Returns a name with one character left out, doubled, changed or moved."""
    i = rng.randrange(max(1, len(name)))
    return rng.choice(
        [
            name[:i] + name[i + 1 :],
            name[:i] + name[i : i + 1] + name[i:],
            name[:i] + rng.choice('._/ü0= @') + name[i + 1 :],
            name[:i] + name[i + 1 : i + 2] + name[i : i + 1] + name[i + 2 :],
            name.upper(),
        ]
    )


def make_paths(directory: pathlib.Path) -> None:
    """Makes files and folders that no program can use."""
    directory.mkdir()
    (directory / 'file').write_text('text')
    (directory / 'empty').touch()
    (directory / 'folder').mkdir()
    (directory / 'bytes').write_bytes(bytes(range(256)))
    (directory / 'loop').symlink_to('loop')
    (directory / 'dangling').symlink_to('nothing')
    (directory / 'array.npz').write_bytes(b'PK\x03\x04' + bytes(40))
    (directory / 'run.gin').write_bytes(b'train.StopConditions.num_train_steps = \xff\n')
    os.mkfifo(directory / 'pipe')


PATHS = (
    'odd/file', 'odd/empty', 'odd/folder', 'odd/bytes', 'odd/loop', 'odd/dangling', 'odd/array.npz', 'odd/run.gin',
    'odd/pipe', 'odd/file/below', 'odd/nothing', 'odd/nothing/at/all', 'odd/*', 'odd/[', '.', '', '/', '/dev/null',
    '/dev/full', '/proc/self/nope', '/proc/1/mem', 'a' * 300, 'a/' * 2500, '~nobody_of_this_name/x', '~', 'gs://a/b',
    'file:/x', 'odd/\udcff', 'odd/ü', 'odd/a\nb', 'data', 'run', 'run/train', '//', 'odd/pipe/x', 'odd/loop/x',
)  # fmt: skip


def text(rng: random.Random) -> str:
    """Returns a value for a flag, whatever it is for."""
    return str(rng.choice(rng.choice([NUMBERS, WORDS, ADDRESSES, PATHS])))


def damage(rng: random.Random, path: pathlib.Path) -> str:
    """Damages a file; returns what was done."""
    content = path.read_bytes()
    kind = rng.choice(
        ['cut', 'cut', 'flip', 'flip', 'flip', 'empty', 'noise', 'gone', 'folder', 'json', 'append', 'loop']
    )
    if kind == 'cut':
        path.write_bytes(content[: rng.randrange(len(content) + 1)])
    elif kind == 'flip':
        changed = bytearray(content or b'\0')
        for _ in range(rng.choice([1, 1, 3, 30])):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
    elif kind == 'noise':
        path.write_bytes(rng.randbytes(rng.choice([1, 10, len(content)])))
    elif kind == 'json':
        path.write_text(rng.choice(JSON))
    elif kind == 'append':
        path.write_bytes(content + rng.randbytes(rng.randrange(1, 50)))
    elif kind == 'empty':
        path.write_bytes(b'')
    else:
        path.unlink()
        if kind == 'folder':
            path.mkdir()
        elif kind == 'loop':
            path.symlink_to(path.name)
    return f'{kind} {path}'


JSON = (
    'null', '[]', '{}', '3', '"a"', '[1, 2]', '{"time": "x", "state": 3}', '{"columns": 3}', '{"format": 1}', 'NaN',
    '{"format": 1, "columns": [{}], "metadata": {}}', '{"format": 1, "columns": {}, "metadata": []}', '{"pid": "x"}',
    '{"format": 1, "columns": [{"name": 1, "dtype": "float32", "shape": [-1]}], "metadata": {}}', '[' * 5000, '{"a": 1',
    '{"weights": "x"}', '{"train_step": null, "reason": 7, "evaluation": 3, "seconds": "x"}', '\ufeff{}', '{"a": \x00}',
    '{"pid": 1, "machine": 3, "host": null}', '{"mean_return": "x", "train_step": []}', '{"time": 1e999}', '1' * 5000,
)  # fmt: skip


def copied(source: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """Returns a copy of a folder, in which files may be damaged."""
    shutil.copytree(source, target, symlinks=True)
    return target
