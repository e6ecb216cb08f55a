MAKEFLAGS += --warn-undefined-variables --no-builtin-rules
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
# The tests start thousands of programs, each of which would compile all of its sources.
unexport PYTHONDONTWRITEBYTECODE

# What a caller may set, on the command line or in the environment.
PYTHON ?= python3
# Tiers of `make test`: all, or some of unit,golden,chart,chaos,trainer,api,e2e.
TIERS ?= all
# How deep `make test` goes: quick, gate or full (tests/depths.py).
DEPTH ?= quick
# How many files of tests run side by side; more than cores, since some wait.
WORKERS ?= 3
# More arguments for pytest, such as PYTEST_FLAGS='-k restart -x'.
PYTEST_FLAGS ?=
# Parts of names for `make mutants`; empty: all.
MUTANTS ?=
# `make chaos`: plans of which seed (empty: any), for how long, or this one plan alone.
SEED ?=
MINUTES ?= 10
PLAN ?=
# The commit that `make upgrade-images` upgrades from.
FROM ?= HEAD~1
# An index with other builds of torch, such as the CPU wheel index of pytorch.org; empty: the default index, by hash.
TORCH_INDEX ?=
# Images of `make images`: all, or some of operator,native,accelerate,hf; the last three are the trainer's.
IMAGES ?= all
# $(IMAGE_PREFIX)/operator:$(VERSION) and $(IMAGE_PREFIX)/trainer:$(VERSION), with -accelerate or -hf for these two.
IMAGE_PREFIX ?= ddpjob
# A Debian image with Python >= 3.11; empty: the Dockerfiles' own.
BASE_IMAGE ?=
# More arguments for the image builder, such as --volume /etc/ssl/certs:/etc/ssl/certs:ro (podman, buildah).
BUILD_FLAGS ?=
# docker, podman or buildah; empty: the first of them that answers.
CONTAINER_TOOL ?=
# LOCK_FLAGS=--upgrade renews every version in `make lock`.
LOCK_FLAGS ?=

VENV := .venv
PY := $(VENV)/bin/python
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' operator/ddpjob/version.py)
# Renders must not depend on the helm that makes them; the newest version the tests know.
KUBE_VERSION := 1.34.4
comma := ,

# The environment is installed again when, and only when, the contents of what decides it have changed.
LISTS := $(addprefix requirements/,build.txt cli.txt dev.txt torch.txt vision.txt hf.txt notebook.txt) pyproject.toml images/trainer/pyproject.toml
KEY := $(shell { cat $(LISTS); echo '$(TORCH_INDEX)'; } | cksum | cut -d' ' -f1)
RUN_STAMP := $(VENV)/.installed-run-$(KEY)
DEV_STAMP := $(VENV)/.installed-dev-$(KEY)
DOCS_STAMP := $(VENV)/.installed-docs-$(shell cksum < requirements/docs.txt | cut -d' ' -f1)

.PHONY: help
##@ Working on the code
help: ## This text
	@awk -F ':.*## ' '/^##@/ {print "\n" substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup demo test test-all lint coverage weight mutants queues chaos
setup: $(DEV_STAMP) ## Everything for development in .venv

demo: $(RUN_STAMP) ## Train on this machine, without a cluster: two nodes, as processes
	$(VENV)/bin/ddpjob run --local examples/digits.yaml

test: $(DEV_STAMP) ## What a change needs, in 9 minutes, and what did not run; TIERS=unit,golden picks
	$(PY) -m pytest -n $(WORKERS) --no-loadscope-reorder --depth $(DEPTH) --record build/tests-$(DEPTH).json $(TESTS) $(PYTEST_FLAGS)

test-all: $(DEV_STAMP) ## Every test, up to two hours; writes down in CONTRIBUTING.md that all have passed
	$(MAKE) test DEPTH=full
	$(PY) -m tests.weight --full-run

TESTS = $(if $(filter all,$(TIERS)),tests,$(addprefix tests/,$(subst $(comma), ,$(TIERS))))

lint: $(DEV_STAMP) ## Format, style, types and the direction of imports
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/mypy tests
	$(VENV)/bin/lint-imports

coverage: $(DEV_STAMP) ## How much of the judging parts the tests run within their own process; DEPTH=full has all
	$(PY) -m pytest -n $(WORKERS) --no-loadscope-reorder --depth $(DEPTH) --cov --cov-report= tests/unit tests/golden tests/chaos
	@for part in ddpjob/{plan,api,pods,controller}/\* ddpjob_agent/{evidence,verdict,failures,records,hangs}.py; do \
	  printf '%-25s %s %%\n' "$$part" "$$($(VENV)/bin/coverage report --format=total --precision=1 --include="operator/$$part")"; done

