// Package faults owns the model-based test of Kip's heart: the real packages
// cells and pods, on a simulated cloud, a model API server and model kubelets, in
// virtual time. It plays random histories of everything that goes wrong, and kills
// Kip at every write and every call to the cloud. See docs/reliability.md.
package faults
