package stack

import (
	"cmp"
	"runtime"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/elotl/kip/dev/ec2/machines"
)

// configuring makes the configuration of Kips.
type configuring struct {
	*site
	images *images
	model  *model
}

// providerConfig is the provider.yaml of a Kip, as keys.
func (s *configuring) providerConfig(k *kip) map[string]any {
	mirror := []string{"http://" + s.images.Registry.Address()}
	mirrors := map[string]any{"docker.io": mirror, "_default": mirror}
	cloud := map[string]any{
		"stateDir": k.path("cloud"), "bridge": k.bridge, "cidr": k.cidr.String(),
		"nameservers": []string{s.address.String()}, // CoreDNS
	}
	if k.ipv6.IsValid() {
		cloud["ipv6CIDR"] = k.ipv6.String()
	}
	if len(s.opts.Zones) > 0 {
		cloud["zones"] = s.opts.Zones
	}
	cells := map[string]any{
		"defaultInstanceType": cmp.Or(s.opts.DefaultType, "small"),
		// On one machine one break is that of many cells, and tests break them on purpose.
		"endLimit": map[string]any{"least": 100},
		// What pods may ask for by annotation is granted by the policies of deploy/.
		"grants": map[string]any{
			"unrestricted": true, "maxKeepFailed": 3600, "unsafeSysctls": []string{"net.core.somaxconn"},
			"namespaces": []map[string]any{{"namespace": "*", "hostSysctls": []string{"*"}, "hostModules": []string{"*"}}},
		},
		"registryMirrors": mirrors,
	}
	name := CloudLocal
	switch s.opts.Cloud {
	case CloudQEMU:
		name, cloud["image"] = CloudQEMU, s.opts.bootImage()
	default:
		cloud["rootDir"] = s.opts.CellRoot
		if s.opts.GPUs > 0 {
			cloud["gpus"] = s.opts.GPUs
		}
	}
	if s.opts.DaemonSetMachines {
		cells["daemonSetMachines"] = true
	}
	if s.model.ec2 != nil {
		name, cloud = CloudAWS, s.model.awsConfig()
		mirrors[machines.Registry()] = []string{s.model.ec2.PodsURL()}
		cells["defaultInstanceType"] = cmp.Or(s.opts.DefaultType, machines.Types()[0].Name)
		cells["bootImageSpec"] = map[string]any{"name": machines.Image}
		if s.opts.Virtual() {
			cells["bootImageSpec"] = map[string]any{"name": "kip-cell-" + runtime.GOARCH + "-*"}
		}
	}
	// More than any test asks for: what fits is for placement to say, not for the scheduler.
	capacity := map[string]any{"cpu": s.opts.CPUs, "memory": "4Ti", "pods": "1000"}
	if s.opts.Cloud == CloudQEMU {
		capacity["hugepages-2Mi"] = "1Ti"
	}
	if s.opts.GPUs > 0 {
		capacity["nvidia.com/gpu"] = s.opts.CPUs
	}
	config := map[string]any{
		"apiVersion": "v1",
		"kind":       "serverConfig",
		"cloud":      map[string]any{name: cloud},
		"etcd":       map[string]any{"internal": map[string]any{"dataDir": k.path("kip")}},
		"cells":      cells,
		"kubelet":    map[string]any{"capacity": capacity},
		// The API server verifies kubelets, as most do.
		"servingCertificate": map[string]any{"signerName": certificatesv1.KubeletServingSignerName},
	}
	if nodes := s.opts.virtualNodes(); nodes != nil {
		config["nodes"] = nodes
	}
	return config
}
