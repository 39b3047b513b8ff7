# Everything from a clean clone: `make demo`, `make test`. Only python3 (3.11 or newer, with venv) and a C++17
# compiler have to be there. The tests of Spark want Java 17 or newer too, and say so where it is missing.
#
#   make demo      train a classifier to NaN under the recorder, and name the tensor that went bad first, also as a page
#   make test      linters, types, layers, the specification's freshness, and the tests, in less than eight minutes
#   make slow      the tests that need more than Python: Spark, a browser, an S3 server, Debugger V2's dumps, kills, and
#                   cases that `make test` leaves out
#   make exhaustive  the tests that take long: every mode beside Debugger V2's, 1,000 kills of a recording
#   make third-party  record programs over other libraries (keras-hub, TensorFlow Probability …), and test the graphs for GPUs
#                   with a TensorFlow that has kernels for GPUs; downloads 1 GB the first time
#   make gpu       check recordings on the NVIDIA GPU of this machine, and write build/gpu.json; downloads 3 GB the first time;
#                   GPU_ARGS='--only record,identical' chooses
#   make matrix    run the demo and the tests of recording with each supported TensorFlow and Python, and write docs/versions.md;
#                   MATRIX_ARGS='--python 3.12 --tensorflow 2.18' or '--lowest' chooses; it takes hours and 3 GB of disk for each combination
#   make readers   read logdirs, and exports as Delta and Iceberg tables, with other programs, in an environment of their own
#   make sanitize  tests of the native core under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer
#   make tidy      clang-tidy over the native core
#   make aarch64   build the native core for aarch64, and compare what its kernels compute under QEMU with what they compute here
#   make fuzz      the parsers of the native core under libFuzzer, for half an hour; needs Clang
#   make chaos     an hour of random trainings with random disturbances, each compared with the same one without a recording
#   make coverage  the branches of recovery, manifest and compaction: fails where one is not taken by their tests
#   make mutation  change these modules in some thousand places, one at a time, and list what no test notices
#   make docs      build the documentation site into build/site; fails if a link in it is broken
#   make format    format the code
#   make protos    compile the messages of Debugger V2 dumps
#   make clean     remove what was built; `make distclean` also removes the virtual environment

PYTHON ?= python3
VENV ?= .venv
# Two processes, a file of tests at a time: what a file records it records alone.
PYTEST_ARGS ?= -n 2 --dist loadfile
# Without bytecode, each of the hundreds of processes of the tests would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check
# The requirement files hold all that is needed. pip must not look for more: tf_keras names the package tensorflow, which
# would be installed over tensorflow-cpu.
LOCKED := --no-deps --requirement
DEMO_LOGDIR := build/demo

