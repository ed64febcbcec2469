package stats

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// claimsOf is a summary with volumes of claims of a pod, in a namespace.
func claimsOf(pod string, uid types.UID, namespace string, claims ...string) map[string]string {
	text := ""
	for _, name := range claims {
		text += fmt.Sprintf(`,{"name":"v","capacityBytes":10,"availableBytes":4,"usedBytes":6,"inodes":8,"pvcRef":{"name":%q,"namespace":%q},`+
			`"volumeHealthStats":{"abnormal":true}}`, name, namespace)
	}
	return map[string]string{"/stats/summary": fmt.Sprintf(`{"node":{"nodeName":"kip-0"},"pods":[`+
		`{"podRef":{"name":"another","namespace":"default","uid":"x"},"volume":[{"name":"w","capacityBytes":1,"pvcRef":{"name":"hers","namespace":"default"}}]},`+
		`{"podRef":{"name":%q,"namespace":"default","uid":%q},"volume":[{"name":"empty","capacityBytes":1}%s]}]}`, pod, uid, text)}
}

func TestACellSpeaksForTheClaimsOfItsOwnPod(t *testing.T) {
	f := newFixture(t,
		Cell{ID: "c-a", Namespace: "default", Pod: "a", UID: "1", Claims: []string{"mine", "shared", "silent"},
			Conn: says(claimsOf("a", "1", "default", "mine", "shared", "hers"))},
		Cell{ID: "c-b", Namespace: "default", Pod: "b", UID: "2", Claims: []string{"shared"},
			Conn: says(claimsOf("b", "2", "default", "shared", "mine"))},
		Cell{ID: "c-c", Namespace: "default", Pod: "c", UID: "3", Claims: []string{"far"}, Conn: says(claimsOf("c", "3", "kube-system", "far"))},
		Cell{ID: "c-d", Namespace: "default", Pod: "d", UID: "4", Claims: []string{"bad"}, Conn: says(map[string]string{"/stats/summary": "{"})},
		Cell{ID: "c-e", Namespace: "default", Pod: "e", UID: "5", Conn: says(nil)}, // without a claim it is not asked
	)
	list, err := f.Volumes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]Volume{}
	for _, v := range list {
		got[v.Namespace+"/"+v.Claim] = v
	}
	if len(list) != 2 || len(got) != 2 {
		t.Fatalf("volumes %v, want mine and shared, each once", got)
	}
	for _, name := range []string{"default/mine", "default/shared"} {
		v := got[name]
		if v.CapacityBytes == nil || *v.CapacityBytes != 10 || *v.AvailableBytes != 4 || *v.UsedBytes != 6 || *v.Inodes != 8 ||
			v.InodesFree != nil || v.Abnormal == nil || !*v.Abnormal {
			t.Errorf("%s: %+v", name, v)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if missed := f.missed[volumesName]; missed[Invalid] != 1 || missed[Failed] != 0 {
		t.Errorf("missed %v: want one that cannot be read, and none that has no claim", missed)
	}
}
