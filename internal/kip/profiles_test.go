package kip

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/internal/admission"
	"github.com/elotl/kip/internal/config"
)

// A key that is added to profiles and is not passed on would choose pods that it is to leave.
func TestAProfileIsPassedOnWhole(t *testing.T) {
	one := config.Profile{
		Name:              "a",
		Namespaces:        []string{"b"},
		NamespaceSelector: config.LabelSelector{MatchLabels: map[string]string{"c": "d"}},
		PodSelector:       config.LabelSelector{MatchExpressions: []config.LabelExpression{{Key: "e", Operator: "NotIn", Values: []string{"f"}}}},
		ServiceAccounts:   []string{"g"},
		OwnerKinds:        []string{"Job"},
		GPU:               new(true),
		Resources:         []string{"h"},
		MinCPU:            resource.MustParse("1"),
		MinMemory:         resource.MustParse("2Gi"),
		Mode:              config.ModeBurst,
		Annotations:       map[string]string{"i": "j"},
		PodDeletionCost:   new(-7),
	}
	got, err := profile(one)
	if err != nil {
		t.Fatal(err)
	}
	if n := got.NamespaceLabels.String() + " " + got.PodLabels.String(); n != "c=d e notin (f)" {
		t.Errorf("its labels are %s", n)
	}
	got.NamespaceLabels, got.PodLabels = nil, nil
	want := admission.Profile{
		Name:            "a",
		Namespaces:      []string{"b"},
		ServiceAccounts: []string{"g"},
		OwnerKinds:      []string{"Job"},
		GPU:             one.GPU,
		Resources:       []corev1.ResourceName{"h"},
		MinCPU:          one.MinCPU,
		MinMemory:       one.MinMemory,
		Mode:            admission.Burst,
		Annotations:     one.Annotations,
		DeletionCost:    "-7",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if n := reflect.TypeFor[config.Profile]().NumField(); n != 13 {
		t.Errorf("a profile has %d fields, and this test knows 13", n)
	}
}

func TestTheLabelsOfANamespaceAreReadOnceInAMoment(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	reads, fails := 0, false
	n := &namespaceLabels{clock: clock, get: func(_ context.Context, name string) (*corev1.Namespace, error) {
		if reads++; fails {
			return nil, errors.New("no answer")
		}
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: labels.Set{"name": name}}}, nil
	}}
	want := func(name string, count int) {
		t.Helper()
		got, err := n.of(t.Context(), name)
		if err != nil || got["name"] != name || reads != count {
			t.Errorf("namespace %s has %v, %v, after %d reads; want %d", name, got, err, reads, count)
		}
	}
	want("a", 1)
	want("b", 2)
	want("a", 2)
	clock.SetTime(clock.Now().Add(labelsAge))
	want("a", 3)
	fails = true
	want("a", 3)
	if _, err := n.of(t.Context(), "c"); err == nil {
		t.Error("a namespace that cannot be read has labels")
	}
	if len(n.kept) > labelsKept {
		t.Errorf("%d are kept", len(n.kept))
	}
}