# What the compiled part and the installed metadata are made of. Of the Python sources only where they are: the install
# is editable, and knows each module by its path.
BUILD_SOURCES := pyproject.toml CMakeLists.txt tfdbg_arrow/_version.py \
	$(wildcard $(addprefix tfdbg_arrow/writer/native/*,.cc .h .inc))
# The requirements that the last goal installed into the environment: test.txt holds demo.txt, which holds build.txt.
DEMO_REQUIREMENTS := requirements/build.txt requirements/demo.txt
TEST_REQUIREMENTS := $(DEMO_REQUIREMENTS) requirements/test.txt
# And what measures the tests on top.
QUALITY_REQUIREMENTS := $(TEST_REQUIREMENTS) requirements/quality.txt
# Libraries that need TensorFlow, in an environment of their own, because they also need other versions of what tests use.
THIRD_PARTY := $(VENV)/third-party
THIRD_PARTY_PIP := $(THIRD_PARTY)/bin/python -m pip --disable-pip-version-check
# TensorFlow with the libraries of CUDA, of its own too: it cannot stand beside tensorflow-cpu.
GPU := $(VENV)/gpu
GPU_PIP := $(GPU)/bin/python -m pip --disable-pip-version-check
# The programs that read logdirs, also of their own: no other test has them in these versions.
READERS := $(VENV)/readers
READERS_PIP := $(READERS)/bin/python -m pip --disable-pip-version-check
# The documentation site has an environment of its own too: it reads the sources without importing them.
DOCS := $(VENV)/docs
# The browser in which the viewer is tested: Debian's.
CHROMIUM := /usr/bin/chromium

MODULES := $(STAMPS)/modules

.PHONY: FORCE demo test slow exhaustive third-party gpu matrix readers sanitize tidy aarch64 fuzz chaos coverage mutation lint docs format protos clean distclean
.DELETE_ON_ERROR:
.NOTPARALLEL:

demo: $(STAMPS)/demo $(STAMPS)/package
	@rm -rf $(DEMO_LOGDIR)
	$(BIN)/python examples/demo.py --logdir $(DEMO_LOGDIR)

test: lint $(CHROMIUM)
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "not slow and not exhaustive" --durations 30

slow: $(STAMPS)/test $(STAMPS)/package $(CHROMIUM)
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "slow and not exhaustive" --durations 30

exhaustive: $(STAMPS)/test $(STAMPS)/package
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m exhaustive

third-party: $(THIRD_PARTY)/.stamps/package
	$(THIRD_PARTY)/bin/python -m pytest tests/third_party --durations 10
	# This environment has the full TensorFlow, with kernels for GPUs, which also tells without a GPU what can run on one.
	$(THIRD_PARTY)/bin/python -m pytest tests/writer/test_device_summaries.py -k gpu

gpu: $(GPU)/.stamps/package
	$(GPU)/bin/python -m tools.gpu $(GPU_ARGS)

matrix: | $(STAMPS)/venv
	$(BIN)/python tools/matrix.py --write $(MATRIX_ARGS)

readers: $(READERS)/.stamps/package
	$(READERS)/bin/python -m pytest tests/readers --durations 10

sanitize: $(STAMPS)/test $(STAMPS)/package
	$(BIN)/python tools/sanitize.py

tidy: $(STAMPS)/quality
	$(BIN)/cmake -S . -B build/tidy -G Ninja -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
		-DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -Dnanobind_DIR=$$($(BIN)/python -m nanobind --cmake_dir)
	printf '%s\0' tfdbg_arrow/writer/native/*.cc | xargs -0 -P 2 -n 1 $(BIN)/clang-tidy -p build/tidy --quiet

aarch64: $(STAMPS)/test
	$(BIN)/python tools/aarch64.py

fuzz: $(STAMPS)/test $(STAMPS)/package
	$(BIN)/python tools/fuzz_native.py

chaos: $(STAMPS)/test $(STAMPS)/package
	$(BIN)/python -m tests.chaos.run

# The modules are named in pyproject.toml.
coverage: $(STAMPS)/quality $(STAMPS)/package
	@mkdir -p build
	$(BIN)/python -m coverage run -m pytest tests/durability
	$(BIN)/python -m coverage report

# It starts from nothing, because it would otherwise reuse what it found about a mutant before. Those that survive are explained in
# tests/durability/README.md.
mutation: $(STAMPS)/quality $(STAMPS)/package
	rm -rf mutants
	$(BIN)/python -m mutmut run
	$(BIN)/python -m mutmut results

lint: $(STAMPS)/test $(STAMPS)/package
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell --dictionary=- --dictionary=tools/archaic_words.txt
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --quiet tests/test_imports.py
	$(BIN)/python -m tfdbg_arrow.schema.document --check
	$(BIN)/python tools/native_headers.py --check

docs: $(DOCS)/.stamps/requirements
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

format: $(STAMPS)/test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# protoc 25.1: what newer ones make does not load with the protobuf of older TensorFlow versions.
protos:
	$(PYTHON) -m venv build/protoc
	build/protoc/bin/python -m pip --disable-pip-version-check install --quiet 'grpcio-tools==1.62.3' 'setuptools<81'
	build/protoc/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. tfdbg_arrow/debugger_v2/protos/*.proto

clean:
	rm -rf build dist mutants .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis $(STAMPS)/package

distclean: clean
	rm -rf $(VENV)

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "tfdbg-arrow needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1);" \
			"name another: make PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS)
	@touch $@

$(STAMPS)/demo: $(DEMO_REQUIREMENTS) | $(STAMPS)/venv
	$(PIP) install --quiet $(LOCKED) requirements/demo.txt
	@touch $@

$(STAMPS)/test: $(TEST_REQUIREMENTS) | $(STAMPS)/venv
	$(PIP) install --quiet $(LOCKED) requirements/test.txt
	@touch $@ $(STAMPS)/demo

$(STAMPS)/quality: $(QUALITY_REQUIREMENTS) | $(STAMPS)/venv
	$(PIP) install --quiet $(LOCKED) requirements/quality.txt
	@touch $@ $(STAMPS)/test $(STAMPS)/demo

$(THIRD_PARTY)/.stamps/requirements: requirements/build.txt requirements/third_party.txt | $(STAMPS)/venv
	$(PYTHON) -m venv $(THIRD_PARTY)
	$(THIRD_PARTY_PIP) install --quiet -r requirements/third_party.txt
	@mkdir -p $(@D)
	@touch $@

$(THIRD_PARTY)/.stamps/package: $(BUILD_SOURCES) $(MODULES) $(THIRD_PARTY)/.stamps/requirements
	$(THIRD_PARTY_PIP) install --quiet --no-build-isolation --no-deps --editable . \
		--config-settings=build-dir=build/third-party
	@touch $@

$(GPU)/.stamps/requirements: requirements/build.txt requirements/gpu.txt | $(STAMPS)/venv
	$(PYTHON) -m venv $(GPU)
	$(GPU_PIP) install --quiet $(LOCKED) requirements/gpu.txt
	@mkdir -p $(@D)
	@touch $@

$(GPU)/.stamps/package: $(BUILD_SOURCES) $(MODULES) $(GPU)/.stamps/requirements
	$(GPU_PIP) install --quiet --no-build-isolation --no-deps --editable . --config-settings=build-dir=build/gpu
	@touch $@

$(READERS)/.stamps/requirements: requirements/build.txt requirements/readers.txt | $(STAMPS)/venv
	$(PYTHON) -m venv $(READERS)
	$(READERS_PIP) install --quiet -r requirements/readers.txt
	@mkdir -p $(@D)
	@touch $@

$(READERS)/.stamps/package: $(BUILD_SOURCES) $(MODULES) $(READERS)/.stamps/requirements
	$(READERS_PIP) install --quiet --no-build-isolation --no-deps --editable . --config-settings=build-dir=build/readers
	@touch $@

$(DOCS)/.stamps/requirements: requirements/docs.txt | $(STAMPS)/venv
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip --disable-pip-version-check install --quiet -r requirements/docs.txt
	@mkdir -p $(@D)
	@touch $@

# Where it cannot be installed from here, the tests that need it fail and say so.
$(CHROMIUM):
	@if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		{ apt-get update -q && DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -q --no-install-recommends chromium; } >&2 || \
			echo "chromium could not be installed: the viewer's tests in a browser will fail." >&2; \
	else \
		echo "The viewer's tests in a browser need $@: apt-get install -y chromium, as root." >&2; \
	fi

$(MODULES): FORCE | $(STAMPS)/venv
	@find tfdbg_arrow -name '*.py' | sort | cmp --quiet - $@ || find tfdbg_arrow -name '*.py' | sort > $@

$(STAMPS)/package: $(BUILD_SOURCES) $(MODULES) | $(STAMPS)/demo
	$(PIP) install --quiet --no-build-isolation --no-deps --editable .
	@touch $@
