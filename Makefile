# `make` lists the targets. Every target works from a clean clone; what has to be built first is built once and kept
# outside the repository.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# A KUBECONFIG of the user's means a cluster of the user's: it is used as it is, and ours is neither started nor stopped.
OWN_KUBECONFIG := $(CURDIR)/.cluster/kubeconfig
KUBECONFIG ?= $(OWN_KUBECONFIG)
export KUBECONFIG
CLUSTER := cd hack/cluster && go run .
own_cluster = [ "$(KUBECONFIG)" = "$(OWN_KUBECONFIG)" ]

# How many seconds each fuzz target runs in `make unit`; those of schemas and conditions run six times as long.
FUZZTIME ?= 10

##@ See it work

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} \
		/^##@ / {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z0-9-]+:.*## / {printf "  %-14s  %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Local cluster, images, Callgate in it, sample tools and calls; leaves the cluster up
	@echo "The first run builds Kubernetes from source: about ten minutes on two cores. After that it takes seconds,"
	@echo "from a cache outside the repository."
	@hack/steps.sh \
		"cluster"                                "$(MAKE) cluster-up" \
		"images"                                 "$(MAKE) images" \
		"Callgate in the cluster"                "$(MAKE) deploy" \
		"sample tools, policies and calls"       "hack/demo.sh"
	@echo "The cluster is still up (KUBECONFIG=$(KUBECONFIG)); 'make demo-down' removes everything."

.PHONY: demo-down
demo-down: ## Remove all of the demo
	@if $(own_cluster); then $(MAKE) cluster-down; else hack/demo.sh down; fi

##@ Develop

.PHONY: build
build: ## Compile the commands into bin/
	@mkdir -p bin
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/ ./cmd/...

.PHONY: generate
generate: ## Write the deepcopy functions of the API types
	hack/tool.sh controller-gen object:headerFile=hack/boilerplate.go.txt paths=./api/...

# No descriptions are cut: `make verify` checks that every CRD stays below the size that client-side apply can carry.
.PHONY: manifests
manifests: ## Write the CRDs from the API types
	hack/tool.sh controller-gen crd paths=./api/... output:crd:dir=config/crd/bases

.PHONY: chart
chart: ## Write the Helm chart from config/
	@cd hack/tools && go run ./chart ../../config ../../charts/callgate

.PHONY: fmt
fmt: ## Format the Go code
	@git ls-files -co --exclude-standard '*.go' | xargs -r gofmt -l -w

##@ Test

.PHONY: test
test: ## Every suite: lint, verify, unit, envtest, e2e; with times and a report
	@hack/test.sh

.PHONY: lint
lint: ## golangci-lint over every module, and the API linter over api/
	@hack/lint.sh

.PHONY: verify
verify: ## Generated files, modules and formatting are as they should be
	@hack/verify.sh

.PHONY: unit
unit: ## Unit tests of every module and FUZZTIME (10 seconds) of each fuzz target
	@hack/unit.sh $(FUZZTIME)

.PHONY: envtest
envtest: ## The API, the admission policies and the reconcilers against a real API server and etcd
	@(cd hack/cluster && go run . build)
	@assets="$$(cd hack/cluster && go run . assets)" && \
		KUBEBUILDER_ASSETS="$$assets" hack/gotest.sh -v -count=1 -timeout 10m ./controllers/... ./test/api/...

.PHONY: chart-test
chart-test: ## Lint and render the Helm chart with Helm 3 and 4, and compare it with config/default
	@hack/chart-test.sh

.PHONY: chart-check
chart-check: ## Install the Helm chart on the running cluster in place of what is there, run a call, put back what was there
	@hack/chart-check.sh

.PHONY: e2e
e2e: ## End-to-end tests on the running cluster, with Callgate deployed
	@hack/gotest.sh -v -count=1 -timeout 15m ./test/e2e/...

.PHONY: doctor
doctor: ## Try on the running cluster what Callgate promises, as a Job that is removed again; a table, and an error if a promise does not hold
	@hack/doctor.sh

# How many rounds of random kills of the controller `make test-faults` makes; each takes about a minute. SEED repeats a run.
ROUNDS ?= 3
export ROUNDS SEED

.PHONY: test-faults
test-faults: ## Whatever can fail fails, on the running cluster, with Callgate deployed; ROUNDS=10 for a soak
	@hack/gotest.sh -v -count=1 -parallel 6 -timeout $$((20 + 2 * $(ROUNDS)))m ./test/faults/...

.PHONY: test-abuse
test-abuse: ## Hostile tools under runc and gVisor, and an agent with the role edit, on the running cluster; prints a table
	@rm -f bin/abuse.txt
	@status=0; hack/gotest.sh -v -count=1 -parallel 6 -timeout 15m ./test/abuse/... || status=1; \
		cat bin/abuse.txt || status=1; exit $$status

.PHONY: bench
bench: ## Measure calls on the running cluster, with Callgate deployed; OUT=file.json writes the figures
	@cd test/bench && CGO_ENABLED=0 go run . $(if $(OUT),-out $(abspath $(OUT)))

.PHONY: bench-check
bench-check: ## Only that everything `make bench` measures can be measured; a minute
	@cd test/bench && CGO_ENABLED=0 go test . && CGO_ENABLED=0 go run . -check

.PHONY: docs-check
docs-check: ## The demo's calls and the commands of README and docs, on the running cluster
	@hack/demo.sh
	@hack/docs-check.sh

##@ Cluster

.PHONY: cluster-up
cluster-up: ## Start the local one-node cluster (idempotent; root and Linux)
	@if $(own_cluster); then $(CLUSTER) up; else \
		echo "KUBECONFIG=$(KUBECONFIG) is set: that cluster is used, ours is not started."; fi

.PHONY: cluster-down
cluster-down: ## Stop the local cluster and remove everything it made
	@if $(own_cluster); then $(CLUSTER) down; else \
		echo "KUBECONFIG=$(KUBECONFIG) is set: that cluster is not ours to stop."; fi

.PHONY: cluster-status
cluster-status: ## Say what runs and what does not
	@$(CLUSTER) status

.PHONY: cluster-load
cluster-load: ## Load an image: make cluster-load TAR=image.tar
	@[ -n "$(TAR)" ] || { echo "Say which: make cluster-load TAR=image.tar" >&2; exit 2; }
	@$(CLUSTER) load "$(abspath $(TAR))"

.PHONY: images
images: ## Build all images into .cluster/images and load them into the local cluster
	@if $(own_cluster); then cd hack/samples && go run ./images -load; else \
		(cd hack/samples && go run ./images); \
		echo "KUBECONFIG=$(KUBECONFIG) is set: load the images of .cluster/images into that cluster yourself, for example"; \
		echo "  kind load image-archive FILE    or    k3d image import FILE    or, on the node, ctr -n k8s.io images import FILE"; fi

.PHONY: deploy
deploy: ## Install Callgate into the cluster, or replace the one that is there
	@hack/deploy.sh
