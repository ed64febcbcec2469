package nodeplan

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/elotl/kip/internal/catalog"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

var (
	standard     = catalog.Class{Family: "standard"}
	standardSpot = catalog.Class{Family: "standard", Spot: true}
	gpu          = catalog.Class{Family: "g and vt"}
)

// typeIn is a type with an offering on demand in each subnet.
func typeIn(name, family string, cpus, gib int64, subnets ...string) catalog.InstanceType {
	t := catalog.InstanceType{Name: name, Family: family, MilliCPU: cpus * 1000, MemoryBytes: gib * gibi}
	for _, s := range subnets {
		t.Offerings = append(t.Offerings, catalog.PurchaseOption{Zone: "z", Subnet: s})
	}
	return t
}

func asSpot(t catalog.InstanceType) catalog.InstanceType {
	for i := range t.Offerings {
		t.Offerings[i].Spot = true
	}
	return t
}

func request(cpu, memory, pods string) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse(cpu),
		corev1.ResourceMemory: resource.MustParse(memory),
		corev1.ResourcePods:   resource.MustParse(pods),
	}
}

// inWords is a capacity as cpu, memory and pods; its storage is checked.
func inWords(t *testing.T, list corev1.ResourceList) string {
	t.Helper()
	cpu, memory, pods := list.Cpu(), list.Memory(), list.Pods()
	return fmt.Sprintf("%s %s %s", cpu, memory, pods)
}

