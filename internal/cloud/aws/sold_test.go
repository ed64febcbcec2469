package aws

import (
	"testing"
	"time"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

func TestTypesAreKnownWhileTheyAreToBeReadAgain(t *testing.T) {
	var s soldTypes
	s.set([]catalog.InstanceType{{Name: "g5.xlarge", GPUs: []catalog.GPU{{}}, BootModes: []string{"uefi"}}}, time.Unix(1, 0))
	s.forget()
	if all, _ := s.read(); all != nil {
		t.Errorf("%v is not read again", all)
	}
	if !s.wantsDriver(cloud.LaunchSpec{InstanceType: "g5.xlarge"}) {
		t.Error("a standby cell with GPUs boots an image without their driver")
	}
	if s.hasBIOS("g5.xlarge") {
		t.Error("a type that boots by UEFI alone is taken for one with a BIOS")
	}
}
