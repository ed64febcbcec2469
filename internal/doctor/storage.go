package doctor

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/eks/disks"
	"github.com/elotl/kip/internal/eks/wellknown"
	"github.com/elotl/kip/internal/finding"
)

// storage checks what Kip's store and pods on cells need of the cluster's disks.
type storage struct{ *installation }

// addDriver is the command that gives a cluster of EKS a driver for the claim of Kip's store, and a default StorageClass.
func (k storage) addDriver(ctx context.Context, has disks.Disks) (string, error) {
	driver, err := has.Driver(ctx)
	if err != nil || driver != "" {
		return `echo '{"apiVersion":"storage.k8s.io/v1","kind":"StorageClass","metadata":{"name":"kip-store","annotations":{"` + wellknown.DefaultClass +
			`":"true"}},"provisioner":"` + driver + `","volumeBindingMode":"WaitForFirstConsumer"}' | kubectl apply -f -`, err
	}
	return wellknown.CreateEBSDriver(k.region(), k.clusterName(), "ACCOUNT"), nil
}

// noDriver is the finding for a cluster of EKS whose claim of Kip's store gets no volume.
func (k storage) noDriver(ctx context.Context, has disks.Disks, format string, args ...any) []finding.Finding {
	cure, err := k.addDriver(ctx, has)
	if err != nil {
		return one(unasked(lookForDriver, err))
	}
	return one(finding.Fail(cure, format, args...))
}

// lookForDriver is what is asked about drivers.
const lookForDriver = "look for the driver of disks"

// disks names StorageClasses whose volumes pods on cells cannot have, as those of EKS Auto Mode.
func (k storage) disks(ctx context.Context) []finding.Finding {
	list, err := k.c.Cluster.Kube.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return one(unasked("list the StorageClasses", err))
	}
	var found []finding.Finding
	for _, s := range list.Items {
		if s.Provisioner == wellknown.AutoDriver {
			found = append(found, finding.Warn("kubectl get storageclass kip # name it in the claims of pods on cells",
				"StorageClass %s is of EKS Auto Mode: no cell gets its disks, so pods with such claims wait on Kip's nodes", s.Name))
		}
	}
	if found == nil {
		found = one(finding.Fine("no StorageClass is of EKS Auto Mode, whose disks no cell gets"))
	}
	return found
}

// classOf chooses the StorageClass of the claim of Kip's store among several: the only one, on EKS one of a driver that is there, else the
// reader chooses.
func (k storage) classOf(ctx context.Context, has disks.Disks, names []string) (string, error) {
	if k.eks() {
		usable, err := has.Usable(ctx, "")
		switch {
		case err != nil:
			return "", err
		case usable != nil:
			return usable.Name, nil
		}
	}
	if len(names) == 1 {
		return names[0], nil
	}
	return "NAME", nil
}

// useClass is the command that has the claim of Kip's store be of a StorageClass. A claim that is there and has no class takes one. Source:
// Kubernetes, pkg/apis/core/validation, validateStorageClassUpgradeFromNil.
func (k storage) useClass(class string) string {
	if len(k.pods) == 0 {
		return k.set("persistence.storageClassName=" + class)
	}
	claim := "CLAIM"
	for _, v := range k.pods[0].Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			claim = v.PersistentVolumeClaim.ClaimName
		}
	}
	return fmt.Sprintf(`kubectl patch pvc -n %s %s -p '{"spec":{"storageClassName":"%s"}}'`, k.Namespace(), claim, class)
}

// storageClass says whether the claim of Kip's store gets a volume.
func (k storage) storageClass(ctx context.Context) []finding.Finding {
	if k.c.Provider != nil && len(k.c.Provider.Etcd.Client.Endpoints) > 0 {
		return one(finding.Fine("Kip's store is an etcd of yours: it needs no claim"))
	}
	for i := range k.pods {
		if ofKipPod(&k.pods[i]).Outcome == finding.OK {
			return one(finding.Fine("Kip's pod %s is Ready, so its store has its volume", k.pods[i].Name))
		}
	}
	if !k.looked {
		return one(finding.Unchecked("whether the claim of Kip's store gets a volume: it is not known whether Kip is here"))
	}
	has, err := disks.Find(ctx, k.c.Cluster.Kube, k.auto())
	if err != nil {
		return one(unasked(lookForDriver, err))
	}
	if has.Default != nil {
		return k.driver(ctx, has)
	}
	return k.noDefault(ctx, has)
}

// noDefault says what a cluster without a default StorageClass lacks.
func (k storage) noDefault(ctx context.Context, has disks.Disks) []finding.Finding {
	// One of Kip's own has disks that only cells have: Kip's pod is on an ordinary node.
	var others []string
	driven := false // by a driver that is there
	for _, s := range has.Classes {
		if s.Provisioner == "disk.kip.elotl.co" {
			continue
		}
		others = append(others, s.Name)
		if k.eks() && !driven {
			var err error
			if driven, err = has.Has(ctx, s.Provisioner); err != nil {
				return one(unasked(lookForDriver, err))
			}
		}
	}
	switch {
	case len(others) > 0 && k.eks() && !driven:
		return k.noDriver(ctx, has, "the cluster has no default StorageClass, and the driver of none of %s: the claim of Kip's store gets no volume",
			orNone(others))
	case len(others) > 0:
		class, err := k.classOf(ctx, has, others)
		if err != nil {
			return one(unasked(lookForDriver, err))
		}
		return one(finding.Fail(k.useClass(class),
			"the cluster has no default StorageClass, so the claim of Kip's store gets no volume, unless persistence.storageClassName names one of %s",
			orNone(others)))
	case k.eks():
		return k.noDriver(ctx, has, "the cluster has no StorageClass: the claim of Kip's store gets no volume")
	}
	return one(finding.Fail("kubectl apply -f storageclass.yaml # a StorageClass of your cluster's driver; or an etcd of yours: config.etcd.client",
		"the cluster has no StorageClass: the claim of Kip's store gets no volume"))
}

// driver says whether the cluster has the driver of its default StorageClass, and whether that has a role.
func (k storage) driver(ctx context.Context, has disks.Disks) []finding.Finding {
	usual, driver := has.Default, disks.DriverOf(has.Default.Provisioner)
	if strings.HasPrefix(driver, "kubernetes.io/") {
		return one(finding.Unchecked("the default StorageClass %s is of %s, of which no CSIDriver tells whether it is here", usual.Name, driver))
	}
	if driver == wellknown.EBSDriver {
		switch is, err := has.Has(ctx, driver); {
		case err != nil:
			return one(unasked(lookForDriver, err))
		case !is:
			return k.noDriver(ctx, has, "the default StorageClass %s is of %s, and the cluster does not have the driver %s: the claim of Kip's store "+
				"gets no volume", usual.Name, usual.Provisioner, driver)
		}
	}
	found := one(finding.Fine("the default StorageClass is %s, of %s", usual.Name, usual.Provisioner))
	if driver != wellknown.EBSDriver || !k.eks() {
		return found
	}
	role, err := disks.Role(ctx, k.c.Cluster.Kube)
	if role != "" {
		return append(found, finding.Fine("the driver %s has its role by %s", driver, role))
	}
	unknown := finding.Unchecked("whether the driver %s has its role, without which the claim of Kip's store gets no volume", driver)
	if err != nil {
		unknown.Message += ": " + err.Error()
	}
	unknown.Cure = wellknown.ShowEBSDriver(k.region(), k.clusterName())
	return append(found, unknown)
}