weight: $(DEV_STAMP) ## Lines and files, and the tests' seconds; writes tables of CONTRIBUTING.md
	$(PY) -m tests.weight

mutants: $(DEV_STAMP) ## Wrong operators, each of which the tests must notice; MUTANTS='ghosts budget' picks
	$(PY) -m tests.chaos.mutants $(MUTANTS)

queues: $(DEV_STAMP) ## Gangs and Kueue, with the real schedulers as processes, and the table in docs/queues.md
	$(PY) -m tests.queues

chaos: $(DEV_STAMP) ## Faults between operator and API server, as long as MINUTES=10 says; SEED=7, or PLAN='…' again
	$(PY) -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(PLAN),--plan '$(PLAN)')

.PHONY: generate verify docs
generate: $(DEV_STAMP) ## Write the CRD and manifests/ anew from the models and the chart
	@$(call render,.)

verify: $(DEV_STAMP) ## Fail if a generated file is not what its source makes, or a link of the docs leads nowhere
	@$(PY) -m tests.links
	@fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
	mkdir "$$fresh/charts" "$$fresh/docs" "$$fresh/manifests"; cp -R charts/ddpjob "$$fresh/charts/"; \
	$(call render,$$fresh); \
	drift=0; for file in $(GENERATED); do diff -u "$$file" "$$fresh/$$file" || drift=1; done; \
	[ $$drift = 0 ] || { echo 'error: generated files differ from their sources: run `make generate` and commit' >&2; exit 1; }

docs: $(DOCS_STAMP) ## Build the documentation's site in build/docs/site
	$(PY) -m tests.site build/docs
	cd build/docs && "$(abspath $(VENV))/bin/zensical" build --strict

MONITORING := alerts.yaml kube-state-metrics.yaml dashboards/operator.json dashboards/job.json
GENERATED := docs/api.md docs/cli.md docs/metrics.md docs/sdk.md $(MONITORING:%=charts/ddpjob/files/%) charts/ddpjob/files/crd.yaml manifests/crd.yaml manifests/install.yaml
# Writes GENERATED below folder $(1), which holds the chart.
define render
helm=$$(command -v helm || $(PY) -m tests.cluster.binaries helm); \
$(VENV)/bin/ddpjob crd --markdown > $(1)/docs/api.md; \
$(PY) -m tests.metrics_page > $(1)/docs/metrics.md; \
for file in $(MONITORING); do $(PY) -m tests.monitoring $$(basename $${file%.*}) > $(1)/charts/ddpjob/files/$$file; done; \
$(PY) -m tests.clipage docs/cli.md > $(1)/docs/cli.new && mv $(1)/docs/cli.new $(1)/docs/cli.md; \
$(PY) -m tests.sdk_reference docs/sdk.md > $(1)/docs/sdk.new && mv $(1)/docs/sdk.new $(1)/docs/sdk.md; \
$(VENV)/bin/ddpjob crd > $(1)/charts/ddpjob/files/crd.yaml; \
template() { "$$helm" template ddpjob $(1)/charts/ddpjob --namespace ddpjob-system --kube-version $(KUBE_VERSION) --no-hooks "$$@"; }; \
note='# Generated by `make generate` from charts/ddpjob. Do not edit.'; \
{ echo "$$note"; template --show-only templates/crd.yaml; } > $(1)/manifests/crd.yaml; \
{ echo "$$note"; template --set crds.install=false,createNamespace=true; } > $(1)/manifests/install.yaml
endef

##@ Releasing

# $$tool: what builds images here.
define find_tool
tool='$(CONTAINER_TOOL)'; \
for candidate in docker podman buildah; do \
  [ -n "$$tool" ] || ! $$candidate info >/dev/null 2>&1 || tool=$$candidate; done; \
command -v "$$tool" >/dev/null || { \
  echo "error: $${tool:-none of docker, podman and buildah} does not answer: install or start one" >&2; exit 1; }
endef

