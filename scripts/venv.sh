# shellcheck shell=bash
# Sourced by scripts/quickstart and scripts/test. Offers make_venv, after which $venv holds what the lane's lock lists and
# the checkout itself. pip checks the SHA-256 of each file that it installs.
#
# There are two lanes: classic (Python 3.11, TensorFlow 2.15, Reverb), which is taken where there is a Python 3.11, and
# current (Python 3.13 or 3.12, TensorFlow 2.21). A third one, tpu (Python 3.12, TensorFlow 2.20 for TPUs), is taken only
# where TFLEARN_LANE names it. TFLEARN_LANE and TFLEARN_PYTHON choose.

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${TFLEARN_VENV:-$checkout/.venv${TFLEARN_LANE:+-$TFLEARN_LANE}}
[[ "$venv" == /* ]] || venv=$PWD/$venv
stamp=$venv/tflearn-stamp # What is installed: written first as `incomplete`, last as the real thing.

say() { echo "scripts/$(basename "$0"): $*" >&2; }
fail() { say "error: $*"; exit 2; }

# Prints the versions of Python that may be taken, the first choice first.
versions() {
  case "${TFLEARN_LANE:-}" in
    '') echo 3.11 3.13 3.12 ;;
    classic) echo 3.11 ;;
    current) echo 3.13 3.12 ;;
    tpu) echo 3.12 ;;
    *) fail "got TFLEARN_LANE=$TFLEARN_LANE; need classic, current or tpu" ;;
  esac
}

version_of() { "$1" -IS -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

# Prints the lane of a Python.
lane_of() {
  case "$(version_of "$1") ${TFLEARN_LANE:-}" in
    '3.11 '*) echo classic ;;
    '3.12 tpu') echo tpu ;;
    *) echo current ;;
  esac
}

# Prints a Python that can make environments. One on the PATH may be a shim without a Python behind it, so each is tried.
find_python() {
  local wanted version candidate without_venv=
  wanted=$(versions) || exit
  for version in $wanted; do
    while read -r candidate; do
      [[ "$(version_of "$candidate")" == "$version" ]] || continue
      "$candidate" -c 'import ensurepip, venv' 2>/dev/null && echo "$candidate" && return
      without_venv=$candidate
    done < <(
      [[ -n "${TFLEARN_PYTHON:-}" ]] && echo "$TFLEARN_PYTHON" && exit
      type -aP "python$version" python3 python || true
      ls -dr "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python 2>/dev/null
    )
  done
  if [[ -n "$without_venv" ]]; then
    fail "got $without_venv, which cannot make virtual environments; need its venv module; install it (Debian:" \
      'apt-get install python3-venv)'
  fi
  fail "got no Python ${wanted// / or }${TFLEARN_PYTHON:+ in TFLEARN_PYTHON=$TFLEARN_PYTHON}; need one of them; install" \
    'it or set TFLEARN_PYTHON=FILE'
}

lock_of() { echo "$checkout/requirements/$(lane_of "$1")/hashed/lock.txt"; }

# What the environment must hold: a digest of all that it is made from, and the Python that runs in it now.
wanted_stamp() {
  { cat "$(lock_of "$venv/bin/python")" "$checkout/setup.py"; echo "$checkout $venv ${TFLEARN_PYTHON:-}"; } | sha256sum
  version_of "$venv/bin/python" || echo 'no Python'
}

venv_is_ready() { [[ -f "$stamp" && "$(<"$stamp")" == "$(wanted_stamp)" ]]; }

run_pip() { "$venv/bin/python" -m pip --disable-pip-version-check --no-input install --no-deps "$@" 2>&1; }

# pip fetches and unpacks on one core, so two of them take half of a file of requirements each. They are a pipeline, not
# one of them in the background, so that Ctrl-C ends both.
run_pip_twice() {
  awk -v prefix="$venv/half" '/^[^ #]/ { ++n } { print > (prefix n % 2 ".txt") }' "$1"
  { run_pip "${@:2}" -r "$venv/half0.txt" >&3 | run_pip "${@:2}" -r "$venv/half1.txt"; } 3>&1
}

# Runs one of the two above and reports its progress now and then; the log has it all.
pip_install() {
  local log=$venv/install.log lock total fetched=0 unpacks=0 line
  lock=$(lock_of "$venv/bin/python")
  total=$(grep -c '^[^ ]*==' "$lock")
  "$@" |
    while read -r line; do
      echo "$line" >>"$log"
      case "$line" in
        Collecting* | Processing*) ((++fetched % 10)) || say "fetched $fetched of about $total packages" ;;
        'Installing collected'*) ((fetched < 10 || unpacks++)) || say 'unpacking them; half a minute' ;;
      esac
    done || fail "got an error from pip; need the packages of $lock; $log says"$'\n'"$(grep -A 5 '^ERROR' "$log" || tail -n 5 "$log")"
}

# Compiles on all cores what every job loads; pip would compile everything, on one. Python compiles the rest when it is
# first imported.
compile_packages() {
  local packages=("$venv"/lib/python*/site-packages/{tensorflow,tensorflow_probability/python,tf_agents,tf_keras,keras,numpy})
  "$venv/bin/python" -W ignore -m compileall -q -j 0 "${packages[@]}" >>"$venv/install.log" 2>&1 || true
}

install_venv() {
  local python lock why=
  python=$(find_python)
  lock=$(lock_of "$python")
  [[ $lock == */classic/* || -n "${TFLEARN_LANE:-}${TFLEARN_PYTHON:-}" ]] || why=', since there is no Python 3.11'
  say "installing the $(lane_of "$python") lane into $venv with $("$python" --version)$why, once; a minute or two"
  echo incomplete >"$stamp"
  find "$venv" -mindepth 1 -maxdepth 1 ! -name "$(basename "$stamp")" -exec rm -rf {} +
  "$python" -m venv "$venv" || fail "got no environment from $python -m venv; see above"
  # What builds comes first, in the lock's version: otherwise pip would fetch the newest to build with.
  awk '/^[^ ]/ { builds = /^(setuptools|wheel)==/ } builds' "$lock" >"$venv/build.txt"
  pip_install run_pip --require-hashes -r "$venv/build.txt"
  pip_install run_pip_twice "$lock" --require-hashes --no-build-isolation --no-compile
  compile_packages
  # Metadata are written into the checkout, where another environment may be at it too.
  (flock -w 600 9 && pip_install run_pip --no-build-isolation --editable "$checkout") 9<"$checkout" ||
    fail "got no installation of $checkout; see above"
  wanted_stamp >"$stamp.new"
  mv "$stamp.new" "$stamp"
  say 'installed'
}

# Makes $venv, or replaces it when it does not fit. An interrupted call leaves no stamp that fits; of two calls at
# once the second waits for the first.
make_venv() {
  if venv_is_ready; then return; fi
  mkdir -p "$venv" 2>/dev/null || true
  [[ -w "$venv" ]] || fail "got $venv, which cannot be written to; need a place for the environment; set TFLEARN_VENV=DIR"
  [[ -f "$stamp" || -z "$(ls -A "$venv")" ]] ||
    fail "got $venv, which holds something else; need a place for the environment; remove it or set TFLEARN_VENV=DIR"
  exec 8<"$venv" # The lock is the directory itself, which stays when the environment is replaced.
  if ! flock -n 8; then
    say "waiting for another command that installs into $venv"
    flock -w 1800 8 || fail 'waited half an hour for another command that installs'
  fi
  venv_is_ready || install_venv
  exec 8<&-
}