func TestTheCapacityOfANodeIsWhatCanBeLaunchedForIt(t *testing.T) {
	small, large := typeIn("t3.small", "standard", 2, 2, "a", "b"), typeIn("m5.2xlarge", "standard", 8, 32, "a", "b")
	quotas := func(list map[catalog.Class]int64) map[catalog.Class]int64 {
		for c := range list {
			list[c] *= 1000
		}
		return list
	}
	uses := func(subnet string, c catalog.Class, cpus, machines int64) (u Use) { // of a GiB each
		for range machines {
			u.Add(subnet, c, cpus*1000/machines, gibi)
		}
		return u
	}
	for what, tc := range map[string]struct {
		of   Sizing
		want string
	}{
		"nothing is known": {Sizing{Types: []catalog.InstanceType{small}}, "4k 16000Gi 1k"},
		"the node offers nothing": {
			Sizing{Bounds: catalog.Bounds{MilliCPU: quotas(map[catalog.Class]int64{standard: 64})}}, "1 1Gi 1",
		},
		"a quota: machines of the smallest type, memory of the one with most": {
			Sizing{Types: []catalog.InstanceType{small, large}, Bounds: catalog.Bounds{MilliCPU: quotas(map[catalog.Class]int64{standard: 64})}},
			"64 256Gi 32",
		},
		"whole machines alone": {
			Sizing{Types: []catalog.InstanceType{large}, Bounds: catalog.Bounds{MilliCPU: quotas(map[catalog.Class]int64{standard: 15})}},
			"8 32Gi 1",
		},
		"a quota of nothing leaves the one pod that tells": {
			Sizing{Types: []catalog.InstanceType{large}, Bounds: catalog.Bounds{MilliCPU: quotas(map[catalog.Class]int64{standard: 0})}}, "1 1Gi 1",
		},
		"classes add up": {
			Sizing{
				Types: []catalog.InstanceType{small, asSpot(typeIn("t3.small", "standard", 2, 2, "a")), typeIn("g5.xlarge", "g and vt", 4, 16, "a")},
				Bounds: catalog.Bounds{MilliCPU: quotas(map[catalog.Class]int64{
					standard: 4, standardSpot: 8, gpu: 16, {Family: "x"}: 1000,
				})},
			}, "28 76Gi 10",
		},
		"a class whose quota is not told is unbounded, whatever the others have": {
			Sizing{
				Types:  []catalog.InstanceType{large, typeIn("p3.2xlarge", "p", 8, 61, "a")},
				Bounds: catalog.Bounds{MilliCPU: quotas(map[catalog.Class]int64{{Family: "p"}: 0})},
			}, "4k 16000Gi 1k",
		},
		"and takes nothing from those that are told": {
			Sizing{
				Types:  []catalog.InstanceType{small, typeIn("hpc7g.4xlarge", "hpc", 16, 128, "a")},
				Bounds: catalog.Bounds{MilliCPU: quotas(map[catalog.Class]int64{standard: 10_000})},
			}, "10k 16000Gi 5k",
		},
		"a class that is not told and was refused is bounded": {
			Sizing{
				Types:  []catalog.InstanceType{small, typeIn("p3.2xlarge", "p", 8, 61, "a")},
				Bounds: catalog.Bounds{MilliCPU: quotas(map[catalog.Class]int64{{Family: "p"}: 0})},
				Left:   map[catalog.Class]int64{standard: 5999},
			}, "4 4Gi 2",
		},
		"an earlier refusal leaves what there was then": {
			Sizing{
				Types: []catalog.InstanceType{small, large},
				Use:   uses("a", standard, 16, 4), Most: map[catalog.Class]int64{standard: 25_999},
			}, "8 32Gi 4",
		},
		"and one machine more, of any type": {
			Sizing{
				Types: []catalog.InstanceType{small, large},
				Use:   uses("a", standard, 16, 4), Most: map[catalog.Class]int64{standard: 17_999},
			}, "8 32Gi 1",
		},
		"that a quota has room for": {
			Sizing{
				Types:  []catalog.InstanceType{small, large},
				Bounds: catalog.Bounds{MilliCPU: quotas(map[catalog.Class]int64{standard: 20})},
				Use:    uses("a", standard, 16, 4), Most: map[catalog.Class]int64{standard: 17_999},
			}, "2 2Gi 1",
		},
		"addresses bound machines, and these CPU and memory": {
			Sizing{
				Types:  []catalog.InstanceType{small, large},
				Bounds: catalog.Bounds{Machines: map[string]int64{"a": 2, "b": 1}, MilliCPU: quotas(map[catalog.Class]int64{standard: 640})},
			}, "24 96Gi 3",
		},
		"addresses alone": {
			Sizing{Types: []catalog.InstanceType{small}, Bounds: catalog.Bounds{Machines: map[string]int64{"a": 20, "b": 0}}}, "40 40Gi 20",
		},
		"a subnet that is not known bounds nothing": {
			Sizing{
				Types:  []catalog.InstanceType{small},
				Bounds: catalog.Bounds{Machines: map[string]int64{"a": 2}, MilliCPU: quotas(map[catalog.Class]int64{standard: 64})},
			}, "64 64Gi 32",
		},
		"what runs leaves so much less": {
			Sizing{
				Types: []catalog.InstanceType{small},
				Bounds: catalog.Bounds{
					Machines: map[string]int64{"a": 12, "b": 0}, MilliCPU: quotas(map[catalog.Class]int64{standard: 64}),
				},
				Use: uses("a", standard, 12, 6),
			}, "12 12Gi 6",
		},
		"what has a machine counts as what it asks for, since nobody else can have the rest of that": {
			Sizing{
				Types:  []catalog.InstanceType{small},
				Bounds: catalog.Bounds{MilliCPU: quotas(map[catalog.Class]int64{standard: 64})},
				Use:    uses("a", standard, 60, 30),
				Served: request("3", "3Gi", "30"), Needs: request("4", "4Gi", "31"), // one waits for a machine
			}, "7 7Gi 32",
		},
		"a class that was refused has what may be left": {
			Sizing{
				Types:  []catalog.InstanceType{small, large},
				Bounds: catalog.Bounds{MilliCPU: quotas(map[catalog.Class]int64{standard: 64})},
				Use:    uses("a", standard, 16, 4), Left: map[catalog.Class]int64{standard: 7999},
			}, "6 6Gi 3",
		},
		"what may be left is no more than the quota has": {
			Sizing{
				Types:  []catalog.InstanceType{small},
				Bounds: catalog.Bounds{MilliCPU: quotas(map[catalog.Class]int64{standard: 8})},
				Use:    uses("a", standard, 6, 3), Left: map[catalog.Class]int64{standard: 7999},
			}, "2 2Gi 1",
		},
		"a refusal is known without quotas": {
			Sizing{
				Types: []catalog.InstanceType{small},
				Use:   uses("a", standard, 6, 3), Left: map[catalog.Class]int64{standard: 1999},
				Served: request("4", "3Gi", "3"), Needs: request("4", "3Gi", "3"),
			}, "4 3Gi 3",
		},
		"nothing is known, and some run": {
			Sizing{Types: []catalog.InstanceType{small}, Use: uses("a", standard, 1000, 500), Served: request("100", "100Gi", "500")},
			"2100 8100Gi 1k",
		},
		"the memory of a host": {
			Sizing{
				Types:  []catalog.InstanceType{typeIn("large", "", 2, 4, "")},
				Bounds: catalog.Bounds{MilliCPU: map[catalog.Class]int64{{}: 8000}, MemoryBytes: 12 * gibi},
				Use:    uses("", catalog.Class{}, 2, 1),
			}, "6 11Gi 3",
		},
		"never less than the pods of the node need": {
			Sizing{
				Types:  []catalog.InstanceType{small},
				Bounds: catalog.Bounds{MilliCPU: quotas(map[catalog.Class]int64{standard: 2})},
				Needs:  request("3500m", "1Gi", "5"),
			}, "3500m 2Gi 5",
		},
		"pods that stand without a machine take none of it": {
			Sizing{
				Types:  []catalog.InstanceType{small},
				Bounds: catalog.Bounds{MilliCPU: quotas(map[catalog.Class]int64{standard: 4})},
				Served: request("200m", "256Mi", "2"), Needs: request("200m", "256Mi", "2"),
			}, "4200m 4352Mi 4",
		},
	} {
		list := tc.of.Capacity()
		if got := inWords(t, list); got != tc.want {
			t.Errorf("%s: %s, want %s", what, got, tc.want)
		}
		if disk := list[corev1.ResourceEphemeralStorage]; disk.Value() < podDiskBytes {
			t.Errorf("%s: %s of ephemeral storage", what, disk.String())
		}
	}
}

