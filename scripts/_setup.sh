# shellcheck shell=bash
# Sourced by the other scripts: makes the virtual environment once and puts it on PATH.
#
#   setup EXTRAS     EXTRAS as in pip's brackets: "local,math,dev"
#
# Needs Python 3.11 or newer with venv, and a package index; everything else is installed here, by uv where it is
# installed or can be, else by pip, in the versions of `uv.lock`. The environment is `.venv` in the repository; a stamp in
# it remembers what is installed, so the next run starts at once.
#
#   STRANDS_ROLLOUT_NEWEST=1  the newest versions that pyproject.toml allows, instead of those of uv.lock
#   STRANDS_ROLLOUT_VENV      another place for the environment
#   STRANDS_ROLLOUT_PYTHON    the interpreter to make it with
#   CI=true with an active virtual environment: that one is used as it is, and filled

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# The release of PyTorch that uv.lock names too. Indexes with CPU builds offer it as `2.13.0+cpu`, which pip and uv prefer
# to the plain one; without such an index, gigabytes of CUDA packages come along on Linux. On a machine without a GPU name
# an index of CPU builds in PIP_EXTRA_INDEX_URL, or install torch into the environment first.
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

# phase TEXT COMMAND...: runs a command and prints one line on standard error: what it did, and how long that took.
phase() {
  local text=$1 started=$SECONDS
  shift
  printf '%s ... ' "$text" >&2
  "$@" || {
    local status=$?
    echo "failed" >&2
    return "$status"
  }
  echo "$((SECONDS - started)) s" >&2
}

# constraints: the versions of uv.lock as constraints that pip and uv read. Only versions: where the packages come from,
# which may be a mirror or a folder of wheels, is for the index of this machine to say.
constraints() {
  python - "$ROOT/uv.lock" << 'END'
import collections, sys, tomllib

with open(sys.argv[1], "rb") as file:
    found = collections.defaultdict(list)
    for package in tomllib.load(file)["package"]:
        if "registry" in package["source"]:
            found[package["name"]].append(package)
for name, versions in found.items():
    for package in versions:
        for marker in package.get("resolution-markers", [""]) if len(versions) > 1 else [""]:
            print(f"{name}=={package['version']}" + (f" ; {marker}" if marker else ""))
END
}

# Installs the project, editable, with the given extras (comma-separated), unless the stamp says that it is there.
setup() {
  local extras=$1 venv stamp key installed missing=() extra requirements=() versions
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
    make_venv "$python" "$venv"
  fi
  venv=$(cd "$venv" && pwd)
  export VIRTUAL_ENV=$venv PATH=$venv/bin:$PATH
  unset PYTHONHOME

  # Line 1: what the installation depends on. Line 2: the extras installed so far.
  stamp=$venv/.strands-rollout
  key=$(python -c '
import hashlib, pathlib, sys
files = b"".join(pathlib.Path(file).read_bytes() for file in sys.argv[1:3])
print(hashlib.sha256(files + "\0".join(sys.argv[1:]).encode()).hexdigest())
' "$ROOT/pyproject.toml" "$ROOT/uv.lock" "${STRANDS_ROLLOUT_NEWEST:-}")
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

  versions="the newest versions"
  if [ -z "${STRANDS_ROLLOUT_NEWEST:-}" ]; then
    constraints > "$venv/.strands-rollout-constraints"
    requirements=(--constraint "$venv/.strands-rollout-constraints") versions="the versions of uv.lock"
  fi
  find_uv python
  phase "installing strands-rollout[$extras] into $venv with $([ -n "$UV" ] && echo uv || echo pip), $versions" \
    install_packages python ${requirements[@]+"${requirements[@]}"} --editable "$ROOT[$extras]"
  for extra in "${missing[@]}"; do
    installed=$installed$extra,
  done
  printf '%s\n%s\n' "$key" "$installed" > "$stamp"
}

# make_venv PYTHON FOLDER: an empty virtual environment.
make_venv() {
  phase "creating the virtual environment $2 with $1" "$1" -m venv --clear "$2"
}

# find_uv PYTHON: sets UV to the command of uv, installed into the environment of PYTHON if need be, or to nothing.
find_uv() {
  UV=$(command -v uv || command -v "$ROOT/.venv/bin/uv" || true)
  if [ -n "$UV" ]; then
    return
  fi
  if "$1" -m uv --version > /dev/null 2>&1 || phase "installing uv" pip_install "$1" uv; then
    UV="$("$1" -c 'import uv; print(uv.find_uv_bin())')" || UV=
  fi
}

# install_packages PYTHON ARGUMENTS...: installs into the environment of PYTHON; arguments as of `pip install`.
install_packages() {
  local python=$1
  shift
  [ -n "${UV+set}" ] || find_uv "$python"
  if [ -n "$UV" ]; then
    uv_install "$python" "$@"
  else
    pip_install "$python" "$@"
  fi
}

pip_install() {
  local python=$1
  shift
  "$python" -m pip install --quiet --quiet --disable-pip-version-check --no-input "$@"
}

# uv reads none of pip's settings; where the user has made some, both have to find the same packages.
uv_install() (
  local python=$1 index more links certificates
  shift
  index=$(pip_setting "$python" index-url) more=$(pip_setting "$python" extra-index-url)
  links=$(pip_setting "$python" find-links) certificates=$(pip_setting "$python" cert)
  [ -z "$index" ] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
  # pip takes the best version of all indexes, uv the first index that has a package.
  [ -z "$more" ] || export UV_INDEX=${UV_INDEX:-$more} UV_INDEX_STRATEGY=${UV_INDEX_STRATEGY:-unsafe-best-match}
  [ -z "$links" ] || export UV_FIND_LINKS=${UV_FIND_LINKS:-${links// /,}}
  [ -z "$certificates" ] || export SSL_CERT_FILE=${SSL_CERT_FILE:-$certificates}
  # Python may not be allowed to keep what it compiles; then each start would compile everything anew.
  [ -z "${PYTHONDONTWRITEBYTECODE:-}" ] || export UV_COMPILE_BYTECODE=1
  "$UV" pip install --quiet --python "$python" "$@"
)

# pip_setting PYTHON NAME: pip's setting from the environment or any of its configuration files, on one line.
pip_setting() {
  local variable=PIP_$(echo "$2" | tr a-z- A-Z_)
  if [ -n "${!variable:-}" ]; then
    echo "${!variable}"
  else # `pip config get` would read the user's file alone
    "$1" -m pip config list 2> /dev/null | sed -n "s/^global\\.$2='\\(.*\\)'\$/\\1/p" | sed 's/\\n/ /g; s/^ *//; s/ *$//' || true
  fi
}
