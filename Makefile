# Every target sets up its own virtual environment when there is none.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Spinning OpenMP threads starve each other on small machines.
export OMP_WAIT_POLICY ?= PASSIVE

# Tests run in one process per core, at most four because each may take a gibibyte, and with one thread in each.
# A process takes tests that stand together, which share what they prepare, and those of others when it has none left.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses=logical --maxprocesses=4 --dist=worksteal

.PHONY: demo data browser test test-all test-machines firmware bench check lint lines numbers audit faults docs dist release-notes clean

# Two processes plan, simulate and train.
demo: $(STAMP)
	$(BIN)/heliomesh compare ring10 contributions news receiver+actions=coupled+agree=6 uncoordinated+actions=coupled --train 5 --set energy.actions=separate --set learning.partition=dirichlet --set learning.alpha=0.1 --processes 2
	$(BIN)/heliomesh compare ring10 --train 3 --report report.html --set learning.partition=dirichlet --processes 2 --evaluate-every 20

# Fashion-MNIST, for the tests on real data; without it they are skipped.
data: $(STAMP)
	@$(BIN)/heliomesh data get fashion_mnist || echo "Fashion-MNIST cannot be had here: the tests on it are skipped."

# Chromium, for the tests of pages: a system package where the user may install one; without it they are skipped.
browser:
	@command -v chromedriver > /dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && { apt-get update && apt-get install --yes chromium chromium-driver; } > /dev/null 2>&1; } \
	  || echo "Chromium cannot be installed here: the tests of pages are skipped."

# mypy has one thread and, without its cache, takes most of a minute: it works beside the tests and speaks after them.
define beside_types
$(BIN)/mypy > $(VENV)/mypy.txt 2>&1 & types=$$!; $(1); ended=$$?; \
wait $$types || ended=1; cat $(VENV)/mypy.txt; exit $$ended
endef

test: lint data browser
	$(call beside_types,$(PYTEST) -m "not slow")

test-all: lint data browser
	$(call beside_types,$(PYTEST))

# The numeric tests as on other processors, thread counts, locales and versions of Python; see docs/reliability.md.
test-machines: $(STAMP) data
	$(BIN)/python -m tests.machines

# Exported plans on emulated microcontrollers, and their sizes; see docs/firmware.md. What is not installed is left out.
CROSS := gcc-arm-none-eabi gcc-avr avr-libc gcc-riscv64-unknown-elf qemu-system-arm qemu-system-misc simavr cppcheck
firmware: $(STAMP)
	@[ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && { apt-get update && apt-get install --yes $(CROSS); } > /dev/null 2>&1 \
	  || echo "These cannot be installed here: $(CROSS)"
	$(BIN)/pytest tests/interop/test_firmware.py
	$(BIN)/python benchmarks/firmware.py

bench: $(STAMP)
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

check: lint
	$(BIN)/mypy

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

# Lines of code by room, without blanks, comments and docstrings.
lines:
	@$(PYTHON) -m tests.lines

# Numbers and tables of the pages, from results/.
numbers: $(STAMP)
	@$(BIN)/python docs/site/page_numbers.py

# Known vulnerabilities of everything in constraints.txt. What cannot be asked about does not pass.
audit: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt "pip-audit>=2.7"
	@$(BIN)/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt || { \
	  echo "audit: not passed: a package has a known vulnerability, or the advisory database could not be asked (see above)"; \
	  exit 1; }

# Every fault on every command; see docs/reliability.md.
faults: $(STAMP)
	$(BIN)/python -m tests.faults

# The site, into site/. RUN_NOTEBOOKS=false leaves out what notebooks print and draw, and saves minutes.
docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Wheel and sdist, into dist/; both are tried outside this folder. DIST_FLAGS=--fresh installs dependencies anew.
dist: $(STAMP)
	$(BIN)/python -m tests.distributions $(DIST_FLAGS)

# The newest section of the changelog.
release-notes:
	@awk '/^## /{sections++; next} sections == 1' CHANGELOG.md

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist site *.egg-info
