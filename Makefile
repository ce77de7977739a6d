# Grebe. Only Go is needed: everything else comes as Go modules, fetched on first use.
# `make demo` shows it, `make test` checks it; `make help` lists the rest.

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)

# Packages whose tests share memory between goroutines.
CONCURRENT := ./compute/cpu/internal/team ./pool ./embed/... ./kv/... ./engine ./catalog/... ./reuse/... ./dispatch/... ./generate ./app/divide ./serve/... ./server/... ./cluster/... ./bench/load

# Packages with assembly. Where it is left out, and on other architectures, they have other files.
ASSEMBLED := ./compute/cpu/... ./beam ./embed ./evict ./kv/proto ./bench/embed ./bench/gemm

# Tests of the engine run on the processor's kernels of each level, and on "far": the best of them with memory that the host cannot see.
# Where kernels are not what is tested, far alone runs.
ONELEVEL := /^(plain|avx2|avx512|amx)(_|$$)

# The race detector needs cgo and a C compiler, which nothing else does. Tests are left out there that compute much, where others run the
# same goroutines with less to compute: TestTeacher (TestProducts), TestTransformers (TestSameBitsCachedOrBatched) and
# TestTenThousandCandidates (TestReuseConcurrently), nine of the twelve seeds of TestReuseChangesNoScore (one for each place of memory stays),
# and power cuts of the catalog's versions (TestVersionsAreWhatTheCatalogWas, TestKill).
NORACE := ^(TestTeacher|TestTransformers|TestTenThousandCandidates|TestVersionsSurviveKillsAndPowerCuts)$$|^TestReuseChangesNoScore$$/^(0|3|[5-9]|1[01])$$|$(ONELEVEL)
HAVE_CC := $(shell command -v gcc || command -v clang)

FUZZTIME ?= 60s

# What hangs ends after this, per package. Go's own limit of 10 minutes is not far on a machine that is slow or shared.
LIMIT ?= 30m

# `make lint` vets everything once: go test need not do it again for each way of building. Two hundred binaries are linked
# without symbols of debuggers, which takes half as long; stacks name functions and lines without them, too.
TEST := $(GO) test -vet=off -ldflags '-s -w' -timeout $(LIMIT)

.PHONY: help
help: ## list the targets
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

.PHONY: build
build: ## build bin/grebe and bin/grebe-bench
	@test -x bin/grebe || echo "The first build takes some minutes: it compiles all modules."
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/grebe ./cmd/grebe-bench

.PHONY: image
image: build ## write bin/grebe-image.tar, a container image for docker load or podman load; needs no container runtime
	$(GO) run ./deploy/image bin/grebe bin/grebe-image.tar grebe:$(VERSION)

# Architectures whose container images a release has. Images of others need their C library: Debian's libc6-arm64-cross or libc6-amd64-cross.
IMAGES ?= $(shell $(GO) env GOHOSTARCH)
# The time of all files in a release.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

.PHONY: release
release: ## write bin/release: archives, Debian packages, container image, chart, bills of materials, checksums (VERSION, IMAGES)
	rm -rf bin/release bin/release-binaries && mkdir -p bin/release
	for arch in amd64 arm64; do CGO_ENABLED=0 GOOS=linux GOARCH=$$arch $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' \
	  -o bin/release-binaries/$$arch/ ./cmd/grebe ./cmd/grebe-bench || exit 1; done
	for arch in $(IMAGES); do \
	  $(GO) run ./deploy/image bin/release-binaries/$$arch/grebe bin/release/grebe-image-$(VERSION)-linux-$$arch.tar grebe:$(VERSION) || exit 1; done
	$(GO) run ./deploy/release bin/release-binaries bin/release $(VERSION) $(SOURCE_DATE_EPOCH)

.PHONY: demo
demo: build ## build and run the demo on 127.0.0.1:8080
	./bin/grebe demo

.PHONY: redis
redis: ## install redis-server for the tests that need one, where that can be done
	@command -v redis-server >/dev/null || { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get install -y redis-server >/dev/null; } || \
	echo "redis-server is not installed: tests of tables in Redis are skipped"

.PHONY: browser
browser: ## install chromium for the test of the dashboard, where that can be done
	@command -v chromium >/dev/null || { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get install -y chromium >/dev/null; } || \
	echo "chromium is not installed: the test of the dashboard is skipped"

.PHONY: images
images: browser ## take the pictures of the dashboard in docs/images again
	CGO_ENABLED=0 GREBE_IMAGES=$(CURDIR)/docs/images $(TEST) -count 1 -run '^(TestDashboard|TestDemoCluster)$$' ./cmd/grebe

.PHONY: prose
prose: ## report how long the sentences of the documents and of package comments are
	CGO_ENABLED=0 $(TEST) -count 1 -v -run SentencesAreShort ./internal/prose

# Fetched for the tests only, and compared with its checksum: nothing of it is in the repository or in a release.
AXE := axe-core-4.14.0
AXE_SHA256 := 2277b0a3ef47af9b52497faa3e71598e86e0a0e5e6eb295207a5657ede4709af

