# shellcheck shell=bash
# Sourced by sglang-cpu and vllm-cpu: one genuine server on this machine's CPU, started, found again and stopped by name.
#
# The script that sources this sets SERVER (for messages), HOME_DIR, VENV and MODEL, defines `installed`, `install_server`,
# `check_machine`, `make_model` and `start PORT OPTIONS...` (which runs the server in the foreground), and calls
# `server_main "$@"` last.

START_SECONDS=${START_SECONDS:-240}
STOP_SECONDS=30

usage() {
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
}

# Refuses a machine on which the server's packages do not run, with the reason: check_platform PYTHON.
check_platform() {
  local system
  system=$(uname -s)-$(uname -m)
  [ "$system" = Linux-x86_64 ] || die "$SERVER's CPU server needs Linux-x86_64, this is $system"
  "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' > /dev/null 2>&1 ||
    die "needs Python 3.11 with venv and pip, '$1' is not that; set another interpreter"
  "$1" -c '
import platform, sys
name, version = platform.libc_ver()
sys.exit(name != "glibc" or tuple(map(int, version.split(".")[:2])) < (2, 34))
' || die "needs glibc 2.34 or newer, because the $SERVER wheel is built for it"
}

# An empty environment for the server; one that somebody else made is left alone.
fresh_venv() {
  if [ -e "$VENV" ] && [ ! -e "$VENV/pyvenv.cfg" ]; then
    die "'$VENV' exists and is no virtual environment; move it away or name another place"
  fi
  make_venv "$1" "$VENV"
}

# torchvision's compiled operators are built for CUDA. Two declarations of them would fail at import; models of text
# never use them.
without_torchvision_operators() {
  sed -i -E 's/^@torch\.library\.register_fake\("torchvision::q?nms"\)/# &/' "$1/torchvision/_meta_registrations.py"
}

# make_tiny FOLDER LINE: makes a model with a line of Python, whole or not at all.
make_tiny() {
  if [ -e "$1/config.json" ]; then
    return
  fi
  (
    setup local
    python -c "$2" "$1.new"
  )
  mv "$1.new" "$1"
}

# Prints the pid of the running server of this name, or fails.
running_pid() {
  local pid
  pid=$(cat "$RUN/pid" 2> /dev/null) && grep -aqi "$SERVER" "/proc/$pid/cmdline" 2> /dev/null && echo "$pid"
}

serve() {
  local name=$1 port=0 pid deadline
  shift
  if [ "${1:-}" = --port ]; then
    port=${2:?--port needs a number}
    shift 2
  fi
  if pid=$(running_pid); then
    die "the server '$name' is already running at $(cat "$RUN/url"), pid $pid; stop it first or give another --name"
  fi
  installed || install_server
  mkdir -p "$RUN"
  if [ "$port" = 0 ]; then
    port=$("$VENV/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  fi
  start "$port" "$@" > "$RUN/log" 2>&1 < /dev/null &
  pid=$!
  echo "$pid" > "$RUN/pid"
  echo "http://127.0.0.1:$port" > "$RUN/url"
  deadline=$((SECONDS + START_SECONDS))
  until answers "http://127.0.0.1:$port/health"; do
    if ! kill -0 "$pid" 2> /dev/null; then
      tail -n 20 "$RUN/log" >&2
      die "the server ended while it started; its log is $RUN/log"
    fi
    if [ $SECONDS -ge $deadline ]; then
      tail -n 20 "$RUN/log" >&2
      stop
      die "the server was not ready after $START_SECONDS seconds; its log is $RUN/log"
    fi
    sleep 0.5
  done
  cat "$RUN/url"
}

# Whether a GET answers 200.
answers() {
  "$VENV/bin/python" -c '
import sys, urllib.request
try:
    urllib.request.urlopen(sys.argv[1], timeout=10).close()
except OSError:
    sys.exit(1)
' "$1"
}

# Ends the server and all of its processes; nothing to do if it does not run.
stop() {
  local pid deadline
  if ! pid=$(running_pid); then
    rm -f "$RUN/pid" "$RUN/url"
    return
  fi
  kill -TERM "$pid" 2> /dev/null || true
  deadline=$((SECONDS + STOP_SECONDS))
  while kill -0 -- "-$pid" 2> /dev/null; do
    if [ $SECONDS -ge $deadline ]; then
      kill -KILL -- "-$pid" 2> /dev/null || true
      break
    fi
    sleep 0.2
  done
  rm -f "$RUN/pid" "$RUN/url"
}

server_main() {
  local command=${1:-help} name=default
  shift || true
  if [ "${1:-}" = --name ]; then
    name=${2:?--name needs a name}
    shift 2
  fi
  RUN=$HOME_DIR/run/$name
  case $command in
    check) check_machine ;;
    install) installed || install_server ;;
    installed) installed ;;
    model)
      make_model
      echo "$MODEL"
      ;;
    serve) serve "$name" "$@" ;;
    stop) stop ;;
    url)
      running_pid > /dev/null || exit 1
      cat "$RUN/url"
      ;;
    help | -h | --help) usage ;;
    *) die "unknown command '$command' (check, install, installed, model, serve, url or stop)" ;;
  esac
}
