# `make` shows the targets. Each is one script of hack/, which can be run alone as well.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test soak bench build generate lint test-unit test-api test-e2e test-install test-cluster cluster-up cluster-down install diagnose clean

help: ## Show this
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## The main job on a real cluster: a session made, a tool called, the session deleted and proved gone
	@hack/demo.sh

test: ## Everything: lint, unit, API-level, e2e and install tests, on the test cluster
	@hack/test.sh

soak: ## The e2e tests with their full counts, each figure printed
	@hack/soak.sh

bench: ## What Berth costs, beside what it is compared with: a table, and target/bench.json
	@hack/bench.sh

build: ## Build the static release binaries
	@hack/build.sh

generate: ## Write the CRDs and the chart's copies of them from the Rust types
	@hack/generate.sh

lint: ## Format, clippy, direction of imports, generated files, charts, dependencies
	@hack/lint.sh

test-unit: ## Unit tests: no cluster
	@hack/test-layer.sh unit

test-api: install ## API-level tests on a cluster: CRD rules, messages, kubectl explain
	@hack/test-layer.sh api

test-e2e: install ## End-to-end tests on a cluster with Berth
	@hack/test-layer.sh e2e

test-install: install ## Upgrade, rollback and uninstall of the charts on a cluster with Berth
	@hack/test-layer.sh install

test-cluster: ## Tests of the test cluster itself, beside any that is up
	@tests/cluster/selftest

cluster-up: ## Bring up the test cluster (a real single-node Kubernetes on this machine)
	@hack/cluster.sh up

cluster-down: ## Remove the test cluster
	@hack/cluster.sh down

install: cluster-up build ## Build Berth and install it, or upgrade it, on the cluster
	@hack/images.sh
	@hack/install.sh

diagnose: ## Print pods, sessions, events and logs of the cluster
	@hack/diagnose.sh

clean: cluster-down ## Remove the test cluster and what was built; the cache of tools stays
	@cargo clean
