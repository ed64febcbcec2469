package main

import (
	"strings"
	"testing"
)

func TestFlagsThatMakeNoSenseAreRefused(t *testing.T) {
	good := []string{"--kubeconfig=k", "--audit-log=a"}
	o, err := parse(append(good, "--process=control-plane=7", "--node-selector=type=virtual-kubelet", "--until=running"))
	if err != nil || o.processes["control-plane"] != 7 || o.nodeSelector["type"] != "virtual-kubelet" || !o.untilRunning || o.pods != 500 {
		t.Fatalf("got %+v, %v", o, err)
	}
	for flag, want := range map[string]string{
		"--process=kip":       "name=pid",
		"--process=kip=0":     "name=pid",
		"--process==7":        "name=pid",
		"--node-selector=x":   "label=value",
		"--until=later":       "bound or running",
		"--pods=0":            "at least 1",
		"--karpenter-qps=0":   "at least 1",
		"--karpenter-burst=1": "at least as many",
		"--karpenter=/bin/k":  "both or neither",
		"--beside":            "--karpenter and --kwok",
		"--kubeconfig=":       "--kubeconfig",
		"--audit-log=":        "--audit-log",
		"more":                `"more"`,
	} {
		if _, err := parse(append(good, flag)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", flag, err, want)
		}
	}
}
