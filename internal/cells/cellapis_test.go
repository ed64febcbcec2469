package cells

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cellapi"
	"github.com/elotl/kip/internal/cloud"
)

// served notes the APIs that are added.
type served struct {
	*modelLinks
	info cellapi.CellInfo
}

func (s *served) AddCell(id string, info cellapi.CellInfo) API {
	s.info = info
	return s.modelLinks.AddCell(id, info)
}

func TestACellSeesANodeOfItsSizeAndItsPodOnlyWhenBound(t *testing.T) {
	apis := &served{modelLinks: &modelLinks{cells: map[string]*modelLink{}}}
	s := &cellAPIs{apis: apis, nodeNames: &nodeNames{one: "kip-0"}, notices: &notices{}, reserved: 100}
	e := newEntry(Cell{
		ID: "c", Pod: ref("a"), Phase: apiv1.Booting, Instance: &cloud.Instance{ID: "i"},
		Offerings: []Offering{{MilliCPU: 2000, MemoryBytes: 1000}}, Wants: Wants{HugePages: []HugePages{{PageBytes: 2 << 20, Pages: 2}}},
	}, 0)
	if _, hears := s.serve(e).(noticeAPI); !hears {
		t.Error("the cell's agent cannot give notice")
	}
	all, free := apis.info.Capacity.Memory().Value(), apis.info.Allocatable.Memory().Value()
	if cpu := apis.info.Capacity.Cpu().MilliValue(); all != 1000 || free != 900 || cpu != 2000 || apis.info.Node != "kip-0" ||
		e.connection().node != "kip-0" {
		t.Errorf("node %q with %d bytes, %d of them free: %v", apis.info.Node, all, free, apis.info.Capacity)
	}
	if _, has := apis.info.Allocatable["hugepages-2Mi"]; has {
		t.Error("it has huge pages before its kubelet has said so")
	}
	shown := func() int { return len(apis.of("c").bound) }
	if err := e.show(); err != nil || shown() != 0 {
		t.Errorf("a booting cell is shown %d pods (%v)", shown(), err)
	}
	bound := e.cell().clone()
	bound.Phase = apiv1.Bound
	e.current.Store(&bound)
	for range 2 {
		if err := e.show(); err != nil || shown() != 1 {
			t.Errorf("a bound cell is shown %d pods (%v), want one", shown(), err)
		}
	}
}

// A kubelet that starts again while its pod runs refuses the pod if its node lacks what it asks for.
func TestABoundCellSeesTheHugePagesOfItsPodBeforeItsKubeletSaysThem(t *testing.T) {
	apis := &served{modelLinks: &modelLinks{cells: map[string]*modelLink{}}}
	s := &cellAPIs{apis: apis, nodeNames: &nodeNames{one: "kip-0"}, notices: &notices{}, reserved: 1 << 20}
	s.serve(newEntry(Cell{
		ID: "c", Pod: ref("a"), Phase: apiv1.Bound, Instance: &cloud.Instance{ID: "i"},
		Offerings: []Offering{{MilliCPU: 2000, MemoryBytes: 10 << 20}}, Wants: Wants{HugePages: []HugePages{{PageBytes: 2 << 20, Pages: 2}}},
	}, 0))
	for list, want := range map[*corev1.ResourceList]string{
		&apis.info.Capacity: "10Mi, 4Mi of huge pages", &apis.info.Allocatable: "5Mi, 4Mi of huge pages",
	} {
		pages := (*list)["hugepages-2Mi"]
		if got := list.Memory().String() + ", " + pages.String() + " of huge pages"; got != want {
			t.Errorf("it has %s, want %s", got, want)
		}
	}
}
