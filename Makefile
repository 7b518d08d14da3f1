# The project's commands, `make quickstart` and `make test` first. Every line can be given by hand as well:
# `make -n quickstart` prints them. A stage whose output is there is not repeated; remove the output to repeat it.

# The first Python of 3.11 or newer; where there is none, python3 says what is wrong with it.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && exit; \
	done; echo python3)
# The environment that bootstrap.py makes.
PY := .venv/bin/python

# What quickstart trains, and where it leaves the run: another model of the family gets a folder of its own.
BEST := tiny-emoji-eq7mean
MODEL ?= $(BEST)
RUN ?= runs/quickstart$(if $(filter-out $(BEST),$(MODEL)),-$(MODEL:tiny-emoji-%=%))
DATA := data/emoji
VALIDATION := data/emoji-val

.PHONY: help setup quickstart laion-sample table test lint setup-quickstart setup-laion-sample

help:
	@echo 'make quickstart    set up, build the emoji set, train, evaluate, and leave a report to look at'
	@echo 'make laion-sample  set up, take 2,000 rows from a server that misbehaves to shards, and train on them'
	@echo 'make table         set up, build the sets, train the tiny model in every kind and write docs/kinds.md (2 hours)'
	@echo 'make test          set up, then the linter, the type checker and all tests, slow ones too'
	@echo 'make lint          set up, then the linter and the type checker alone'
	@echo 'make setup         make .venv with what the others need, or add to it what is missing'
	@echo
	@echo 'Variables: PYTHON=python3.12 (the interpreter), MODEL=tiny-emoji-softmax (what quickstart trains),'
	@echo 'RUN=runs/NAME (where its output goes; $(RUN) unless given)'

setup:
	"$(PYTHON)" bootstrap.py --extras quickstart,test

quickstart: $(RUN)/report.html
	@echo 'The report: $(RUN)/report.html'

laion-sample: | setup-laion-sample $(DATA)/README.md
	$(PY) -m benchmarks.laion_sample

table: | $(DATA)/README.md $(VALIDATION)/README.md
	$(PY) -m benchmarks.table

test: lint
	$(PY) -m pytest

lint: | setup
	$(PY) -m ruff check .
	$(PY) -m mypy

setup-quickstart:
	"$(PYTHON)" bootstrap.py --extras quickstart

# img2dataset imports a module that Python 3.13 removed; better said before gigabytes are fetched.
setup-laion-sample:
	@"$(or $(wildcard $(PY)),$(PYTHON))" -c 'import sys; sys.exit(sys.version_info >= (3, 13) and \
		"laion-sample downloads by img2dataset, which needs Python 3.11 or 3.12, and " + sys.executable + " is newer: " \
		"remove .venv if there is one, and give make laion-sample PYTHON=python3.11")'
	"$(PYTHON)" bootstrap.py --extras quickstart,data

# Each output with the line that makes it. The checkpoint asks for the data, whatever its age: a finished training
# is repeated only when its folder was removed.
$(DATA)/README.md: | setup-quickstart
	$(PY) -m data_prep emoji --output $(DATA)

$(VALIDATION)/README.md: | setup-quickstart
	$(PY) -m data_prep emoji --output $(VALIDATION) --heldout-vendor emojione

$(RUN)/checkpoint.pt: | $(DATA)/README.md
	$(PY) -m training --config configs/training/quickstart.toml --model $(MODEL) --output $(RUN)

$(RUN)/zero-shot.json: $(RUN)/checkpoint.pt
	$(PY) -m evaluate zero-shot --model $(MODEL) --pretrained $(RUN)/checkpoint.pt \
		--dataset emoji --root $(DATA) --output $(RUN)/zero-shot.json

$(RUN)/report.html: $(RUN)/zero-shot.json
	$(PY) -m evaluate report $(RUN) --root $(DATA)
