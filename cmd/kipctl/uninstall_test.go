package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	apiv1 "github.com/elotl/kip/api/v1"
)

func TestUninstallRefusesWhileSomethingRuns(t *testing.T) {
	standsFor := corev1.PodStatus{
		Phase:      corev1.PodRunning,
		Conditions: []corev1.PodCondition{{Type: apiv1.NoMachine, Status: corev1.ConditionTrue}},
	}
	of := func(p *corev1.Pod) *corev1.Pod {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "logs", Controller: new(true)}}
		return p
	}
	kip := testPod("kip-system", "kip-0", "machine", corev1.PodStatus{Phase: corev1.PodRunning})
	kip.Labels = map[string]string{"app.kubernetes.io/name": "kip"}
	kip.Spec.Containers = []corev1.Container{{Name: "kip"}}
	hook := testPod("kip-system", "hook", "machine", corev1.PodStatus{Phase: corev1.PodRunning})
	hook.Labels, hook.Spec.Containers = kip.Labels, []corev1.Container{{Name: "kipctl"}}
	for what, tc := range map[string]struct {
		pods []*corev1.Pod
		args string
		exec error
		// noCells: the cluster does not know them.
		noCells bool
		// What is said, and whether Kip was told to clean up.
		words   []string
		fails   bool
		cleaned bool
	}{
		"nothing runs": {
			pods: []*corev1.Pod{
				testPod("a", "done", "kip-7", corev1.PodStatus{Phase: corev1.PodSucceeded}),
				of(testPod("a", "logs-1", "kip-7", standsFor)),
				testPod("a", "elsewhere", "machine", corev1.PodStatus{Phase: corev1.PodRunning}),
			},
			args: "--node=kip-7", words: []string{"No pod of Kip runs", "kip-7"},
		},
		"nothing runs, but Kip": {
			pods: []*corev1.Pod{kip}, args: "--node=kip-7 -n kip-system", words: []string{"kip-system/kip-0"}, cleaned: true,
		},
		"nothing is seen to run, and Kip cannot clean up": {
			pods: []*corev1.Pod{kip}, exec: errors.New("left: 1 instance"),
			args: "--node=kip-7 -n kip-system", words: []string{"left: 1 instance", "--no-hooks"}, fails: true, cleaned: true,
		},
		"without the definition of cells": {
			noCells: true, args: "--node=kip-7", words: []string{"kipctl crd update", "--no-hooks"}, fails: true,
		},
		"a pod runs": {
			pods: []*corev1.Pod{testPod("a", "web", "kip-7", corev1.PodStatus{Phase: corev1.PodRunning})},
			args: "--node=kip-6,kip-7", words: []string{"pod a/web", "-- /kipctl cleanup --yes", "--no-hooks"}, fails: true,
		},
		"a cell runs": {args: "--node=kip-0", words: []string{"cell c-web", "standby"}, fails: true},
		"forced": {
			pods: []*corev1.Pod{hook, kip, testPod("a", "web", "kip-7", corev1.PodStatus{Phase: corev1.PodRunning})},
			args: "--node=kip-7 --force -n kip-system", words: []string{"Cleaning up by pod kip-system/kip-0"}, cleaned: true,
		},
		"forced, and Kip cannot": {
			pods: []*corev1.Pod{hook, kip, testPod("a", "web", "kip-7", corev1.PodStatus{Phase: corev1.PodRunning})},
			exec: errors.New("left: 1 pod"),
			args: "--node=kip-7 --force -n kip-system", words: []string{"left: 1 pod"}, fails: true, cleaned: true,
		},
		"forced, without a Kip": {
			pods: []*corev1.Pod{testPod("a", "web", "kip-7", corev1.PodStatus{Phase: corev1.PodRunning})},
			args: "--node=kip-7 --force -n kip-system", words: []string{"no pod of Kip runs in namespace kip-system", "pod a/web"}, fails: true,
		},
		"no node": {words: []string{"--node is missing"}, fails: true},
	} {
		t.Run(what, func(t *testing.T) {
			c := testCluster(t)
			for _, p := range tc.pods {
				if _, err := c.kube.CoreV1().Pods(p.Namespace).Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			if tc.noCells {
				c.dynamic.(*dynamicfake.FakeDynamicClient).PrependReactor("list", "cells", func(clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewNotFound(apiv1.Resource.GroupResource(), "")
				})
			}
			cleaned := false
			c.exec = func(_ context.Context, namespace, pod string, command []string, _, _ io.Writer) error {
				cleaned = namespace == "kip-system" && pod == "kip-0" && strings.Join(command[:3], " ") == "/kipctl cleanup --yes"
				return tc.exec
			}
			r := run(t, c, append([]string{"uninstall"}, strings.Fields(tc.args)...)...)
			if (r.failed != nil) != tc.fails || cleaned != tc.cleaned {
				t.Errorf("it fails with %v; Kip was told to clean up: %v", r.failed, cleaned)
			}
			for _, w := range tc.words {
				if !strings.Contains(r.err, w) {
					t.Errorf("%q is not in %q", w, r.err)
				}
			}
		})
	}
}