.PHONY: images release bench bench-memory bench-trainer bench-startup bench-failures bench-recovery bench-cli peer-image soak pictures gpu-check upgrade-images upgrade-check lock clean
images: ## Build the operator's image and the trainer's three; IMAGES=operator,native picks
	@$(find_tool); \
	flags=(--build-arg TORCH_INDEX='$(TORCH_INDEX)' --label org.opencontainers.image.version=$(VERSION)); \
	[ -z '$(BASE_IMAGE)' ] || flags+=(--build-arg BASE_IMAGE='$(BASE_IMAGE)'); \
	case $$tool in *buildah) flags+=(--layers);; esac; \
	times=(); if [ -n "$${SOURCE_DATE_EPOCH:-}" ]; then \
	  flags+=(--label org.opencontainers.image.revision="$$(git rev-parse HEAD)"); \
	  case $$tool in *docker) ;; *) times=(--no-cache --timestamp "$$SOURCE_DATE_EPOCH");; esac; fi; \
	build() { (set -x; "$$tool" build "$${flags[@]}" $(BUILD_FLAGS) "$$@" .); }; \
	trainer() { build -f images/trainer/Dockerfile --target "$$1" -t $(IMAGE_PREFIX)/trainer:$(VERSION)"$$2"; }; \
	for image in $(subst $(comma), ,$(IMAGES:all=operator$(comma)native$(comma)accelerate$(comma)hf)); do case $$image in \
	  operator) build "$${times[@]}" -f images/operator/Dockerfile -t $(IMAGE_PREFIX)/operator:$(VERSION);; \
	  native) trainer native '';; \
	  accelerate|hf) trainer $$image -$$image;; \
	  *) echo "error: IMAGES: no image $$image, only operator, native, accelerate and hf" >&2; exit 1;; \
	esac; done

release: $(DEV_STAMP) ## All that a release has, with its checksums, in dist/: packages, chart, manifests, and images with their ids
	@$(find_tool); set -x; \
	[ -z "$$(git status --porcelain)" ] || { echo 'error: commit first: a release is that of a commit' >&2; exit 1; }; \
	export SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct); \
	rm -rf dist build/release && mkdir -p dist build/release; \
	$(MAKE) images CONTAINER_TOOL="$$tool"; \
	for project in . images/trainer; do (cd $$project && '$(abspath $(PY))' -m hatchling build -d '$(abspath dist)'); done; \
	helm=$$(command -v helm || $(PY) -m tests.cluster.binaries helm); \
	"$$helm" package charts/ddpjob -d build/release; \
	tar -xzf build/release/ddpjob-*.tgz -C build/release; \
	tar --format=gnu --sort=name --mode=u=rwX,go=rX --mtime="@$$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -C build/release -cf - ddpjob \
	  | gzip -n > "dist/$$(basename build/release/ddpjob-*.tgz)"; \
	cp manifests/*.yaml dist; \
	for image in operator:$(VERSION) trainer:$(VERSION){,-accelerate,-hf}; do \
	  id=$$("$$tool" images --no-trunc --quiet $(IMAGE_PREFIX)/$$image); \
	  echo "$(IMAGE_PREFIX)/$$image $${id:?is not there}"; done > dist/images.txt; \
	$(PYTHON) -m venv build/release/venv && build/release/venv/bin/pip install --quiet dist/ddpjob-*.whl; \
	(cd / && PATH='$(abspath build/release/venv/bin)':$$PATH && ddpjob crd && ddpjob validate '$(abspath examples/digits.yaml)') > /dev/null; \
	build/release/venv/bin/python -c 'import ddpjob, pathlib; assert (pathlib.Path(ddpjob.__file__).parent / "py.typed").exists()'; \
	cd dist && sha256sum -- * > ../build/SHA256SUMS && mv ../build/SHA256SUMS . && cat SHA256SUMS

bench: $(DEV_STAMP) ## Measure, promises of scale included, and write docs/benchmarks.md
	$(PY) -m benchmarks

bench-memory: $(DEV_STAMP) ## What the operator takes to start beside many and large objects
	$(PY) -m benchmarks.memory

bench-trainer: $(DEV_STAMP) ## Measure the trainer, and write docs/trainer-figures.md
	$(PY) -m benchmarks.trainer --write

bench-startup: $(DEV_STAMP) ## From running pods to the first step, against torchrun alone, on kind; writes docs/startup.md
	$(PY) -m benchmarks.startup --write

bench-failures: $(DEV_STAMP) ## Run every kind of failure (KINDS=WORDS: some), on a real API server, and write docs/failures.md
	$(PY) -m pytest tests/api/failures --write-failures -k '$(KINDS)'

bench-recovery: $(DEV_STAMP) ## From a fault to the next step, on kind (2.5 hours); writes docs/recovery.md
	$(PY) -m benchmarks.recovery --write

bench-cli: $(DEV_STAMP) ## The CPU time that commands take to start; writes a table of docs/cli.md
	$(PY) -m benchmarks.cli --write

