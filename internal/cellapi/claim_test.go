package cellapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// expanding is a claim of 1 GiB on a volume that has 2 GiB already.
func expanding(h *house, name string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	h.t.Helper()
	size := func(s string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(s)}
	}
	pvc := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: "pv-" + name, Resources: corev1.VolumeResourceRequirements{Requests: size("2Gi")},
		},
		Status: corev1.PersistentVolumeClaimStatus{
			Phase:              corev1.ClaimBound,
			Capacity:           size("1Gi"),
			AllocatedResources: size("2Gi"),
			AllocatedResourceStatuses: map[corev1.ResourceName]corev1.ClaimResourceStatus{
				corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending,
			},
			Conditions: []corev1.PersistentVolumeClaimCondition{
				{Type: "Theirs", Status: corev1.ConditionTrue},
				{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue},
			},
		},
	}
	for _, f := range change {
		f(pvc)
	}
	h.up.put(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: size("2Gi"),
		ClaimRef: &corev1.ObjectReference{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)},
	}})
	return h.up.put(pvc).(*corev1.PersistentVolumeClaim)
}

// kubeletPatch is what a kubelet sends (pkg/volume/util/resize_util.go, PatchPVCStatus).
func kubeletPatch(t *testing.T, pvc *corev1.PersistentVolumeClaim, change func(*corev1.PersistentVolumeClaimStatus)) []byte {
	t.Helper()
	next := pvc.DeepCopy()
	change(&next.Status)
	before, err := json.Marshal(pvc)
	if err != nil {
		t.Fatal(err)
	}
	after, err := json.Marshal(next)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, pvc)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(patch, &fields); err != nil {
		t.Fatal(err)
	}
	fields["metadata"] = map[string]any{"resourceVersion": pvc.ResourceVersion}
	if patch, err = json.Marshal(fields); err != nil {
		t.Fatal(err)
	}
	return patch
}

func TestAKubeletFinishesTheExpansionOfItsPodsClaim(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	pvc := expanding(h, "web-data")
	m := newMachine(t, "c1")
	h.bindNew(m.join(h), podOn("web"))
	claims := m.kubelet(t).CoreV1().PersistentVolumeClaims("shop")
	patch := func(change func(*corev1.PersistentVolumeClaimStatus)) {
		t.Helper()
		var err error
		if pvc, err = claims.Patch(ctx, "web-data", types.StrategicMergePatchType, kubeletPatch(t, pvc, change), metav1.PatchOptions{},
			"status"); err != nil {
			t.Fatal(err)
		}
	}
	status := func() string {
		s := h.up.get("persistentvolumeclaims", "shop", "web-data").(*corev1.PersistentVolumeClaim).Status
		text := s.Capacity.Storage().String() + " " + string(s.AllocatedResourceStatuses[corev1.ResourceStorage])
		for _, c := range s.Conditions {
			if text += " " + string(c.Type); c.Message != "" {
				text += fmt.Sprintf(" of %d bytes", len(c.Message))
			}
		}
		return text
	}
	patch(func(s *corev1.PersistentVolumeClaimStatus) {
		s.AllocatedResourceStatuses[corev1.ResourceStorage] = corev1.PersistentVolumeClaimNodeResizeInProgress
	})
	if got := status(); got != "1Gi NodeResizeInProgress Theirs FileSystemResizePending" {
		t.Errorf("begun: %s", got)
	}
	patch(func(s *corev1.PersistentVolumeClaimStatus) {
		s.Conditions = append(s.Conditions, corev1.PersistentVolumeClaimCondition{
			Type: corev1.PersistentVolumeClaimNodeResizeError, Status: corev1.ConditionTrue, Message: strings.Repeat("x", 40_000),
		})
	})
	if got := status(); got != "1Gi NodeResizeInProgress Theirs NodeResizeError of 32768 bytes FileSystemResizePending" {
		t.Errorf("failed: %s", got)
	}
	// It drops all conditions, also those that are not its own.
	patch(func(s *corev1.PersistentVolumeClaimStatus) {
		s.Capacity[corev1.ResourceStorage], s.AllocatedResourceStatuses, s.Conditions = resource.MustParse("2Gi"), nil, nil
	})
	if got := status(); got != "2Gi  Theirs" {
		t.Errorf("finished: %s", got)
	}
	for _, r := range h.up.asked(func(r apiRequest) bool { return r.verb == "patch" }) {
		if r.user != nodeUser || r.subresource != "status" || !strings.Contains(r.body, `"uid":"uid-web-data"`) {
			t.Errorf("asked %+v", r)
		}
	}
}

