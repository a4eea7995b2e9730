"""The console programs that setup.py installs."""

import pathlib
import re

_SETUP = (pathlib.Path(__file__).resolve().parents[2] / 'setup.py').read_text(encoding='utf-8')


def _names(variable: str) -> tuple[str, ...]:
    return tuple(re.findall(r"'(\w+)'", re.search(rf'^{variable} = \((.*?)\)', _SETUP, re.M | re.S)[1]))


JOBS = _names('JOBS')
PROGRAMS = JOBS + _names('PROGRAMS')
