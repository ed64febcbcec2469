package sysctls

import (
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	for name, want := range map[string]bool{
		"a":                            true,
		"vm.max_map_count":             true,
		"net/core/rmem_max":            true,
		"net.ipv4.conf.eth0/100.rp":    true,
		strings.Repeat("a", maxName):   true,
		strings.Repeat("a", maxName+1): false,
		"":                             false,
		".":                            false,
		"vm.":                          false,
		"vm..max":                      false,
		"vm/../max":                    false,
		"Vm.max":                       false,
		"vm.max ":                      false,
		"vm.max\n":                     false,
		"_vm":                          false,
	} {
		if got := IsName(name); got != want {
			t.Errorf("IsName(%q) = %t", name, got)
		}
	}
	for name, want := range map[string]bool{
		"kernel.msgmax": true, "kernel/msgmax": true, "net.core.somaxconn": true, "fs.mqueue.msg_max": true, "vm.max_map_count": false,
		"kernel.panic": false,
	} {
		if got := IsNamespaced(name); got != want {
			t.Errorf("IsNamespaced(%q) = %t", name, got)
		}
	}
}
