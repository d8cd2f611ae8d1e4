# Everything here works on a fresh clone: each target makes the virtual environment it needs.
#   make demo | test | test-kernels | parity | lint | typecheck | check-long | cuda | clean | help
# PYTHON chooses the interpreter (3.10 or later), VENV the place of the environment.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
OUTPUT ?= apple.png

BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
STAMPS := $(VENV)/.stamps
NATIVE_SOURCES := $(shell find csrc -type f) CMakeLists.txt pyproject.toml
CTEST_BUILD := build/ctest
CUDA_BUILD := build/cuda
# Devices that `make cuda` makes kernels for: 90 is H100 and H200 (and, through PTX, what comes later).
CUDA_ARCHITECTURES ?= 90
# Arguments of pytest, for example PYTEST_ARGS="-k planner".
PYTEST_ARGS ?=
# The CPU build of PyTorch by its full name, so that a default index never brings a CUDA one instead;
# TORCH_PIP_ARGS tells pip where it is, if not on an index that pip knows.
TORCH ?= torch==2.13.0+cpu
TORCH_PIP_ARGS ?=

# ggml keeps its fast F32/F16/BF16 matrix products behind this flag. Only a build from source has it,
# and pip's cache of built wheels does not tell builds apart, so the cache is left out.
GGML_VERSION := 0.0.45
GGML_CMAKE_ARGS := -DGGML_LLAMAFILE=ON

# Ranks share the cores: threads that wait must not spin.
export OMP_WAIT_POLICY ?= passive

.PHONY: demo test ctest pytest test-kernels parity lint typecheck check-long cuda clean help
.DELETE_ON_ERROR:

help:
	@echo "make demo       draw a red apple on two processes with the embedded model"
	@echo "make test       C++ tests and Python tests, without PyTorch"
	@echo "make test-kernels  the tests of one process again with the kernels that auto does not take: portable, ggml"
	@echo "make parity     the comparison with diffusers and transformers (installs PyTorch for the CPU)"
	@echo "make lint       ruff"
	@echo "make typecheck  mypy"
	@echo "make check-long all of the above, the slow tests included, and ten minutes of fuzzing the readers of files"
	@echo "make cuda       the CUDA extension (needs nvcc of CUDA 12 or 13); CUDA_ARCHITECTURES=80 for an A100; to run on a"
	@echo "                GPU, ggml has to be built for CUDA too: tests/cuda/run.sh"
	@echo "make clean      remove build output (the environment $(VENV) stays)"

demo: $(STAMPS)/edgedit
	@$(BIN)/mpiexec -n 2 $(BIN)/edgedit generate -p "a red apple" --ulysses 2 --seed 0 -o $(OUTPUT)
	@echo "The picture: $(abspath $(OUTPUT))"

test: ctest pytest

ctest: $(STAMPS)/tools $(STAMPS)/ggml
	@PATH="$(abspath $(BIN)):$$PATH" cmake -S . -B $(CTEST_BUILD) -G Ninja -DEDGEDIT_BUILD_MODULE=OFF -DEDGEDIT_BUILD_TESTS=ON \
		-DPython_EXECUTABLE=$(abspath $(BIN))/python > /dev/null
	@PATH="$(abspath $(BIN)):$$PATH" cmake --build $(CTEST_BUILD) -j $(JOBS)
	@PATH="$(abspath $(BIN)):$$PATH" ctest --test-dir $(CTEST_BUILD) --output-on-failure

pytest: $(STAMPS)/test
	$(BIN)/python -m pytest --ignore=tests/parity -m "not slow" $(PYTEST_ARGS)

test-kernels: $(STAMPS)/test
	for kernels in portable ggml; do \
		EDGEDIT_KERNELS=$$kernels EDGEDIT_FUZZ_S=0 $(BIN)/python -m pytest tests/native -m "not slow" $(PYTEST_ARGS) || exit 1; \
	done

parity: $(STAMPS)/parity
	$(BIN)/python -m pytest tests/parity $(PYTEST_ARGS)

lint: $(STAMPS)/dev
	$(BIN)/ruff check .

typecheck: $(STAMPS)/dev
	$(BIN)/mypy

check-long: export EDGEDIT_EXCHANGES = 100000
check-long: export EDGEDIT_FUZZ_S = 600
check-long: ctest $(STAMPS)/parity test-kernels lint typecheck
	$(BIN)/python -m pytest $(PYTEST_ARGS)

cuda: $(STAMPS)/edgedit
	@PATH="$(abspath $(BIN)):$$PATH" cmake -S . -B $(CUDA_BUILD) -G Ninja -DEDGEDIT_BUILD_MODULE=OFF -DEDGEDIT_CUDA=ON \
		-DEDGEDIT_CUDA_ARCHITECTURES="$(CUDA_ARCHITECTURES)" -DPython_EXECUTABLE=$(abspath $(BIN))/python \
		-Dpybind11_DIR="$$($(BIN)/python -m pybind11 --cmakedir)" > /dev/null
	@PATH="$(abspath $(BIN)):$$PATH" cmake --build $(CUDA_BUILD) -j $(JOBS) --target _cuda
	@PATH="$(abspath $(BIN)):$$PATH" cmake --install $(CUDA_BUILD)/csrc/cuda \
		--prefix "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')" > /dev/null
	@cd / && $(abspath $(BIN))/python -c 'from edgedit import _cuda; print("edgedit._cuda: CUDA %d, driver %d," % _cuda.versions(), _cuda.device_count(), "devices")'

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find edgedit tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2> /dev/null || true

# ---- the environment: one stamp a step, each redone only when what it rests on changes ----

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "edgedit needs Python 3.10 or later, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/ggml: $(STAMPS)/venv
	@echo "Building ggml with $(GGML_CMAKE_ARGS): a few minutes, once."
	CMAKE_ARGS="$(GGML_CMAKE_ARGS)" CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) \
		$(PIP) install -q --no-cache-dir --force-reinstall --no-deps --no-binary ggml-python "ggml-python==$(GGML_VERSION)"
	$(PIP) install -q "ggml-python==$(GGML_VERSION)"
	@$(BIN)/python -c 'import sys, ggml; sys.exit(not ggml.ggml_cpu_has_llamafile() and "ggml was built without LLAMAFILE")'
	@touch $@

$(STAMPS)/tools: $(STAMPS)/venv
	$(PIP) install -q "cmake>=3.18" ninja "scikit-build-core>=0.10" "pybind11>=2.13"
	@touch $@

$(STAMPS)/edgedit: $(STAMPS)/ggml $(STAMPS)/tools $(NATIVE_SOURCES)
	PATH="$(abspath $(BIN)):$$PATH" $(PIP) install -q --no-build-isolation -e ".[mpi]"
	@touch $@

# The package is there by now: what pip adds is what its extra asks for.
$(STAMPS)/test: $(STAMPS)/edgedit
	$(PIP) install -q "edgedit[test]"
	@touch $@

$(STAMPS)/parity: $(STAMPS)/test
	$(PIP) install -q $(TORCH_PIP_ARGS) "$(TORCH)" || \
		{ echo "No $(TORCH) found: set TORCH_PIP_ARGS (say, --index-url of PyTorch's CPU builds), or TORCH." >&2; exit 1; }
	$(PIP) install -q "edgedit[parity]"
	@touch $@

$(STAMPS)/dev: $(STAMPS)/edgedit
	$(PIP) install -q "edgedit[dev]"
	@touch $@
