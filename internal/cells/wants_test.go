package cells

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A Kip reads what one before it has stored, and one after it what this one stores.
func TestAStoredRecordIsReadAndWrittenAsItIs(t *testing.T) {
	stored, err := os.ReadFile("testdata/cell.json")
	if err != nil {
		t.Fatal(err)
	}
	var cell Cell
	d := json.NewDecoder(bytes.NewReader(stored))
	d.DisallowUnknownFields()
	if err := d.Decode(&cell); err != nil {
		t.Fatal(err)
	}
	written, err := json.Marshal(cell)
	if err != nil {
		t.Fatal(err)
	}
	if want := bytes.TrimSpace(stored); !bytes.Equal(written, want) {
		t.Errorf("it is written as\n%s\nwant\n%s", written, want)
	}
}

func TestACellHasAllThatItsPodWants(t *testing.T) {
	after := time.Minute
	wants := Wants{
		Disks:          []Disk{{ID: "d", Volume: "v"}},
		Plugins:        []Plugin{{Driver: "csi"}},
		Kernel:         &KernelSettings{Modules: []string{"m"}},
		UnsafeSysctls:  []string{"s"},
		HugePages:      []HugePages{{PageBytes: 2 << 20, Pages: 1}},
		SwapBytes:      1 << 20,
		GPUs:           1,
		Accelerators:   map[corev1.ResourceName]int64{"a": 1},
		HealthyTimeout: &after,
	}
	for v, n := reflect.ValueOf(wants), 0; n < v.NumField(); n++ {
		if v.Field(n).IsZero() {
			t.Errorf("%s is not tested", v.Type().Field(n).Name)
		}
	}
	r := Request{Pod: ref("a"), Attempt: 2, Offerings: []Offering{{InstanceType: "nano"}}, Wants: wants}
	var stood Cell
	stood.give(r)
	b := newBench(t)
	requests := &requests{
		table: b.table, additions: b.additions, clock: b.clock, recipe: b.recipe,
		budgets:  b.budgets,
		standbys: &standbys{table: b.table, matching: b.matching()},
	}
	launched, err := requests.request(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	for name, cell := range map[string]Cell{"stood by": stood, "launched": launched} {
		if !reflect.DeepEqual(cell.Wants, wants) || cell.Pod != r.Pod || cell.Attempt != r.Attempt || len(cell.Best) != 1 {
			t.Errorf("a cell that is %s has %+v", name, cell)
		}
	}
}
