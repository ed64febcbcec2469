package local

import (
	"slices"
	"testing"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/cloud/local/sizes"
)

func TestAHostOffersNoTypeWithMoreCPUsThanItHas(t *testing.T) {
	for cpus, want := range map[int]string{1: "medium", 2: "large", 4: "xlarge", 64: "2xlarge"} {
		types := possible(sizes.Types("amd64"), cpus)
		if got := types[len(types)-1].Name; got != want {
			t.Errorf("with %d CPUs the largest is %s, want %s", cpus, got, want)
		}
	}
}

func TestTheTypeWithGPUsIsThereWhereItIsWanted(t *testing.T) {
	for count, want := range map[int]bool{0: false, 3: true} {
		c, err := Config{Config: host.Config{StateDir: t.TempDir()}, RootDir: "/root", GPUs: count}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(c.Catalogue, func(it catalog.InstanceType) bool { return it.Name == "medium-gpu" })
		if i >= 0 != want || want && standIns(c.Catalogue[i]) != count {
			t.Errorf("with %d stand-ins the types are %+v", count, c.Catalogue)
		}
	}
}
