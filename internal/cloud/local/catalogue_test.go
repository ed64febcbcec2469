package local

import (
	"testing"

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
