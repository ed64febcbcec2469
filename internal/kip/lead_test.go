package kip

import (
	"strings"
	"testing"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/volumes"
	"github.com/elotl/kip/test/loopback"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"
)

// The lists of the new region lack all cells of the old one: their pods would get others, and these would run on. They lack its disks,
// too: a volume of a claim that is deleted would be let go, and its disk would stay.
func TestAKipWithCellsOrDisksInAnotherRegionDoesNotStart(t *testing.T) {
	const want = "cloud.sim.region: eu-west-1 is not valid: this Kip has cells in us-east-1 (1), " +
		"and would launch others for their pods: want us-east-1 until they have ended"
	catalogue := func(of, region string) map[string]any { return map[string]any{"cloud": of, "region": region} }
	disk := func(node, zone string) *corev1.CSIPersistentVolumeSource {
		return &corev1.CSIPersistentVolumeSource{
			Driver:           volumes.Driver,
			VolumeAttributes: map[string]string{volumes.AttributeNode: node, volumes.AttributeZone: zone},
		}
	}
	requested := cells.Cell{ID: "a", Phase: apiv1.Requested}
	running := cells.Cell{ID: "a", Phase: apiv1.Bound, Instance: &cloud.Instance{ID: "i-a", Zone: "us-east-1a"}}
	for what, tc := range map[string]struct {
		catalogue any
		cell      cells.Cell
		region    string
		want      string
		volume    *corev1.CSIPersistentVolumeSource
	}{
		"another region": {catalogue("sim", "us-east-1"), running, "eu-west-1", want, nil},
		"a launch without an answer": {
			catalogue("sim", "us-east-1"), cells.Cell{ID: "a", Phase: apiv1.Launching, Launch: &cells.Launch{}}, "eu-west-1", want, nil,
		},
		"a cell that ends": {
			catalogue("sim", "us-east-1"), cells.Cell{ID: "a", Phase: apiv1.Terminating, Instance: running.Instance}, "eu-west-1", want, nil,
		},
		"the same region":              {catalogue("sim", "eu-west-1"), running, "eu-west-1", "", disk("kip", "us-east-1a")},
		"a cell that was not launched": {catalogue("sim", "us-east-1"), requested, "eu-west-1", "", nil},
		"a cell that is gone": {
			catalogue("sim", "us-east-1"), cells.Cell{ID: "a", Phase: apiv1.Gone, Instance: running.Instance}, "eu-west-1", "", nil,
		},
		"a disk of a claim": {
			catalogue("sim", "us-east-1"), requested, "eu-west-1", "cloud.sim.region: eu-west-1 is not valid: this Kip has PersistentVolumes with " +
				"disks in us-east-1 (1, such as pvc-a), which would stay there when their claims are deleted: want us-east-1 until these " +
				"claims and PersistentVolumes are deleted", disk("kip", "us-east-1a"),
		},
		"a disk in the new region":        {catalogue("sim", "us-east-1"), requested, "eu-west-1", "", disk("kip", "eu-west-1a")},
		"a disk of another Kip":           {catalogue("sim", "us-east-1"), requested, "eu-west-1", "", disk("other", "us-east-1a")},
		"a volume of another driver":      {catalogue("sim", "us-east-1"), requested, "eu-west-1", "", &corev1.CSIPersistentVolumeSource{}},
		"a store that names no region":    {catalogue("sim", ""), running, "eu-west-1", "", nil},
		"a store without a catalogue":     {nil, running, "eu-west-1", "", nil},
		"a catalogue that nobody reads":   {"none", running, "eu-west-1", "", nil},
		"the catalogue of another cloud":  {catalogue("aws", "us-east-1"), running, "eu-west-1", "", nil},
		"a cloud that is without regions": {catalogue("sim", "us-east-1"), running, "", "", nil},
	} {
		st := store.Memory(nil)
		if tc.catalogue != nil {
			if _, err := st.Put(t.Context(), "catalogue", tc.catalogue, 0); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := st.Put(t.Context(), "cells/a", tc.cell, 0); err != nil {
			t.Fatal(err)
		}
		machines, err := sim.New(sim.Config{
			Catalogue: []catalog.InstanceType{{
				Name: "small", MilliCPU: 1000, MemoryBytes: 1 << 30, Arch: "amd64",
				Offerings: []catalog.PurchaseOption{{Zone: "z", PricePerHour: 1}},
			}},
			Capabilities: &cloud.Capabilities{Region: tc.region},
		})
		if err != nil {
			t.Fatal(err)
		}
		l := &term{
			process: &process{
				Options: Options{NodeName: "kip"},
				cfg:     &config.Config{},
				api: &apiServer{asProvisioner: fake.NewClientset(&corev1.PersistentVolume{
					ObjectMeta: metav1.ObjectMeta{Name: "pvc-a"},
					Spec:       corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: tc.volume}},
				})},
			},
			store: st,
		}
		err = l.checkRegion(t.Context(), pipe.New(pipe.Config{Cloud: machines, Clock: clock.RealClock{}}))
		if text := ""; err != nil {
			text = err.Error()
			if tc.want == "" || !strings.HasSuffix(text, tc.want) {
				t.Errorf("%s: %q, want %q", what, text, tc.want)
			}
		} else if tc.want != "" {
			t.Errorf("%s: no error, want %q", what, tc.want)
		}
		machines.Close()
	}
}

func TestTheRegionIsCheckedBeforeTheCloudIsAsked(t *testing.T) {
	k, st := newProcess(t), store.Memory(nil)
	k.cfg = configured(t, "cloud: {aws: {region: eu-west-1, endpointURL: 'http://"+loopback.Refused(t).String()+
		"', subnetID: subnet-1, accessKeyID: a, secretAccessKey: b}}\ncells: {defaultInstanceType: small, bootImageSpec: {imageID: ami-1}}")
	for key, record := range map[string]any{
		"catalogue": map[string]any{"cloud": "aws", "region": "us-east-1"},
		"cells/a":   cells.Cell{ID: "a", Phase: apiv1.Bound, Instance: &cloud.Instance{ID: "i-a"}},
	} {
		if _, err := st.Put(t.Context(), key, record, 0); err != nil {
			t.Fatal(err)
		}
	}
	l := &term{process: k, store: st}
	defer l.close()
	if _, err := l.openCloud(t.Context()); err == nil || !strings.Contains(err.Error(), "cloud.aws.region: eu-west-1 is not valid") {
		t.Errorf("with cells in us-east-1: %v", err)
	}
}
