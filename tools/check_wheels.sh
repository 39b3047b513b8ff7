#!/usr/bin/env bash
# Checks wheels without a compiler, each with its own version of Python: installs a wheel and TensorFlow into a new
# environment, runs the command, and records a NaN.
#
#   tools/check_wheels.sh wheelhouse/*.whl           checks these wheels
#   tools/check_wheels.sh python3.11 python3.12      builds a wheel from the sdist with each Python, and checks the wheels
#
# The built files are in dist/. TENSORFLOW names another TensorFlow package or version. The default is tensorflow-cpu on
# x86-64, and tensorflow on aarch64, where there is no tensorflow-cpu.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 TF_CPP_MIN_LOG_LEVEL=2
case $(uname -m) in
  aarch64) default=tensorflow ;;
  *) default=tensorflow-cpu ;;
esac

[ $# -gt 0 ] || { echo "usage: $0 WHEEL...|PYTHON..." >&2; exit 2; }

# Builds the sdist, and builds a wheel from the sdist for each Python on the command line.
build() {
  "$1" -m venv "$work/build"
  "$work/build/bin/python" -m pip install --quiet build twine
  "$work/build/bin/python" -m build --sdist --outdir "$work/dist" "$root"
  tar --list --file "$work"/dist/*.tar.gz >"$work/names"
  grep --quiet /tfdbg_arrow/writer/native/module.cc "$work/names"
  if grep --extended-regexp '^[^/]*/(benchmarks|docs|tests)/' "$work/names"; then
    echo "The sdist contains files that a build does not need." >&2
    exit 1
  fi
  for python in "$@"; do
    "$python" -m pip wheel --quiet --no-deps --wheel-dir "$work/dist" "$work"/dist/*.tar.gz
  done
  "$work/build/bin/python" -m twine check --strict "$work"/dist/*
  mkdir -p "$root/dist"
  cp "$work"/dist/* "$root/dist"
}

cat >"$work/program.py" <<'EOF'
import sys

import tensorflow as tf
import tfdbg_arrow

with tfdbg_arrow.capture(sys.argv[1]):
    tf.math.log(tf.constant([1.0, -1.0]))
first = tfdbg_arrow.first_nonfinite(sys.argv[1])
assert first is not None and first.op_type == "Log" and first.num_nan == 1, first
print(first.op_type, first.source)
EOF

check() {
  local name=${1##*/} python
  [[ $name =~ -cp3([0-9]+)- ]] || { echo "$name is not for one version of Python: it has no native core." >&2; exit 1; }
  python=python3.${BASH_REMATCH[1]}
  echo "== $name on $("$python" --version)"
  "$python" -m venv "$work/env"
  (
    # From here on, PATH has only the environment's own commands.
    PATH=$work/env/bin
    python -m pip install --quiet --only-binary :all: "$1" "${TENSORFLOW:-$default>=2.18,<2.22}"
    python -m pip check
    tfdbg-arrow --help >"$work/help"
    python "$work/program.py" "$work/logdir"
  )
  rm -rf "$work/env" "$work/logdir"
}

case $1 in
  *.whl) wheels=("$@") ;;
  *)
    build "$@"
    wheels=("$work"/dist/*.whl)
    ;;
esac
for wheel in "${wheels[@]}"; do
  check "$wheel"
done
