package aws

import (
	"slices"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/catalog/pricelists"
)

// architectures are EC2's, in Kubernetes' words. Macs have others.
var architectures = map[types.ArchitectureType]string{types.ArchitectureTypeX8664: "amd64", types.ArchitectureTypeArm64: "arm64"}

// bootModes are EC2's, in the catalogue's words.
var bootModes = map[types.BootModeType]string{types.BootModeTypeLegacyBios: bios, types.BootModeTypeUefi: "uefi"}

const bios = "bios"

// makersOfGPUs are those whose GPUs pods ask for by a resource, in EC2's words: the Gaudi of
// Habana is a GPU to EC2, and to no pod.
var makersOfGPUs = []string{"NVIDIA", "AMD"}

func typeOf(t types.InstanceTypeInfo) (catalog.InstanceType, bool) {
	nitro := t.Hypervisor == types.InstanceTypeHypervisorNitro || aws.ToBool(t.BareMetal)
	// A list that is not there says nothing.
	uefi := len(t.SupportedBootModes) == 0 || slices.Contains(t.SupportedBootModes, types.BootModeTypeUefi)
	if !nitro || !uefi || t.VCpuInfo == nil || t.MemoryInfo == nil || t.ProcessorInfo == nil || t.NetworkInfo == nil ||
		aws.ToInt32(t.NetworkInfo.Ipv4AddressesPerInterface) < 2 {
		return catalog.InstanceType{}, false
	}
	name := string(t.InstanceType)
	one := catalog.InstanceType{
		Name:             name,
		Family:           familyOf(name),
		MilliCPU:         int64(aws.ToInt32(t.VCpuInfo.DefaultVCpus)) * 1000,
		MemoryBytes:      aws.ToInt64(t.MemoryInfo.SizeInMiB) << 20,
		BaselineMilliCPU: baselines[name],
		BootTimeout:      BootTimeout(name),
		MaxDisks:         maxDisks(t),
	}
	for _, mode := range t.SupportedBootModes {
		if bootModes[mode] != "" {
			one.BootModes = append(one.BootModes, bootModes[mode])
		}
	}
	for _, a := range t.ProcessorInfo.SupportedArchitectures {
		if architectures[a] != "" {
			one.Arch = architectures[a]
		}
	}
	if t.GpuInfo != nil {
		for _, g := range t.GpuInfo.Gpus {
			if maker := aws.ToString(g.Manufacturer); maker != "" && !slices.Contains(makersOfGPUs, maker) {
				continue
			}
			one.GPUs = append(one.GPUs, catalog.GPU{Model: aws.ToString(g.Name), Count: int64(aws.ToInt32(g.Count))})
		}
	}
	return one, one.Arch != "" && one.MilliCPU > 0 && one.MemoryBytes > 0
}

// sharedAttachments is how many disks a type of the Nitro system takes that does not say how many: 28, less the
// interface. Source: EC2 User Guide, "Amazon EBS volume limits for Amazon EC2 instances".
const sharedAttachments = 27

// maxDisks is how many volumes a type takes besides its root disk. EC2 has subtracted what else counts of a cell:
// an interface and, where the limit is shared, the disks and the accelerators of the machine itself. It says
// "shared" of some machines of metal whose limit is not, which matters to those with more interfaces alone.
// Source: https://github.com/kubernetes-sigs/aws-ebs-csi-driver, pkg/cloud/limits and NodeService.getVolumesLimit.
func maxDisks(t types.InstanceTypeInfo) int64 {
	most := int64(sharedAttachments)
	if e := t.EbsInfo; e != nil && aws.ToInt32(e.MaximumEbsAttachments) > 0 {
		most = int64(*e.MaximumEbsAttachments)
	}
	return min(max(1, most-1), int64(len(deviceNames)))
}

// embeddedTypes are those of the embedded catalogue, read once: their prices, which are most
// of it, are not kept.
var embeddedTypes = sync.OnceValues(func() ([]catalog.InstanceType, error) {
	list, err := pricelists.Open("aws")
	return list.Types, err
})

// complete adds to types what EC2's API does not tell, or in other words: what a kernel sees of
// their memory and, as far as the embedded catalogue knows the type, the memory of its GPUs and
// its other accelerators.
func complete(kinds []catalog.InstanceType) error {
	embedded, err := embeddedTypes()
	if err != nil {
		return err
	}
	for i := range kinds {
		t := &kinds[i]
		t.UsableBytes = catalog.CloudSees(t.MemoryBytes)
		at, found := slices.BinarySearchFunc(embedded, t.Name, func(known catalog.InstanceType, name string) int {
			return strings.Compare(known.Name, name)
		})
		if !found || embedded[at].MemoryBytes != t.MemoryBytes {
			continue
		}
		known := embedded[at]
		t.Accelerators = known.Accelerators
		if burstable(t.Name) {
			t.CreditPerCPUHour = known.CreditPerCPUHour
		}
		if len(known.GPUs) == 1 && len(t.GPUs) == 1 && known.GPUs[0].Count == t.GPUs[0].Count {
			t.GPUs[0].MemoryBytes = known.GPUs[0].MemoryBytes
		}
	}
	return nil
}

// families are what EC2's quotas of vCPUs count apart, by the letters that a type begins
// with. Source: EC2 User Guide, "Amazon EC2 instance type quotas".
var families = map[string]string{
	"dl": "dl", "f": "f", "g": "g and vt", "gr": "g and vt", "vt": "g and vt", "hpc": "hpc", "inf": "inf", "mac": "mac", "p": "p",
	"trn": "trn", "u": "high memory", "x": "x",
}

// familyOf is the family of a type; all of the others share one.
func familyOf(instanceType string) string {
	letters := instanceType
	if n := strings.IndexFunc(instanceType, func(r rune) bool { return r < 'a' || r > 'z' }); n >= 0 {
		letters = instanceType[:n]
	}
	if f := families[letters]; f != "" {
		return f
	}
	return "standard"
}

// baselines are what burstable types sustain, in thousandths of a vCPU, which EC2's API
// does not tell. Source: EC2 User Guide, "Key concepts for burstable performance
// instances", the table of baseline utilization a vCPU, times the vCPUs.
var baselines = func() map[string]int64 {
	all := map[string]int64{}
	for _, family := range []string{"t3", "t3a", "t4g"} {
		for size, milli := range map[string]int64{
			"nano": 100, "micro": 200, "small": 400, "medium": 400, "large": 600, "xlarge": 1600, "2xlarge": 3200,
		} {
			all[family+"."+size] = milli
		}
	}
	return all
}()

// sellNoCredits has burstable types sustain their baseline and no more. What their boot is charged above that is no part
// of their price.
func sellNoCredits(kinds []catalog.InstanceType) {
	for n := range kinds {
		kinds[n].CreditPerCPUHour = 0
	}
}

// burstable says that a type runs on credits.
func burstable(instanceType string) bool { return baselines[instanceType] > 0 }

// dedicable says that a type may be of dedicated instances as far as that is known before a launch:
// of the burstable ones t3 only (EC2 User Guide, "Burstable performance instances"). Of another that
// may not EC2 says so at its launch (Unsupported).
func dedicable(instanceType string) bool {
	return !burstable(instanceType) || strings.HasPrefix(instanceType, "t3.")
}
