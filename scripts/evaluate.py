"""Evaluates each policy that the train job exports, until the run has ended; plots the learning curve.

When a target return is set and reached, it asks the train job to stop. --coordinator_address is used only if
published weights are evaluated (EvaluateOptions.follow).

With --policy=best (or another name, a path, MODULE:FUNCTION, random) it evaluates that policy once, over --episodes and
--num_processes, prints the result and writes it to policy_evaluations/; tflearn-evaluate --policy=best --help lists
the flags.

With --data=DIR it evaluates one exported policy on recorded episodes instead, without an environment and a gin file,
and prints a table of estimates; tflearn-evaluate --data=DIR --help lists the flags.
"""

import re
import sys

from . import evaluation_flags, job_setup


def main() -> None:
    """Runs the program; see `job_setup.main`."""
    given = {match[1] for argument in sys.argv[1:] if (match := re.match('--?(data|policy)(=|$)', argument))}
    if 'data' in given:
        evaluation_flags.main_of_data(__doc__)
    elif 'policy' in given:
        evaluation_flags.main_of_policy(__doc__)
    else:
        job_setup.main('evaluate', __doc__)


if __name__ == '__main__':
    main()
