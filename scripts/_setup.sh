# shellcheck shell=bash
# Sourced by the other scripts: makes the virtual environment once and puts it on PATH.
#
#   setup EXTRAS     EXTRAS as in pip's brackets: "local,math,dev"
#
# Needs Python 3.11 or newer with venv, and a package index; everything else is installed here. The environment is
# `.venv` in the repository; what is installed in it is remembered by a stamp, so the next run starts at once.
#
#   STRANDS_ROLLOUT_VENV      another place for the environment
#   STRANDS_ROLLOUT_PYTHON    the interpreter to make it with
#   CI=true with an active virtual environment: that one is used as it is, and filled

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# The release of PyTorch to install where it is needed. Indexes with CPU builds offer it as `2.13.0+cpu`, which pip
# prefers to the plain one; an open range would take the newest build instead, on Linux with gigabytes of CUDA packages.
# On such a machine name an index of CPU builds in PIP_EXTRA_INDEX_URL, or install torch into the environment first.
TORCH="torch==2.13.0"

die() {
  echo "${0##*/}: $*" >&2
  exit 2
}

# Prints the interpreter to use: the oldest supported one first, because wheels exist for it soonest.
find_python() {
  local candidate
  for candidate in ${STRANDS_ROLLOUT_PYTHON:-python3.11 python3.12 python3.13 python3.14 python3 python}; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' > /dev/null 2>&1; then
      command -v "$candidate"
      return
    fi
  done
  die "no Python 3.11 or newer with venv and pip was found${STRANDS_ROLLOUT_PYTHON:+ as '$STRANDS_ROLLOUT_PYTHON'}; \
install one (on Debian and Ubuntu also its python3-venv package) or set STRANDS_ROLLOUT_PYTHON"
}

# Installs the project, editable, with the given extras (comma-separated), unless the stamp says that it is there.
setup() {
  local extras=$1 venv stamp key installed missing=() extra
  if [ -n "${STRANDS_ROLLOUT_VENV:-}" ]; then
    venv=$STRANDS_ROLLOUT_VENV
  elif [ -n "${CI:-}" ] && [ -n "${VIRTUAL_ENV:-}" ]; then
    venv=$VIRTUAL_ENV
  else
    venv=$ROOT/.venv
  fi
  if [ ! -x "$venv/bin/python" ]; then
    local python
    python=$(find_python)
    echo "creating the virtual environment $venv with $python" >&2
    "$python" -m venv "$venv"
  fi
  venv=$(cd "$venv" && pwd)
  export VIRTUAL_ENV=$venv PATH=$venv/bin:$PATH
  unset PYTHONHOME

  # Line 1: what the installation depends on. Line 2: the extras installed so far.
  stamp=$venv/.strands-rollout
  key=$(python -c '
import hashlib, pathlib, sys
print(hashlib.sha256(pathlib.Path(sys.argv[1]).read_bytes() + "\0".join(sys.argv[1:]).encode()).hexdigest())
' "$ROOT/pyproject.toml" "$TORCH")
  installed=,
  if [ -f "$stamp" ] && [ "$(sed -n 1p "$stamp")" = "$key" ]; then
    installed=$(sed -n 2p "$stamp")
  fi
  for extra in ${extras//,/ }; do
    case $installed in
      *",$extra,"*) ;;
      *) missing+=("$extra") ;;
    esac
  done
  if [ ${#missing[@]} -eq 0 ]; then
    return
  fi

  echo "installing strands-rollout[$extras] into $venv (once; some minutes)" >&2
  case ,$extras, in
    *,local,* | *,train,* | *,all,*) pip_install "$TORCH" ;;
  esac
  pip_install --editable "$ROOT[$extras]"
  for extra in "${missing[@]}"; do
    installed=$installed$extra,
  done
  printf '%s\n%s\n' "$key" "$installed" > "$stamp"
}

pip_install() {
  python -m pip install --quiet --quiet --disable-pip-version-check --no-input "$@"
}