peer-image: $(DEV_STAMP) ## Build Kubeflow's Training Operator, beside which `make bench-recovery` measures
	VENV=$(VENV) benchmarks/recovery/training-operator/build

soak: $(DEV_STAMP) ## Train for MINUTES=10 on a machine kept busy, on kind: no node may count as silent
	$(PY) -m benchmarks.soak --minutes $(MINUTES)

pictures: $(DEV_STAMP) ## Record a local run, the notebook and the dashboards, and plot docs/recovery.csv; writes docs/pictures
	$(PY) -m benchmarks.session
	$(PY) -m benchmarks.notebook
	$(PY) -m benchmarks.recovery.page
	$(PY) -m pytest tests/api/test_prometheus.py --write-dashboards

gpu-check: $(DEV_STAMP) ## On a machine with GPUs: NCCL, bf16, the comparison table; writes docs/gpu.md
	$(PY) -m benchmarks.gpu

upgrade-images: ## Build the operator of FROM=COMMIT and the present one, for `make upgrade-check`
	rm -rf .upgrade && mkdir .upgrade && git archive '$(FROM)' | tar -x -C .upgrade
	$(MAKE) -C .upgrade images IMAGES=operator VERSION=before
	$(MAKE) images IMAGES=operator
	tests/e2e/foreign/build

upgrade-check: $(DEV_STAMP) ## On kind: upgrade from FROM's operator while jobs run; nothing may restart
	$(PY) -m tests.e2e.upgrade .upgrade

lock: ## Write requirements/*.txt anew; needs uv
	@uv=$$(command -v uv || command -v $(VENV)/bin/uv) || { echo 'error: uv not found: $(VENV)/bin/pip install uv' >&2; exit 1; }; \
	compile() { "$$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-strip-extras --no-emit-index-url --no-header --no-annotate $(LOCK_FLAGS) "$$@"; }; set -x; \
	compile --extra dev pyproject.toml -o requirements/dev.txt; \
	compile -c requirements/dev.txt pyproject.toml -o requirements/cli.txt; \
	for list in operator build docs torch; do \
	  compile -c requirements/dev.txt requirements/$$list.in -o requirements/$$list.txt; done; \
	compile --no-deps requirements/vision.in -o requirements/vision.txt; \
	for list in hf accelerate notebook; do \
	  hf=(); [ $$list = hf ] || hf=(-c requirements/hf.txt); \
	  compile -c requirements/dev.txt -c requirements/torch.txt "$${hf[@]}" requirements/$$list.in \
	    $$(sed -n 's/^\([a-z0-9-]*\)[=[].*/--no-emit-package \1/p' requirements/torch.txt) -o requirements/$$list.txt; done

clean: ## Remove what can be made again, .venv included
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .upgrade
	find operator images tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(PY):
	@command -v $(PYTHON) >/dev/null || { echo 'error: $(PYTHON) not found: install Python 3.11 or newer, or set PYTHON' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $$($(PYTHON) -V) is too old: \
	install Python 3.11 or newer, and set PYTHON, as in make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo 'error: $(PYTHON) has no venv module:' \
	'install it (Debian, Ubuntu: apt install python3-venv)' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The lists agree with each other, so they go in together; $(2) are those on top of torch. Our own packages last,
# without looking at dependencies. From TORCH_INDEX come torch and the torchvision that was built for it, and nothing
# else: as one of two indexes, it would be passed over for the default one where it has no answer.
define install
$(PY) -m pip install --require-hashes -r requirements/build.txt $(1) $(if $(TORCH_INDEX),,-r requirements/torch.txt)
$(if $(TORCH_INDEX),$(call from_torch_index,torch,) && $(PY) -m pip install -r requirements/torch.in)
$(if $(2),$(PY) -m pip install --no-deps --require-hashes $(2))
$(if $(and $(2),$(TORCH_INDEX)),$(call from_torch_index,torchvision,--force-reinstall))
$(PY) -m pip install --no-deps --no-build-isolation -e . -e images/trainer
touch $@
endef

from_torch_index = $(PY) -m pip install --no-deps $(2) --index-url '$(TORCH_INDEX)' "$$(grep -ho '^$(1)==[^ ]*' requirements/*.in)"

$(RUN_STAMP): | $(PY)
	$(call install,-r requirements/cli.txt,)

$(DEV_STAMP): | $(PY)
	$(call install,-r requirements/dev.txt,-r requirements/vision.txt -r requirements/hf.txt -r requirements/notebook.txt)
	touch $(RUN_STAMP)

$(DOCS_STAMP): | $(DEV_STAMP)
	$(PY) -m pip install --require-hashes -r requirements/docs.txt
	touch $@