func TestACellWritesOfAClaimNoMoreThanItsVolumeHas(t *testing.T) {
	h := newHouse(t)
	pvc := expanding(h, "web-data")
	expanding(h, "other-data")
	controllers := func(c *corev1.PersistentVolumeClaim) {
		c.Status.AllocatedResourceStatuses[corev1.ResourceStorage] = corev1.PersistentVolumeClaimControllerResizeInProgress
	}
	m := newMachine(t, "c1")
	c := m.join(h)
	h.bindNew(c, podOn("web"))
	const path = "/api/v1/namespaces/shop/persistentvolumeclaims/"
	const strategic = string(types.StrategicMergePatchType)
	for name, s := range map[string]struct {
		claim, mediaType, body string
		change                 func(*corev1.PersistentVolumeClaim)
		code                   int
	}{
		"more than the volume has":   {body: `{"status":{"capacity":{"storage":"3Gi"}}}`, code: 422},
		"less than the claim has":    {body: `{"status":{"capacity":{"storage":"1Mi"}}}`, code: 422},
		"no capacity":                {body: `{"status":{"capacity":null}}`, code: 422},
		"no status":                  {body: `{"status":null}`, code: 422},
		"a number that is expensive": {body: `{"status":{"capacity":{"storage":"1e999999999"}}}`, code: 422},
		"another claim":              {claim: "other-data", body: `{"status":{"capacity":{"storage":"2Gi"}}}`, code: 403},
		"no claim":                   {claim: "none", body: `{"status":{"capacity":{"storage":"2Gi"}}}`, code: 403},
		"a controller's word":        {body: `{"status":{"allocatedResourceStatuses":{"storage":"ControllerResizeInProgress"}}}`, code: 422},
		"what a controller does": {change: controllers, code: 422,
			body: `{"status":{"capacity":{"storage":"2Gi"},"allocatedResourceStatuses":null}}`},
		"an expansion of nobody": {change: func(c *corev1.PersistentVolumeClaim) { c.Status.AllocatedResourceStatuses = nil }, code: 422,
			body: `{"status":{"allocatedResourceStatuses":{"storage":"NodeResizeInProgress"}}}`},
		"another's condition": {body: `{"status":{"conditions":[{"type":"Theirs","status":"False"}]}}`, code: 422},
		"an older version":    {body: `{"metadata":{"resourceVersion":"1"},"status":{"capacity":{"storage":"2Gi"}}}`, code: 409},
		"a merge patch":       {mediaType: string(types.MergePatchType), body: `{"status":{"capacity":{"storage":"2Gi"}}}`, code: 415},
		"a list":              {body: `[]`, code: 422},
		"no JSON":             {body: `{`, code: 400},
		"too much":            {body: `{"status":{"x":"` + strings.Repeat("x", 300<<10) + `"}}`, code: 413},
		"a claim of no volume": {change: func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "" }, code: 403,
			body: `{"status":{"capacity":{"storage":"2Gi"}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			expanding(h, "web-data", func(c *corev1.PersistentVolumeClaim) {
				if s.change != nil {
					s.change(c)
				}
			})
			h.up.mu.Lock()
			h.up.requests = nil
			h.up.mu.Unlock()
			claim, mediaType := s.claim, s.mediaType
			if claim == "" {
				claim = pvc.Name
			}
			if mediaType == "" {
				mediaType = strategic
			}
			code, _, answer := do(t.Context(), c, http.MethodPatch, path+claim+"/status", mediaType, []byte(s.body))
			if code != s.code {
				t.Errorf("%d, want %d: %s", code, s.code, answer)
			}
			if got := h.up.asked(func(r apiRequest) bool { return r.verb == "patch" }); len(got) > 0 {
				t.Errorf("it was passed on: %+v", got)
			}
		})
	}
	// Whatever else it sends stays behind, and what comes through is of this version of the claim.
	now := expanding(h, "web-data")
	code, _, answer := do(t.Context(), c, http.MethodPatch, path+"web-data/status", strategic, []byte(
		`{"metadata":{"labels":{"a":"b"},"finalizers":["x"]},"spec":{"volumeName":"other"},
		"status":{"phase":"Lost","capacity":{"storage":"2Gi","cpu":"1"},
		"allocatedResources":{"storage":"9Gi"}}}`))
	if code != http.StatusOK {
		t.Fatalf("%d: %s", code, answer)
	}
	got := h.up.asked(func(r apiRequest) bool { return r.verb == "patch" })
	if want := fmt.Sprintf(`{"metadata":{"resourceVersion":%q,"uid":"uid-web-data"},"status":{"capacity":{"storage":"2Gi"},"conditions":`,
		now.ResourceVersion); len(got) != 1 || !strings.HasPrefix(got[0].body, want) || got[0].contentType != string(types.MergePatchType) {
		t.Errorf("passed %+v, want %s", got, want)
	}
	for _, sub := range []string{"", "/status"} {
		for _, method := range []string{http.MethodPut, http.MethodDelete} {
			if code, _, _ := do(t.Context(), c, method, path+"web-data"+sub, "application/json", []byte(`{}`)); code != 403 {
				t.Errorf("%s of the claim%s: %d", method, sub, code)
			}
		}
	}
}

func TestEventsOfAnExpansionAreThoseOfThePodsClaims(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	m := newMachine(t, "c1")
	h.bindNew(m.join(h), podOn("web"))
	event := func(claim string) error {
		_, err := m.kubelet(t).CoreV1().Events("shop").Create(ctx, &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: claim + ".1"},
			InvolvedObject: corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "shop", Name: claim,
				UID: types.UID("uid-" + claim + strings.Repeat("x", 100))},
			Reason: "FileSystemResizeSuccessful", Type: corev1.EventTypeNormal, Source: corev1.EventSource{Component: "somebody"},
		}, metav1.CreateOptions{})
		return err
	}
	if err := event("web-data"); err != nil {
		t.Fatal(err)
	}
	made := h.up.get("events", "shop", "web-data.1").(*corev1.Event)
	if made.InvolvedObject.Kind != "PersistentVolumeClaim" || made.InvolvedObject.Name != "web-data" || len(made.InvolvedObject.UID) != 64 ||
		made.Source.Component != "kubelet" {
		t.Errorf("made %+v", made)
	}
	if err := event("other-data"); !apierrors.IsForbidden(err) {
		t.Errorf("of another claim: %v", err)
	}
}

// The API server may be slow: meanwhile Kip works for others.
func TestAClaimThatIsWaitedForHoldsNoTurnOfWork(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	pvc := expanding(h, "web-data")
	c := newMachine(t, "c1").join(h)
	h.bindNew(c, podOn("web"))
	release := make(chan struct{})
	var open atomic.Int32
	h.up.mu.Lock()
	h.up.refuse = func(r apiRequest) error {
		if r.verb == "get" && r.name == pvc.Name {
			open.Add(1)
			<-release
		}
		return nil
	}
	h.up.mu.Unlock()
	var asked sync.WaitGroup
	asked.Go(func() {
		do(ctx, c, http.MethodPatch, "/api/v1/namespaces/shop/persistentvolumeclaims/web-data/status", string(types.StrategicMergePatchType),
			[]byte(`{"status":{"capacity":{"storage":"2Gi"}}}`))
	})
	defer asked.Wait()
	defer close(release)
	eventually(t, "the claim is waited for", func() bool { return open.Load() > 0 })
	if own, all := h.server.working.Taken(c.limits); own+all > 0 {
		t.Fatal("a turn of the cell, or of all, is taken while the claim is waited for")
	}
}
