# Two commands set everything up on a fresh machine: `make demo` and `make test`. Both make the environment once.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready

.PHONY: demo test test-slow test-all test-faults lint docs serve clean help

help:
	@echo "make demo   run RAPID on the embedded default and publish the result"
	@echo "make test   run the tests that need at most one server: ten minutes on two cores, half an hour on slow ones"
	@echo "make test-all   run these and the slow ones: Ray, torchrun, PostgreSQL, S3, processes that are killed, whole runs"
	@echo "make test-faults   let a schedule run, kill, fill and fuzz for an hour or two, and count what was lost"
	@echo "make lint   check style and types"
	@echo "make docs   build the site of the documentation into site/, without a network"
	@echo "make serve  start both UIs and carry out what is scheduled"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Sfumato needs Python 3.11 or newer; set PYTHON=...")'
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt "setuptools>=77"
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt --no-build-isolation -e ".[flow,models,postgres,scale,test]"
	touch $(READY)

demo: $(READY)
	$(VENV)/bin/sfumato run rapid --preset digits --publish

# The tests of one file, and those that share a server, stay in one process (tests/conftest.py says which come first).
# Compiled files are kept wherever the shell says: dozens of processes start, and each would compile everything again.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadscope --no-loadscope-reorder

test: $(READY)
	$(PYTEST) -m "not slow"

# What `make test` leaves out; MINUTES=20 begins no test after twenty minutes, and names those left out.
MINUTES := inf
test-slow: $(READY)
	$(PYTEST) -m slow -rs --begin-within $(MINUTES)

test-all: test test-slow

# In a process of its own: the suite starts and kills servers, mounts disks where it may, and takes its time.
test-faults: $(READY)
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -o addopts="-q -p no:cacheprovider --import-mode=importlib" tests/faults tests/sfumato/privacy/ledger/test_kill.py --moments 100 --fuzz 1000

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict
	@echo "to read it: $(VENV)/bin/python -m http.server --directory site"

serve: $(READY)
	$(VENV)/bin/sfumato serve

clean:
	rm -rf $(VENV) sfumato-home
	@echo "The key of the ledger, and what was seen of it, stay outside: a new ledger in the same place is refused until"
	@echo "sfumato ledger recover --declare-loss REASON"
