# The two commands of the README are `make demo` and `make test`; the rest is for people who work on ovspec.
PYTHON ?= python3
DEMO_VENV := .venv-demo
TEST_VENV := .venv
PIP_FLAGS := --quiet --disable-pip-version-check
BIN := $(TEST_VENV)/bin
NATIVE := $(shell git ls-files 'custom_ops/*.cpp' 'custom_ops/*.hpp' 2>/dev/null)

.PHONY: demo test sweep lint format sanitize clean

demo: $(DEMO_VENV)/.installed
	$(DEMO_VENV)/bin/ovspec demo

test: $(TEST_VENV)/.installed
	$(BIN)/python -m pytest tests

sweep: $(TEST_VENV)/.installed
	$(BIN)/python -m pytest tests -m sweep

# What the installed package is made of; a change rebuilds and reinstalls it.
SOURCES := pyproject.toml constraints.txt $(shell find ovspec models transforms custom_ops -type f \
	-not -name '*.pyc' -not -path 'models/demo/*' 2>/dev/null | sed 's/ /\\ /g')

$(DEMO_VENV)/.installed: $(SOURCES)
	$(PYTHON) -m venv $(DEMO_VENV)
	$(DEMO_VENV)/bin/python -m pip install $(PIP_FLAGS) .
	touch $@

$(TEST_VENV)/.installed: $(SOURCES)
	$(PYTHON) -m venv $(TEST_VENV)
	$(BIN)/python -m pip install $(PIP_FLAGS) --constraint constraints.txt ".[export,test]"
	touch $@

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -m clang_format --version >/dev/null 2>&1; clang-format --dry-run --Werror $(NATIVE)

format:
	$(PYTHON) -m ruff format .
	clang-format -i $(NATIVE)

clean:
	rm -rf $(DEMO_VENV) $(TEST_VENV) build
