"""A job without TensorFlow. Usage: fake_job.py ROOT NAME STEP..., each step one thing that a job may do.

  status=JSON    writes status metrics, with a state          say=TEXT     prints a line
  wait=SECS      waits                                        stubborn     ignores SIGTERM from now on
  await=PATH     waits for a file below ROOT                  child        starts a process that outlives it
  write=PATH     writes an empty file below ROOT              done         writes DONE
  once=STEP      does STEP only in its first process          exit=CODE    exits
  env=NAME       prints an environment variable               last_words=TEXT  prints a line at SIGTERM
  fill           fills the disk with a file below ROOT
  cores          prints the cores that it may use

It exits with 0 after the last step. SIGTERM: exits with 143, its name appended to ROOT/stopped.
"""

import contextlib
import faulthandler
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import types

from tflearn.files.run_dir import RunDir, write_json
from tflearn.files.status import Status

DEADLINE_SECS = 30.0
LAST_WORDS: list[str] = []
RUN_DIR, NAME = RunDir(sys.argv[1]), sys.argv[2]
STATUS = Status(RUN_DIR.status(NAME))


def on_sigterm(number: int, frame: types.FrameType | None) -> None:
    # As in a real job, signals within a second are one: of a killed launch both its reaper and the kernel send one.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(RUN_DIR.root / 'stopped', 'a', encoding='utf-8') as file:
        file.write(f'{NAME}\n')
    sys.stdout.write(''.join(f'{line}\n' for line in LAST_WORDS))
    sys.exit(143)


def await_file(path: pathlib.Path) -> None:
    pause = threading.Event()
    for _ in range(int(DEADLINE_SECS / 0.02)):
        if path.exists():
            return
        pause.wait(0.02)
    sys.exit(f'timed out waiting for {path}')


def do(step: str) -> None:
    verb, _, value = step.partition('=')
    if verb == 'status':
        STATUS.update(**json.loads(value))
    elif verb == 'say':
        sys.stdout.write(f'{value}\n')
    elif verb == 'last_words':
        LAST_WORDS.append(value)
    elif verb == 'env':
        sys.stdout.write(f'{value}={os.environ.get(value)}\n')
    elif verb == 'cores':
        sys.stdout.write(f'cores {sorted(os.sched_getaffinity(0))}\n')
    elif verb == 'wait':
        threading.Event().wait(float(value))
    elif verb == 'await':
        await_file(RUN_DIR.root / value)
    elif verb == 'fill':
        with contextlib.suppress(OSError), (RUN_DIR.root / 'filler').open('wb', buffering=0) as file:
            while True:
                file.write(bytes(4096))
    elif verb == 'write':
        (RUN_DIR.root / value).touch()
    elif verb == 'stubborn':
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif verb == 'child':
        child = subprocess.Popen([sys.executable, '-c', f'import threading; threading.Event().wait({DEADLINE_SECS})'])
        (RUN_DIR.root / f'child_of_{NAME}').write_text(str(child.pid))
    elif verb == 'once':
        marker = RUN_DIR.root / f'once_{NAME}'
        if not marker.exists():
            marker.touch()
            do(value)
    elif verb == 'done':
        evaluation = {'train_step': 900, 'mean_return': 487.25, 'num_episodes': 20}
        done = {'reason': 'num_train_steps 1000', 'train_step': 1000, 'env_steps': 4321, 'seconds': 75.2}
        write_json(RUN_DIR.done, done | {'policy': 'policies/greedy_policy/900', 'evaluation': evaluation})
    elif verb == 'exit':
        sys.exit(int(value))
    else:
        raise ValueError(f'got the step {step!r}; need one of those in the docstring')


signal.signal(signal.SIGTERM, on_sigterm)
faulthandler.register(signal.SIGUSR1)
for step in sys.argv[3:]:
    do(step)