.PHONY: axe
axe: ## fetch axe-core, which checks that people with disabilities can use the dashboard, where npm is there
	@mkdir -p bin/axe && cd bin/axe && { [ -f package/axe.min.js ] || { \
	  npm pack --silent $(AXE:axe-core-%=axe-core@%) >/dev/null && \
	  echo "$(AXE_SHA256)  $(AXE).tgz" | sha256sum --check --status && tar xzf $(AXE).tgz package/axe.min.js package/LICENSE; }; } || \
	echo "axe-core cannot be fetched: the dashboard is checked without it"

.PHONY: clang
clang: ## install clang-19, which compiles the kernels of GPUs where there is none, where that can be done
	@command -v clang-19 >/dev/null || { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get install -y --no-install-recommends clang-19 >/dev/null; } || \
	echo "clang-19 is not installed: the kernels of GPUs are not compiled"

.PHONY: databases
databases: ## install MariaDB and PostgreSQL for the tests of imports from them, where that can be done
	@{ command -v mariadbd >/dev/null || [ -x /usr/sbin/mariadbd ]; } && ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || \
	{ command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get install -y --no-install-recommends mariadb-server postgresql >/dev/null; } || \
	echo "MariaDB or PostgreSQL is not installed: tests of imports from them are skipped"

.PHONY: test
test: redis databases browser axe clang test-unit test-race test-noasm test-invariants test-arm64 chart ## all tests

.PHONY: test-unit
test-unit: ## unit, conformance and end-to-end tests
	CGO_ENABLED=0 $(TEST) ./...

.PHONY: test-race
test-race: ## the concurrent packages under the race detector
ifeq ($(HAVE_CC),)
	@echo "race detector skipped: it needs a C compiler (gcc or clang)"
else
	CGO_ENABLED=1 $(TEST) -race -skip '$(NORACE)' $(CONCURRENT)
endif

# TestConformanceFar and the engine's tests on "far" are left out without assembly: that device hands the kernels the host's bytes behind
# its addresses, so they do there what they do elsewhere, and the translation of addresses is the same with assembly. So is what differs on
# one thread (plain-1).
.PHONY: test-noasm
test-noasm: ## the portable kernels
	CGO_ENABLED=0 $(TEST) -tags noasm -skip '^TestConformanceFar$$|/^(far(_|$$)|plain-1$$)' ./compute/cpu/... ./engine/...

.PHONY: test-invariants
test-invariants: ## with expensive self-checks compiled in
	CGO_ENABLED=0 $(TEST) -tags invariants -skip '^TestTransformers$$|$(ONELEVEL)' ./pool ./kv ./engine
	CGO_ENABLED=0 $(TEST) -tags invariants -run Reuse ./serve

.PHONY: cluster-test
cluster-test: ## campaigns of faults in clusters; the other tests run short forms of them
	GREBE_REPLICA_KILLS=50 CGO_ENABLED=0 $(GO) test -timeout $(LIMIT) -count 1 -v -run ImportWithEtcd ./cluster/replica
	GREBE_TRIAL=full CGO_ENABLED=0 $(GO) test -timeout 90m -count 1 -v -run Trial ./cmd/grebe

.PHONY: test-arm64
test-arm64: ## check the types of everything for arm64
	$(GO) run ./internal/typecheck -arch arm64 ./...

# Helm and Kubernetes' types are in a module of their own: Grebe does not depend on them. A copy of its go.mod follows the versions of go.mod.
CHART := -mod=mod -modfile=$(CURDIR)/bin/chart.mod

.PHONY: chart
chart: ## render the chart for Kubernetes with Helm's engine and check its objects, where their modules can be had
	@mkdir -p bin && cp deploy/helm/check/go.mod bin/chart.mod && sort -u go.sum deploy/helm/check/go.sum >bin/chart.sum
	@if CGO_ENABLED=0 $(GO) -C deploy/helm/check list $(CHART) -deps -test . >/dev/null; then \
	  CGO_ENABLED=0 $(GO) -C deploy/helm/check test $(CHART) -timeout $(LIMIT) .; \
	else echo "the modules of deploy/helm/check cannot be fetched: the chart is not checked"; fi

.PHONY: lint
lint: ## vet, staticcheck, gofmt, go.mod and generated files
	$(GO) vet ./...
	CGO_ENABLED=0 $(GO) vet -tags noasm $(ASSEMBLED)
	$(GO) tool staticcheck ./...
	@files=$$(gofmt -l $$(git ls-files --cached --others --exclude-standard '*.go')); \
	if [ -n "$$files" ]; then echo "gofmt these files:"; echo "$$files"; exit 1; fi
	$(GO) mod tidy -diff
	.ci/generated

.PHONY: generate
generate: ## write the generated files again
	$(GO) generate ./...

.PHONY: bench
bench: build ## measure the kernels and the prefill
	./bin/grebe-bench gemm
	./bin/grebe-bench prefill

PYTHON ?= python3

