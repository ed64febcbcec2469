# Kip on one machine. `make help` lists what there is.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Arguments of `make run`, such as ARGS=--once.
ARGS ?=
# Ordinary nodes of `make run`, beside the virtual one.
NODES ?= 0
# Its cloud: local, qemu, aws (a model of EC2) or aws-vm (the same before virtual machines).
CLOUD ?= local
# pod has Kip installed by its chart, as a pod of an ordinary node, with a model of EC2; else it is a process of this machine.
KIP :=
GO ?= go
BIN := bin

# Some repositories are owned by another user than root, and then Go cannot ask
# git; the version is given below instead. What only debuggers read is left out: the client of Kubernetes then compiles with 200 s
# of CPU instead of 236.
export GOFLAGS += -buildvcs=false -gcflags=all=-dwarf=false
# A tarball may lie in another project's checkout.
COMMIT := $(shell [ -e .git ] && git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
VERSION ?= v0.0.0-$(COMMIT)

MODULE := github.com/elotl/kip
K8S_VERSION := $(shell awk '$$1 == "k8s.io/kubernetes" {print $$2}' go.mod)
K8S_MAJOR := $(patsubst v%,%,$(word 1,$(subst ., ,$(K8S_VERSION))))
K8S_MINOR := $(word 2,$(subst ., ,$(K8S_VERSION)))
# What Kubernetes' parts say when they are asked for their version.
K8S_LDFLAGS := $(foreach p,k8s.io/component-base/version k8s.io/client-go/pkg/version,\
	-X $(p).gitVersion=$(K8S_VERSION) -X $(p).gitMajor=$(K8S_MAJOR) -X $(p).gitMinor=$(K8S_MINOR))
LDFLAGS := -s -w -X $(MODULE)/internal/version.Version=$(VERSION) $(K8S_LDFLAGS)

# containerd's snapshotters that no cell has.
ITZO_TAGS := no_btrfs,no_zfs,no_devmapper

SHOW := hack/with-progress
# The compiler spends a fifth less where it collects its garbage less often: measured on what is largest here, the SDK of EC2,
# 83 s of CPU and 66.
COMPILE = GOGC=400 $(SHOW) "building $@" $(GO)
BUILD = CGO_ENABLED=0 $(COMPILE) build -trimpath -ldflags "$(LDFLAGS)"

# The packages that do not link Kubernetes' own code, and those that do, which take
# minutes to compile with -race.
PACKAGES = $(GO) list -f '{{.ImportPath}} {{join .Deps " "}}' ./...
UNIT = $(shell $(PACKAGES) | awk '!/ k8s\.io\/kubernetes\// {print $$1}')
LINK_KUBERNETES = $(shell $(PACKAGES) | awk '/ k8s\.io\/kubernetes\// {print $$1}')

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-19s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo '  make run ARGS=--once     the same, but end after the example'
	@echo '  make run CLOUD=aws       with a model of EC2 before the cells'
	@echo '  make run CLOUD=qemu      with cells that are virtual machines'
	@echo '  make run CLOUD=aws-vm    with a model of EC2 before such machines, which boot the image as an AMI'
	@echo '  make run NODES=1         with an ordinary node beside Kip'"'"'s'
	@echo '  make run KIP=pod         with Kip as a pod of that node, installed by its Helm chart'
	@echo '  make run ARGS=--zones=a,b  with a virtual node for each zone'

##### run

.PHONY: run
run: $(if $(filter qemu aws-vm,$(CLOUD)),run-image,build) $(if $(filter pod,$(KIP)),$(BIN)/helm local-images) ## a control plane, Kip and an example pod on a cell, on this machine; as root
	@exec $(BIN)/kip-dev run $(if $(filter pod,$(KIP)),--nodes=$(NODES:0=1) --cloud=aws --chart=deploy/helm/kip \
		--images=$(BIN)/images/kip,--nodes=$(NODES) --cloud=$(CLOUD)) $(ARGS)

# Of what Debian has now, as make boot does.
.PHONY: run-image
run-image:
	@hack/prerequisites --boot
	@$(MAKE) --no-print-directory image IMAGE_FORMATS=raw,qcow2 IMAGE_GONE=newest

.PHONY: stop
stop: build ## end and remove what a killed run left on this machine; as root
	@$(BIN)/kip-dev clean $(ARGS)

##### build

# What is in the boot image and in the agent for other images.
IMAGED := itzo itzo-containerd itzo-lite itzo-boot runc pause ptp host-local portmap
PROGRAMS := kip kipctl kip-image itzo itzo-containerd itzo-lite itzo-boot kip-dev kip-node runc pause coredns ptp host-local portmap

.PHONY: build
build: prerequisites announce $(PROGRAMS:%=$(BIN)/%) $(BIN)/kubectl ## all programs, into bin/

.PHONY: prerequisites
prerequisites: ## install what this machine lacks, where that is possible
	@hack/prerequisites

.PHONY: announce
announce:
	@mkdir -p $(BIN)
	@[ -n '$(CROSS)' ] || [ -x $(BIN)/kip-dev ] || echo 'building Kip, a kubelet, containerd and a control plane: the first time takes some 14 minutes on two cores'

# Go itself knows what has to be built again, so the rules always ask it.
.PHONY: FORCE
FORCE:

$(BIN)/kip $(BIN)/kipctl $(BIN)/kip-image $(BIN)/itzo-boot $(BIN)/kip-dev $(BIN)/kip-node: $(BIN)/%: FORCE | announce
	@$(BUILD) -o $@ ./cmd/$*

$(BIN)/itzo $(BIN)/itzo-containerd $(BIN)/itzo-lite: $(BIN)/%: FORCE | announce
	@$(BUILD) -tags $(ITZO_TAGS) -o $@ ./cmd/$*

# runc wants C for the seccomp filters that pods ask for.
$(BIN)/runc: FORCE | announce
	@CGO_ENABLED=1 $(COMPILE) -C image/runc build -trimpath -tags seccomp,netgo,osusergo \
		-ldflags '-s -w -extldflags "-static"' -o $(CURDIR)/$@ github.com/opencontainers/runc

# In modules of their own.
$(BIN)/coredns: FORCE | announce
	@CGO_ENABLED=0 $(COMPILE) -C dev/dns/coredns build -trimpath -ldflags '-s -w' -o $(CURDIR)/$@ .

$(BIN)/ptp: CNI := main
$(BIN)/host-local: CNI := ipam
$(BIN)/portmap: CNI := meta
$(BIN)/ptp $(BIN)/host-local $(BIN)/portmap: $(BIN)/%: FORCE | announce
	@CGO_ENABLED=0 $(COMPILE) -C image/cni build -trimpath -ldflags '-s -w' \
		-o $(CURDIR)/$@ github.com/containernetworking/plugins/plugins/$(CNI)/$*

# For another architecture its programs are built first, into a folder of their own: runc and
# pause want a C compiler for it. IMAGE_PROGRAMS is where they are already.
HOST_ARCH := $(shell $(GO) env GOHOSTARCH)
IMAGE_ARCH ?= $(HOST_ARCH)
FOREIGN_PROGRAMS := $(BIN)/$(IMAGE_ARCH)
IMAGE_PROGRAMS ?= $(if $(filter $(HOST_ARCH),$(IMAGE_ARCH)),$(BIN),$(FOREIGN_PROGRAMS))
IMAGE_NEEDS := $(if $(filter $(BIN),$(IMAGE_PROGRAMS)),build,$(BIN)/kip-image $(if $(filter $(FOREIGN_PROGRAMS),$(IMAGE_PROGRAMS)),foreign-programs))
CROSS := $(if $(filter $(HOST_ARCH),$(IMAGE_ARCH)),,$(patsubst arm64,aarch64,$(patsubst amd64,x86_64,$(IMAGE_ARCH)))-linux-gnu-)
.PHONY: foreign-programs
foreign-programs:
	@hack/prerequisites --cross '$(IMAGE_ARCH)'
	@mkdir -p $(FOREIGN_PROGRAMS)
	@GOARCH=$(IMAGE_ARCH) PKG_CONFIG_LIBDIR=/usr/lib/$(patsubst %-,%,$(CROSS))/pkgconfig $(MAKE) --no-print-directory \
		BIN=$(FOREIGN_PROGRAMS) CC=$(CROSS)gcc image-programs

.PHONY: image-programs
image-programs: $(IMAGED:%=$(BIN)/%)

IMAGE_FORMATS ?= raw,qcow2,tar.gz,vhd
IMAGE_GONE ?= fail
# nvidia for an image with the driver of NVIDIA. It is of the command line alone: the environment of some machines has a VARIANT.
VARIANT :=
.PHONY: image
image: $(IMAGE_NEEDS) ## the boot image of cells, into bin/image (VARIANT=nvidia, IMAGE_ARCH=, IMAGE_PROGRAMS=, IMAGE_FORMATS=, IMAGE_GONE=)
	@$(BIN)/kip-image build -arch=$(IMAGE_ARCH) -variant='$(VARIANT)' -programs=$(IMAGE_PROGRAMS) -formats=$(IMAGE_FORMATS) -out=$(BIN)/image -gone=$(IMAGE_GONE)

.PHONY: agent
agent: $(IMAGE_NEEDS) ## the agent for a Linux of one's own, bin/image/kip-agent-ARCH.tar.gz (IMAGE_ARCH=, IMAGE_PROGRAMS=)
	@$(BIN)/kip-image agent -arch=$(IMAGE_ARCH) -programs=$(IMAGE_PROGRAMS) -out=$(BIN)/image

# bin/OS-ARCH/PROGRAM, for other systems than this one. They need no C.
IMAGE_ARCHS ?= amd64 arm64
CONTAINER_PROGRAMS := $(foreach arch,$(IMAGE_ARCHS),$(BIN)/linux-$(arch)/kip $(BIN)/linux-$(arch)/kipctl)
RELEASE_SYSTEMS ?= linux-amd64 linux-arm64 darwin-amd64 darwin-arm64 windows-amd64 windows-arm64
RELEASE_PROGRAMS := $(foreach system,$(RELEASE_SYSTEMS),$(BIN)/$(system)/kipctl$(if $(filter windows-%,$(system)),.exe))
$(sort $(CONTAINER_PROGRAMS) $(RELEASE_PROGRAMS)): FORCE
	@system='$(notdir $(@D))'; GOOS=$${system%-*} GOARCH=$${system#*-} $(BUILD) -o $@ ./cmd/$(basename $(@F))

IMAGE_REGISTRY ?=
IMAGE_TAG ?= $(VERSION)
# Images and releases have the commit's time, so that the same commit makes the same bytes. Other programs read this variable, too.
OF_COMMIT = SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$(shell [ -e .git ] && git log -1 --format=%ct 2>/dev/null || echo 0)}
.PHONY: images
images: $(BIN)/kip-image $(CONTAINER_PROGRAMS) ## the container images of Kip, into bin/images, and into a registry: IMAGE_REGISTRY=ghcr.io/team (IMAGE_TAG=, IMAGE_ARCHS=, IMAGE_GONE=)
	@$(OF_COMMIT) $(BIN)/kip-image container -archs='$(IMAGE_ARCHS)' -programs=$(BIN) -out=$(BIN)/images -gone='$(IMAGE_GONE)' \
		-revision='$(shell [ -e .git ] && git rev-parse HEAD 2>/dev/null)' -registry='$(IMAGE_REGISTRY)' -tag='$(IMAGE_TAG)' -boot=$(BIN)/image

# For this host, of what Debian has now.
.PHONY: local-images
local-images:
	@$(MAKE) --no-print-directory images IMAGE_ARCHS=$(HOST_ARCH) IMAGE_GONE=newest

# A boot image is in it where make image has built one.
RELEASE_URL ?= https://github.com/elotl/kip/releases/download/$(VERSION)
RELEASE_NEEDS := $(filter-out kip-image itzo-boot,$(PROGRAMS))
.PHONY: release
release: build agent $(RELEASE_PROGRAMS) ## the files of a release, into bin/release: VERSION=v1.2.3 (RELEASE_SYSTEMS=, RELEASE_URL=, IMAGE_REGISTRY=)
	@$(OF_COMMIT) $(BIN)/kip-image release -bin=$(BIN) -systems='$(RELEASE_SYSTEMS)' -programs='$(RELEASE_NEEDS)' -out=$(BIN)/release -url='$(RELEASE_URL)' \
		$(if $(IMAGE_REGISTRY),-registry='$(IMAGE_REGISTRY)')

.PHONY: image-lock
image-lock: $(BIN)/kip-image ## pin the versions that Debian has now of the boot image's packages
	@$(BIN)/kip-image lock

# For the end-to-end tests. Compiled as the unit tests are. It and the next can open cloud.sim, too.
$(BIN)/race/kip: FORCE | announce
	@CGO_ENABLED=1 $(COMPILE) build -race -ldflags "$(LDFLAGS)" -o $@ ./test/simkip

# For the benchmarks.
$(BIN)/sim/kip: FORCE | announce
	@$(BUILD) -o $@ ./test/simkip

.PHONY: older
older: | announce
	@hack/older '-s -w -X $(MODULE)/internal/version.Version=v0.0.0-older $(K8S_LDFLAGS)' '$(ITZO_TAGS)'

# Made by its own kip-image, in .kip/older/images. hack/older removes it with the programs.
.PHONY: older-image
older-image: older
	@[ -e .kip/older/why ] || [ -e .kip/older/images/kip/index.json ] || $(SHOW) "building the older Kip's image" .kip/older/bin/kip-image container \
		-archs=$(HOST_ARCH) -programs=.kip/older -out=.kip/older/images -gone=newest -revision="$$(cat .kip/older/commit)"

$(BIN)/metrics-server: FORCE | announce
	@CGO_ENABLED=0 $(COMPILE) -C test/metricsserver build -trimpath -ldflags '-s -w' -o $(CURDIR)/$@ sigs.k8s.io/metrics-server/cmd/metrics-server

# Controllers that evict, resize and scale pods, beside Kip's.
EVICTORS := $(BIN)/descheduler $(BIN)/vpa-updater $(BIN)/vpa-admission-controller
$(BIN)/descheduler: EVICTOR := sigs.k8s.io/descheduler/cmd/descheduler
$(BIN)/vpa-updater: EVICTOR := k8s.io/autoscaler/vertical-pod-autoscaler/pkg/updater
$(BIN)/vpa-admission-controller: EVICTOR := k8s.io/autoscaler/vertical-pod-autoscaler/pkg/admission-controller
$(EVICTORS): FORCE | announce
	@CGO_ENABLED=0 $(COMPILE) -C test/evictors build -trimpath -ldflags '-s -w' -o $(CURDIR)/$@ $(EVICTOR)

# Of 400 modules: the first build takes ten minutes of CPU.
KEDA := $(BIN)/keda-operator $(BIN)/keda-adapter
$(KEDA): $(BIN)/keda-%: FORCE | announce
	@CGO_ENABLED=0 $(COMPILE) -C test/keda build -trimpath -ldflags '-s -w' -o $(CURDIR)/$@ github.com/kedacore/keda/v2/cmd/$*

.PHONY: neighbours
neighbours: $(EVICTORS) $(KEDA) bench-tools

# Enforces NetworkPolicies on an ordinary node of the tests.
$(BIN)/networkpolicies: FORCE | announce
	@CGO_ENABLED=0 $(COMPILE) -C test/networkpolicies build -trimpath -ldflags '-s -w' -o $(CURDIR)/$@ .

# By which tests install Kip's chart, as users do.
$(BIN)/helm: FORCE | announce
	@CGO_ENABLED=0 $(COMPILE) -C hack/tools/helm build -trimpath -ldflags '-s -w' -o $(CURDIR)/$@ helm.sh/helm/v4/cmd/helm

$(BIN)/csidriver $(BIN)/mesh: FORCE | announce
	@CGO_ENABLED=0 $(COMPILE) build -trimpath -ldflags '-s -w' -o $@ ./test/$(@F)

# For machines that have none.
$(BIN)/kubectl: | announce
	@ln -sf kip-dev $@

$(BIN)/pause: cmd/pause/pause.c | announce
	@$(CC) -Os -static -s -Wall -Werror -o $@ $<

##### check

# What make test runs, and what each takes: CONTRIBUTING.md.
STAGES := build lint unit unit-kubernetes faults machines worlds
# At which a run ends and tells what did not finish. A machine with one core needs more.
DEADLINE ?= 85m
.PHONY: test
test: ## the tests of each change, in half an hour; as root
	@hack/prerequisites --test
	@$(MAKE) --no-print-directory test-tools
	@SHORT=-short .kip/bin/stages $(SETTINGS) -deadline $(DEADLINE) $(STAGES)

# Everything. Each shard is a target of its own, and takes at most 15 minutes.
E2E := e2e-1 e2e-2 e2e-3 e2e-4 e2e-5
INSTALL := install-1 install-2 install-3 install-4 install-5
FAULTS := faults-1 faults-2
SHARDS := lint unit unit-kubernetes $(FAULTS) fuzz benchmarks machines $(E2E) aws install-pods $(INSTALL) hostile tutorial boot boot-arm64 boot-nvidia qemu conformance-subset conformance-daemonsets eks other-worlds
# What has passed with one of these is not taken for passed with another.
SETTINGS := -settings 'SHORT STEPS FAULTS_SEED FAULTS_TIMEOUT FUZZTIME HOSTILE_SEED SUBSET_LIMIT ARGS GOFLAGS'
# SHARD=e2e stands for all its parts, and SHARD=boot for itself alone.
SHARDS_OF = $(or $(filter $(1),$(SHARDS)),$(filter $(1)-%,$(SHARDS)))
SHARD ?=
.PHONY: test-all
test-all: ## all tests, in shards: those that have not passed on these files, or SHARD='aws e2e-2'; hours; as root
	@hack/prerequisites --test
	@$(MAKE) --no-print-directory test-tools
	@$(foreach s,$(SHARD),$(if $(call SHARDS_OF,$(s)),,echo 'SHARD=$(s): want some of $(SHARDS)' >&2; exit 1;)) \
	SHORT= .kip/bin/stages $(SETTINGS) $(if $(SHARD),$(foreach s,$(SHARD),$(call SHARDS_OF,$(s))),-resume build $(SHARDS))

# With SHORT=-short the targets below leave out what test/tier gives to make test-all.
SHORT ?=
export SHORT
# It is hack/run-tests', and no target's.
unexport PART

.PHONY: test-tools
test-tools: .kip/bin/gotestsum .kip/bin/stages

.kip/bin/gotestsum: FORCE
	@CGO_ENABLED=0 $(COMPILE) -C hack/tools build -trimpath -o $(CURDIR)/$@ gotest.tools/gotestsum

.kip/bin/stages: FORCE
	@CGO_ENABLED=0 $(COMPILE) -C hack/tools build -trimpath -o $(CURDIR)/$@ ./stages

# Packages whose tests unit runs in another way, or another target does. MACHINES ask this host's kernel and programs,
# of which go test's cache does not know.
MACHINES := ./internal/cloud/host ./internal/cloud/local ./internal/agent/firewall ./internal/agent/network ./internal/agent/disks \
	./internal/agent/machine ./internal/agent/firstboot ./image
QEMU := ./internal/cloud/qemu/...
APART := $(shell $(GO) list $(MACHINES) $(QEMU) ./test/faults ./test/linkage)
# The race detector makes these take five times as long, and they start no goroutine.
WITHOUT_RACE := $(addprefix $(MODULE)/,internal/placement internal/quote internal/costs internal/policy internal/cloudconfig \
	internal/config internal/catalog hack/catalog test/oddpods test/cost)
.PHONY: unit
unit: test-tools ## tests without machines and without Kubernetes' own code
	@# What fails stops none after it. Four packages at once, since many wait for an etcd of their own. go test does
	@# not see when what test/linkage lists has changed, so that its cache is no help.
	@status=0; \
	CGO_ENABLED=0 hack/run-tests without-race . -trimpath -timeout 20m $(WITHOUT_RACE) || status=$$?; \
	hack/run-tests race . -race -p 4 -timeout 20m $(filter-out $(APART) $(WITHOUT_RACE),$(UNIT)) || status=$$?; \
	CGO_ENABLED=0 hack/run-tests linkage . -trimpath -count=1 ./test/linkage || status=$$?; \
	CGO_ENABLED=0 hack/run-tests tools hack/tools -trimpath ./... || status=$$?; \
	CGO_ENABLED=0 hack/run-tests render deploy/render -trimpath . || status=$$?; \
	exit $$status

# Compiled as the programs are, so without -race: with it Kubernetes is compiled again. Tests of dev/stack ask this host's
# kernel and nft, of which go test's cache does not know.
.PHONY: unit-kubernetes
unit-kubernetes: test-tools ## tests of the packages that link Kubernetes' own code
	@CGO_ENABLED=0 hack/run-tests kubernetes . -tags $(ITZO_TAGS) -trimpath -count=1 -timeout 20m $(LINK_KUBERNETES)

# The same histories each time, so that a failure comes from the change that is tested; 0 takes others.
export FAULTS_SEED ?= 1
FAULTS_TIMEOUT ?= 30m
FAULTS_RUN = GOGC=800 CGO_ENABLED=0 FAULTS_SHORT_STEPS=15000 FAULTS_SHORT_EVERY=8 hack/run-tests $@ . -trimpath -count=1 \
	-timeout $(FAULTS_TIMEOUT)
ONLY_EC2 := ^TestKipIsKilledInWhatOnlyEC2Has$$
BETWEEN_CALLS := ^TestKipIsKilledBetweenAnyTwoCallsToEC2$$
AT_EVERY_WRITE := ^TestKipIsKilledAtEveryWriteAndEveryCloudCall$$

# A process keeps one core busy, so that three keep two busy to the end: its random numbers are the same each time for all that
# it runs at once. The third looks for data races, in other histories.
.PHONY: faults $(FAULTS)
faults: test-tools ## random histories of faults in virtual time, and Kip killed at every write; STEPS=5000000 FAULTS_SEED=0 FAULTS_TIMEOUT=24h
	@$(MAKE) --no-print-directory -k -j 3 $(if $(SHORT),faults-half-1 faults-half-2,faults-rest faults-writes faults-calls faults-ec2) faults-race
faults-1: test-tools
	@$(MAKE) --no-print-directory -k -j 2 faults-calls faults-ec2
faults-2: test-tools
	@$(MAKE) --no-print-directory -k -j 3 faults-rest faults-writes faults-race

.PHONY: faults-half-1 faults-half-2 faults-calls faults-ec2 faults-writes faults-rest faults-race
faults-half-1 faults-half-2:
	@PART=$(@:faults-half-%=%)/2 $(FAULTS_RUN) ./test/faults
faults-calls:
	@$(FAULTS_RUN) -run '$(BETWEEN_CALLS)' ./test/faults
faults-ec2:
	@$(FAULTS_RUN) -run '$(ONLY_EC2)' ./test/faults
faults-writes:
	@$(FAULTS_RUN) -run '$(AT_EVERY_WRITE)' ./test/faults
faults-rest:
	@$(FAULTS_RUN) -skip '$(BETWEEN_CALLS)|$(ONLY_EC2)|$(AT_EVERY_WRITE)' ./test/faults
faults-race:
	@GOGC=800 FAULTS_SEED=1000001 FAULTS_SHORT_STEPS=2500 FAULTS_SHORT_EVERY=50 SHORT=-short \
		hack/run-tests $@ . -race -count=1 -timeout $(FAULTS_TIMEOUT) \
		$(if $(SHORT),-run '^TestRandomHistories$$|$(AT_EVERY_WRITE)') ./test/faults

DAY_PODS ?= 60
.PHONY: cloud-day
cloud-day: ## a day of AWS in virtual time, with all that goes wrong on some days, as a report; DAY_PODS=60 FAULTS_SEED=1
	@CGO_ENABLED=0 $(GO) test ./test/faults -trimpath -count=1 -timeout 2h -run '^TestADayOfAWS$$' -v -args -day-pods=$(DAY_PODS) -seed=$(FAULTS_SEED)

# Seconds for each target.
FUZZTIME ?= 10
.PHONY: fuzz
fuzz: ## each fuzz target for FUZZTIME seconds
	@hack/fuzz $(FUZZTIME)

# So that none rots; make bench measures.
BENCHMARKS = $(shell grep -rl --include='*_test.go' --exclude-dir=.kip '^func Benchmark' . | grep -v karpenter/ | xargs -n 1 dirname | sort -u)
.PHONY: benchmarks
benchmarks: build test-tools ## each benchmark once, and the tests of those beside Karpenter; as root
	@status=0; \
	KIP_BIN=$(CURDIR)/$(BIN) CGO_ENABLED=0 $(SHOW) 'each benchmark once' $(GO) test -vet=off -trimpath -tags $(ITZO_TAGS) -run '^$$' \
		-bench . -benchtime 1x -timeout 20m $(BENCHMARKS) || status=$$?; \
	CGO_ENABLED=0 hack/run-tests karpenter test/bench/karpenter -trimpath -timeout 20m ./... || status=$$?; \
	exit $$status

.PHONY: machines
machines: build test-tools ## tests that make machines of namespaces or ask the kernel, without a cluster; as root
	@KIP_BIN=$(CURDIR)/$(BIN) hack/run-tests machines . -race -count=1 -timeout 20m $(MACHINES) $(if $(SHORT),$(QEMU))

# Real clusters. Kip itself reports data races there.
WORLD = -tags e2e -trimpath -count=1 -timeout 60m -parallel 16
.PHONY: world-programs
world-programs: build test-tools $(BIN)/race/kip $(BIN)/helm $(if $(SHORT),,$(BIN)/metrics-server $(BIN)/csidriver $(BIN)/mesh older)

.PHONY: worlds
worlds: world-programs ## the core of the tests on real kubelets, for each cloud, with a hostile cell and as a new user; as root
	@# Without an image, as where Debian's mirror is away, all but the last three run.
	@status=0 packages='./test/e2e ./test/e2e/aws ./test/hostile ./test/e2e/tutorial'; \
	if make --no-print-directory run-image; then packages+=' ./test/e2e/awsvm'; else status=1; fi; \
	if make --no-print-directory local-images; then packages+=' ./test/e2e/pods ./test/e2e/install'; else status=1; fi; \
	CGO_ENABLED=0 SHORT=-short hack/run-tests worlds . $(WORLD) -p 2 $$packages || status=$$?; \
	exit $$status

.PHONY: e2e $(E2E)
e2e: $(E2E) ## tests with real machines and real kubelets on the local cloud; a fifth: make e2e-1; as root
$(E2E): world-programs
	@CGO_ENABLED=0 PART=$(@:e2e-%=%)/$(words $(E2E)) hack/run-tests $@ . $(WORLD) ./test/e2e

.PHONY: aws
aws: world-programs ## tests with real kubelets and a model of EC2; as root
	@CGO_ENABLED=0 hack/run-tests aws . $(WORLD) ./test/e2e/aws

# The same fuzzed requests each time; 0 takes others.
export HOSTILE_SEED ?= 1
.PHONY: hostile
hostile: build test-tools ## root on a cell, agents and pods that attack a real Kip, a line an attack; HOSTILE_SEED=0; as root
	@CGO_ENABLED=0 FORMAT=standard-verbose hack/run-tests hostile . $(WORLD) ./test/hostile

.PHONY: install-pods
install-pods: world-programs local-images ## what pods may expect of a Kip that its chart installed; as root
	@CGO_ENABLED=0 hack/run-tests $@ . $(WORLD) ./test/e2e/pods

.PHONY: install $(INSTALL)
install: install-pods $(INSTALL) ## Kip as a pod of an ordinary node: installed, upgraded and removed by its chart, and what pods may expect of it; a fifth: make install-1; as root
$(INSTALL): world-programs local-images older-image run-image $(BIN)/networkpolicies
	@CGO_ENABLED=0 PART=$(@:install-%=%)/$(words $(INSTALL)) hack/run-tests $@ . $(WORLD) ./test/e2e/install

.PHONY: tutorial
tutorial: build test-tools ## the README's first command and the tutorial, as a new user types them; as root
	@CGO_ENABLED=0 hack/run-tests tutorial . $(WORLD) ./test/e2e/tutorial

.PHONY: boot
boot: build test-tools run-image ## the boot image on emulated machines: agent, power button, one life, bad starts; as root
	@CGO_ENABLED=0 hack/run-tests boot . $(WORLD) -skip '^Test(ARM64|NVIDIA)' ./test/boot

.PHONY: boot-arm64
boot-arm64: build test-tools ## the boot image for arm64 on an emulated machine: agent, kubelet, power button; the programs of Kip's image for arm64; as root
	@hack/prerequisites --emulate arm64
	@$(MAKE) --no-print-directory images IMAGE_ARCHS=arm64 IMAGE_GONE=newest
	@$(MAKE) --no-print-directory image IMAGE_ARCH=arm64 IMAGE_FORMATS=raw IMAGE_GONE=newest
	@CGO_ENABLED=0 hack/run-tests boot-arm64 . $(WORLD) -run '^TestARM64' ./test/boot

.PHONY: boot-nvidia
boot-nvidia: build test-tools ## the boot image with NVIDIA's driver on an emulated machine without a GPU; as root
	@hack/prerequisites --boot
	@$(MAKE) --no-print-directory image VARIANT=nvidia IMAGE_FORMATS=raw IMAGE_GONE=newest
	@CGO_ENABLED=0 hack/run-tests boot-nvidia . $(WORLD) -run '^TestNVIDIA' ./test/boot

.PHONY: qemu
qemu: build test-tools run-image ## virtual machines: the cloud of this host, and pods on them; as root
	@status=0; \
	KIP_BIN=$(CURDIR)/$(BIN) hack/run-tests machines . -race -count=1 -timeout 20m $(QEMU) || status=$$?; \
	CGO_ENABLED=0 hack/run-tests qemu . $(WORLD) ./test/e2e/qemu || status=$$?; \
	exit $$status

.PHONY: eks
eks: world-programs local-images bench-tools ## Kip by deploy.sh in a cluster that a model shows as one of EKS, with Karpenter beside it; as root
	@KIP_BENCH_TOOLS=$(CURDIR)/.kip/bench CGO_ENABLED=0 hack/run-tests eks . $(WORLD) ./test/e2e/eks

# Worlds that no target above names.
OTHER_WORLDS = $(filter-out test/e2e test/e2e/aws test/e2e/eks test/e2e/pods test/e2e/install test/hostile test/e2e/tutorial test/boot test/e2e/qemu,\
	$(shell grep -rl --include='*_test.go' '^//go:build e2e' . | xargs -n 1 dirname | sort -u | sed 's|^\./||'))
.PHONY: other-worlds
other-worlds: world-programs run-image neighbours ## two families of addresses, virtual machines as instances of EC2, and what else has a cluster; as root
	@KIP_BENCH_TOOLS=$(CURDIR)/.kip/bench CGO_ENABLED=0 hack/run-tests other-worlds . $(WORLD) -p 1 $(addprefix ./,$(OTHER_WORLDS))

# Keys and region are those of the environment. A test runs it against the model of EC2.
.PHONY: cloud-contract
cloud-contract: ## what Kip asks of a cloud, a line a check, at any endpoint that speaks its API; CLOUD=aws ENDPOINT=http://127.0.0.1:5000 (ARGS=-h)
	@CGO_ENABLED=0 $(GO) build -trimpath -o .kip/contract ./test/contract && exec .kip/contract -cloud='$(CLOUD)' -endpoint='$(ENDPOINT)' $(ARGS)

.PHONY: bench
bench: build $(BIN)/sim/kip bench-tools $(if $(if $(ARGS),$(findstring boot,$(ARGS)),all),bench-peer run-image) ## measure, one line a figure (ARGS='-only real' and so on); as root
	KIP_BIN=$(CURDIR)/$(BIN) KIP_BENCH_TOOLS=$(CURDIR)/.kip/bench $(GO) run ./test/bench $(ARGS)

# Debian's cloud image is made of its packages.
.PHONY: bench-peer
bench-peer:
	@hack/prerequisites mmdebstrap

# Karpenter, to be measured beside Kip, in a module of its own.
.PHONY: bench-tools
bench-tools:
	@mkdir -p .kip/bench
	@for p in karpenter=sigs.k8s.io/karpenter/kwok kwok=sigs.k8s.io/kwok/cmd/kwok side-by-side=.; do \
		CGO_ENABLED=0 $(SHOW) "building $${p%%=*}" $(GO) -C test/bench/karpenter build -trimpath -o $(CURDIR)/.kip/bench/$${p%%=*} $${p#*=}; done

# Upstream's conformance tests, the programs in their images, and the runner, in a
# module of their own.
CONFORMANCE_PROGRAMS := ginkgo=github.com/onsi/ginkgo/v2/ginkgo agnhost=k8s.io/kubernetes/test/images/agnhost \
	nnp=k8s.io/kubernetes/test/images/nonewprivs regression-issue-74839=k8s.io/kubernetes/test/images/regression-issue-74839 sample-apiserver=k8s.io/sample-apiserver etcd=go.etcd.io/etcd/server/v3
CONFORMANCE_BUILD = GOGC=400 CGO_ENABLED=0 $(SHOW) "building $(1)" $(GO) -C test/conformance/upstream
.PHONY: conformance-tools
conformance-tools:
	@hack/prerequisites mmdebstrap
	@for p in $(CONFORMANCE_PROGRAMS); do \
		$(call CONFORMANCE_BUILD,$${p%%=*}) build -trimpath -ldflags "-s -w $(K8S_LDFLAGS)" -o $(CURDIR)/.kip/conformance/bin/$${p%%=*} $${p#*=}; done
	@$(call CONFORMANCE_BUILD,e2e.test) test -c -trimpath -ldflags "-s -w $(K8S_LDFLAGS)" -o $(CURDIR)/.kip/conformance/bin/e2e.test k8s.io/kubernetes/test/e2e

# Not go run, which would stand between it and signals.
CONFORMANCE = @CGO_ENABLED=0 $(GO) build -trimpath -o .kip/conformance/bin/conformance ./test/conformance && exec .kip/conformance/bin/conformance

# Specs that have passed on this commit are not run again, so the same command goes
# on after a kill. A crash of Kip fails it; nothing is run again by itself.
MODE ?= kip
SUITE ?= conformance
.PHONY: conformance
conformance: build conformance-tools ## upstream's conformance tests (SUITE=beyond: others; MODE=nodes, ONLY=failed|missing|never|other|all, FOCUS=, SKIP=, SHARD=k/n, SERIAL=1, PROCS=); as root
	$(CONFORMANCE) -suite=$(SUITE) -mode=$(MODE) $(if $(ONLY),-only=$(ONLY)) $(if $(FOCUS),-focus='$(FOCUS)') $(if $(SKIP),-skip='$(SKIP)') $(if $(SHARD),-shard=$(SHARD)) \
		$(if $(SERIAL),-procs=1,$(if $(PROCS),-procs=$(PROCS))) $(ARGS)

SUBSET_LIMIT ?= 15m
.PHONY: conformance-subset
conformance-subset: build conformance-tools ## some of them, each once, with Kip; as root
	$(CONFORMANCE) -subset -limit=$(SUBSET_LIMIT) $(ARGS)

.PHONY: conformance-daemonsets
conformance-daemonsets: build conformance-tools ## upstream's specs of DaemonSets, while a DaemonSet runs beside all pods of Kip; as root
	$(CONFORMANCE) -beside -only=all -focus='Daemon set' -limit=$(SUBSET_LIMIT) $(ARGS)

.PHONY: conformance-publish
conformance-publish: ## take the results of this machine, all of one clean commit, into the repository and docs/conformance.md
	$(CONFORMANCE) -suite=$(SUITE) -publish

.PHONY: conformance-page
conformance-page: ## write docs/conformance.md from the results and reasons in test/conformance; SUITE=beyond: docs/conformance-beyond.md
	$(CONFORMANCE) -suite=$(SUITE) -page

# Modules of their own that have code of ours; the others only pin programs.
MODULES := dev/dns/coredns test/bench/karpenter test/networkpolicies hack/tools deploy/render

# Packages are compiled as the programs are, so that the two share the compiler's cache. The linter reads
# thousands of packages, and needs a quarter less CPU if it collects garbage less often, up to a bound.
# It holds some 5 GB when nothing is cached, and a collector that has to keep below that takes much of the CPU.
HALF_OF_MEMORY = $(shell awk '/^MemTotal/ {print int($$2 / 2048) "MiB"}' /proc/meminfo)
LINT = CGO_ENABLED=0 GOFLAGS="$(GOFLAGS) -trimpath" GOGC=400 GOMEMLIMIT=$(HALF_OF_MEMORY) $(CURDIR)/.kip/bin/golangci-lint run
.PHONY: lint
lint: ## shell scripts and Go code; .golangci.yml says what of it (ARGS=--fix)
	@hack/prerequisites shellcheck
	@hack/lint
	@mkdir -p .kip/bin
	@CGO_ENABLED=0 $(COMPILE) -C hack/tools/golangci-lint build -trimpath -ldflags '-s -w' -o $(CURDIR)/.kip/bin/golangci-lint \
		github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@status=0; for m in . $(MODULES); do (cd $$m && $(CURDIR)/hack/with-progress "golangci-lint in $$m" env $(LINT) $(ARGS)) || status=$$?; done; exit $$status

# What is known changes without a commit, so no stage of make test asks.
.PHONY: vulncheck
vulncheck: ## known vulnerabilities that the programs can reach; asks vuln.go.dev (VULNDB=)
	@GO='$(GO)' hack/vulncheck '$(ITZO_TAGS)' . ./... $(foreach m,$(MODULES),-- $(m) ./...) -- image/runc github.com/opencontainers/runc \
		-- image/cni $(addprefix github.com/containernetworking/plugins/plugins/,main/ptp ipam/host-local meta/portmap)

.PHONY: docs
docs: ## write the reference pages and the schema of provider.yaml, which are generated from code
	$(GO) test ./internal/config ./internal/metrics -run TestReference -update

.PHONY: manifests
manifests: ## write what is generated from the Helm chart: deploy/manifests, and the chart's README and definition of Cell
	@CGO_ENABLED=0 $(COMPILE) -C deploy/render run -trimpath .

.PHONY: catalog
catalog: ## make the embedded catalogues of clouds from the figures in hack/catalog/data
	@CGO_ENABLED=0 $(GO) run -trimpath ./hack/catalog

.PHONY: cost-report
cost-report: ## write docs/cost.md: what pods cost on Kip, on Fargate and on shared nodes, by the embedded catalogue
	@CGO_ENABLED=0 $(GO) run -trimpath ./test/cost

##### clean

.PHONY: clean
clean: ## end what runs and remove bin/ and .kip/
	@[ ! -x $(BIN)/kip-dev ] || $(BIN)/kip-dev clean
	rm -rf $(BIN) .kip
