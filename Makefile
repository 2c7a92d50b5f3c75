# `make cook` runs the main dish, `make test` checks, `make thorough` all, `make quick` what takes no time. Each sets up .venv first, once.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
HOROVOD := .venv/.horovod
PEERS := .venv-peers/.installed

BOOK := docs/_build
TRANSLATED := index start errata glossary recipes concordance

# Which quarter of the test files that start TensorFlow or processes has its turn: another commit has another one.
SHARE ?= $(shell made=$$(git log -1 --format=%ct 2>/dev/null) && echo $$((made % 4 + 1))/4 || echo 1/1)

.PHONY: cook quick test thorough lint types data peers docs translations record clean

cook: $(STAMP) data
	$(BIN)/tfperf run hybridize mnist_mixed_mirrored save_model

# What a developer runs all the time: the test files that start neither TensorFlow nor processes.
quick: lint types
	$(BIN)/python -m pytest -n 2 --dist loadfile --quick

# Every recipe, two ranks of Horovod, all that takes no time, and a quarter of the rest. Two test files at a time: most of a
# test's time is one process starting.
test: lint types data $(HOROVOD)
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations 25 --share $(SHARE)

# All tests.
thorough:
	$(MAKE) test SHARE=1/1

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# Real Fashion-MNIST, from the Keras cache, a Debian package (no root needed) or the internet.
# Twice: the first try on a machine just started may meet a mirror that is slow to wake.
data: $(STAMP)
	$(BIN)/tfperf data fashion_mnist || $(BIN)/tfperf data fashion_mnist

# PyTorch and JAX for benchmarks/peers.py, in a .venv of their own; nothing else needs them.
peers: $(PEERS)

# The book, in both languages; warnings are errors. Open docs/_build/index.html.
docs: $(STAMP)
	for language in en zh_CN; do \
	    $(BIN)/sphinx-build -q -W --keep-going -D language=$$language -d $(BOOK)/doctrees/$$language docs $(BOOK)/$$language || exit; \
	done
	cp docs/languages.html $(BOOK)/index.html

# Brings docs/locales up to date with the pages that are translated.
translations: $(STAMP)
	$(BIN)/sphinx-build -q -b gettext -d $(BOOK)/doctrees/gettext docs $(BOOK)/gettext
	rm -rf $(BOOK)/translated && mkdir $(BOOK)/translated
	cp $(TRANSLATED:%=$(BOOK)/gettext/%.pot) $(BOOK)/translated
	$(BIN)/sphinx-intl update --pot-dir $(BOOK)/translated --locale-dir docs/locales --language zh_CN --line-width 0

# Runs every recipe whole, an hour or two on 2 cores, and keeps what this machine gave under docs/recorded. Let nothing else run.
record: $(STAMP) data $(HOROVOD)
	$(BIN)/tfperf record

$(PEERS): benchmarks/peers-requirements.txt
	test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers-requirements.txt
	touch $(PEERS)

$(STAMP): requirements.txt constraints.txt pyproject.toml setup.py
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] < (3, 14) else "tfperf needs CPython 3.11 to 3.13; this is " + sys.version.split()[0] + ": make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $(STAMP)

# Built once against the installed TensorFlow, 2 to 3 minutes on 2 cores, and kept in the user's cache for the next .venv.
$(HOROVOD): $(STAMP)
	PIP_CONSTRAINT=constraints.txt $(BIN)/tfperf horovod install
	touch $(HOROVOD)

# What was measured, results/, stays.
clean:
	rm -rf .venv .venv-peers build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis $(BOOK)