.PHONY: bench-gpu
bench-gpu: ## measure the GPU, and PyTorch beside it; the binary may be built elsewhere
	@test -x bin/grebe-bench || $(MAKE) build
	./bin/grebe-bench gpu --peers $(PYTHON) $(if $(RANK),--rank $(RANK)) --file bin/bench-gpu.json

.PHONY: sanitize-gpu
sanitize-gpu: ## the GPU's conformance suite under compute-sanitizer; bin/cuda.test may be built elsewhere
	@test -x bin/cuda.test || CGO_ENABLED=0 $(GO) test -c -o bin/cuda.test ./compute/cuda
	compute/cuda/sanitize.sh bin/cuda.test bin/sanitize

.PHONY: gpu-check
gpu-check: ## logits from every tier of KV on a GPU, with scratch for 1 to 8 layers; bin/grebe-bench may be built elsewhere
	@test -x bin/grebe-bench || $(MAKE) build
	./bin/grebe-bench tiers --device cuda

.PHONY: fuzz
fuzz: ## each fuzz test for FUZZTIME
	@set -e; for file in $$(grep -rl --include='*_test.go' '^func Fuzz' .); do \
	  for f in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$file); do \
	    echo "fuzz $$(dirname $$file) $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s $$(dirname $$file); \
	  done; done

.PHONY: replay
replay: build ## record what the binary OLD decides in seven thousand requests of each kind, and decide it again (KINDS, DIR)
	@test -n "$(OLD)" || { echo "name a binary to record with: make replay OLD=../before/bin/grebe"; exit 2; }
	./bin/grebe-bench replay --record $(OLD) --dir $(or $(DIR),bin/replay) $(if $(KINDS),--kinds $(KINDS))

.PHONY: upgrade
upgrade: ## open a data_dir that the binary OLD wrote, stopped and killed: all is there, KV is reused, answers are the same
	@test -n "$(OLD)" || { echo "name a binary to upgrade from: make upgrade OLD=../before/bin/grebe"; exit 2; }
	CGO_ENABLED=0 GREBE_OLD=$(abspath $(OLD)) $(GO) test -count=1 -v -run Upgrade ./cmd/grebe

N ?= 40

.PHONY: mutate
mutate: ## change PKG in N random places, one at a time, and print the changes that no test notices (SEED, WITH, RACE=1)
	@test -n "$(PKG)" || { echo "name a package: make mutate PKG=./catalog"; exit 2; }
	$(GO) run ./internal/mutate -n $(N) $(if $(SEED),-seed $(SEED)) $(if $(WITH),-with $(WITH)) $(if $(RACE),-race) $(PKG)

.PHONY: crash
crash: ## kill servers, indexers, imports, streams, batches and backups 50 times each
	CGO_ENABLED=0 GREBE_CRASHES=50 $(GO) test -count=1 -v -run Killed ./cmd/grebe

.PHONY: journey
journey: ## Amazon Beauty from databases, streams and Parquet to recommendations; undo an import of 100,000 items
	CGO_ENABLED=0 GREBE_JOURNEY=full $(GO) test -count=1 -v -timeout 30m -run 'Journey|UndoUnderLoad' ./cmd/grebe

POWERLOSS ?= 20
.PHONY: powerloss
powerloss: ## kills, power cuts and failed syncs, POWERLOSS random sequences per package, the first at every change of a file
	CGO_ENABLED=0 GREBE_POWERLOSS=$(POWERLOSS) $(GO) test -count=1 -v -timeout 60m \
	    -run 'Survive|PowerCut|FailedSync|AfterAKill|Targets|StayRemoved|LeaveTheFiles|CutShort' \
	    ./internal/durable/... ./internal/pebbleopen ./kv/disk ./kv/proto ./catalog/... ./embed ./ingest ./app

.PHONY: damage
damage: ## damage every file of a data folder in eight ways, one at a time, and start on it
	CGO_ENABLED=0 GREBE_DAMAGE=all $(GO) test -count=1 -v -timeout 30m -run DamageOfTheDataFolder ./app

.PHONY: soak
soak: ## ten minutes at 80 % of capacity, with a restart in the middle
	CGO_ENABLED=0 GREBE_SOAK=10m $(GO) test -count=1 -v -timeout 20m -run Soak ./cmd/grebe

.PHONY: chaos
chaos: ## ten minutes of faults, under the race detector: every answer beside that of a server without caches
	CGO_ENABLED=1 $(GO) build -race -o bin/grebe-race ./cmd/grebe
	GREBE_BINARY=$(CURDIR)/bin/grebe-race GREBE_CHAOS=10m $(GO) test -count=1 -v -timeout 30m -run Chaos ./cmd/grebe

SEEDS ?= 500
.PHONY: metamorphic
metamorphic: ## SEEDS random servers and requests in one process: every answer is that of a server without caches (SEED is the first)
	CGO_ENABLED=0 GREBE_SEEDS=$(SEEDS) $(if $(SEED),GREBE_SEED=$(SEED)) $(GO) test -count=1 -v -timeout 120m -run Metamorphic ./app

.PHONY: clean
clean: ## remove what was built
	rm -rf bin