func TestTheDevicesOfANodeAreThoseThatCanBeLaunched(t *testing.T) {
	withGPUs := func(name string, cpus, gpus int64) catalog.InstanceType {
		one := typeIn(name, "g and vt", cpus, 16, "a")
		one.GPUs = []catalog.GPU{{Model: "T4", Count: gpus}}
		return one
	}
	small, large := withGPUs("g4dn.xlarge", 4, 1), withGPUs("g4dn.12xlarge", 48, 4)
	plain := typeIn("t3.small", "standard", 2, 2, "a")
	quota := map[catalog.Class]int64{gpu: 96_000, standard: 64_000}
	served := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2")}
	for what, tc := range map[string]struct {
		of   Sizing
		want int64
	}{
		"as many as the quota buys":  {Sizing{Types: []catalog.InstanceType{small, large, plain}, Bounds: catalog.Bounds{MilliCPU: quota}}, 24},
		"of the one that has fewer":  {Sizing{Types: []catalog.InstanceType{large}, Bounds: catalog.Bounds{MilliCPU: quota}}, 8},
		"no type has any":            {Sizing{Types: []catalog.InstanceType{plain}, Bounds: catalog.Bounds{MilliCPU: quota}}, 0},
		"a quota that is not told":   {Sizing{Types: []catalog.InstanceType{small, large}}, 1000},
		"another that is not told":   {Sizing{Types: []catalog.InstanceType{large, plain}, Bounds: catalog.Bounds{MilliCPU: map[catalog.Class]int64{gpu: 48_000}}}, 4},
		"addresses":                  {Sizing{Types: []catalog.InstanceType{small}, Bounds: catalog.Bounds{MilliCPU: quota, Machines: map[string]int64{"a": 3}}}, 3},
		"and those that pods have":   {Sizing{Types: []catalog.InstanceType{large}, Bounds: catalog.Bounds{MilliCPU: quota}, Served: served, Needs: served}, 10},
		"those that pods have alone": {Sizing{Served: served, Needs: served}, 2},
	} {
		list := tc.of.Capacity()
		if got := list["nvidia.com/gpu"]; got.Value() != tc.want {
			t.Errorf("%s: %s GPUs, want %d", what, got.String(), tc.want)
		}
	}
}

// Huge pages are reserved of the memory of machines, however pods share it.
func TestTheHugePagesOfANodeAreThoseThatItsMemoryHasRoomFor(t *testing.T) {
	small := typeIn("t3.small", "standard", 2, 2, "a")
	served := corev1.ResourceList{"hugepages-2Mi": resource.MustParse("64Mi")}
	list := Sizing{
		Types: []catalog.InstanceType{small}, Bounds: catalog.Bounds{MilliCPU: map[catalog.Class]int64{standard: 8_000}},
		Served: served, Needs: served,
	}.Capacity()
	for name, want := range map[corev1.ResourceName]string{"memory": "8Gi", "hugepages-2Mi": "8256Mi", "hugepages-32Mi": "8Gi"} {
		if got := list[name]; got.Cmp(resource.MustParse(want)) != 0 {
			t.Errorf("%s of %s, want %s", got.String(), name, want)
		}
	}
}

func TestAClassThatIsOfferedInSeveralSubnetsCountsOnce(t *testing.T) {
	one := catalog.InstanceType{Name: "t", Family: "standard", MilliCPU: 2000, MemoryBytes: gibi, Offerings: []catalog.PurchaseOption{
		{Subnet: "a"}, {Subnet: "b"}, {Subnet: "b", Dedicated: true}, {Subnet: "a", Reservation: "cr-1"},
	}}
	s := Sizing{Types: []catalog.InstanceType{one}, Bounds: catalog.Bounds{MilliCPU: map[catalog.Class]int64{standard: 10_000}}}
	if got := inWords(t, s.Capacity()); got != "10 5Gi 5" {
		t.Errorf("capacity is %s", got)
	}
}

func TestAnAnswerThatLacksABoundCountsTheSecondTime(t *testing.T) {
	all := catalog.Bounds{
		Machines: map[string]int64{"a": 7, "b": 8}, MilliCPU: map[catalog.Class]int64{standard: 64000}, MemoryBytes: 9,
	}
	less := catalog.Bounds{Machines: map[string]int64{"a": 0, "c": 1}}
	var held, last catalog.Bounds
	for step, tc := range []struct{ now, want catalog.Bounds }{
		{all, all},
		{less, catalog.Bounds{
			Machines: map[string]int64{"a": 7, "b": 8, "c": 1}, MilliCPU: map[catalog.Class]int64{standard: 64000}, MemoryBytes: 9,
		}},
		{less, catalog.Bounds{Machines: less.Machines, MilliCPU: map[catalog.Class]int64{}}},
		{all, catalog.Bounds{Machines: map[string]int64{"a": 7, "b": 8, "c": 1}, MilliCPU: all.MilliCPU, MemoryBytes: 9}},
		{all, all},
	} {
		held, last = Believed(held, last, tc.now), tc.now
		if !reflect.DeepEqual(held, tc.want) {
			t.Errorf("after answer %d it is %+v, want %+v", step, held, tc.want)
		}
	}
}
