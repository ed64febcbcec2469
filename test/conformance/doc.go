// Command conformance runs Kubernetes' own conformance tests against the control
// plane of kip-dev: with ordinary nodes only, which says what this machine and
// this control plane are capable of, or with one Kip of two virtual nodes. It owns
// the stand-ins for the images that the tests name, the results by spec, and the
// page docs/conformance.md. It changes no test: e2e.test and ginkgo are upstream's,
// pinned in the module in the folder upstream.
package main
