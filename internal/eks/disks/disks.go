// Package disks owns what a cluster has for disks, of EKS above all: the driver, the StorageClass that a claim of Kip's store can name, and
// the role of the driver. It asks the Kubernetes API, and changes nothing.
package disks

import (
	"context"
	"fmt"
	"slices"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/elotl/kip/internal/eks/wellknown"
)

// Disks is what a cluster has. It asks for a driver when that is needed, by its name, and once.
type Disks struct {
	// Classes are all StorageClasses, and Default is that of claims that name none, whatever its driver; nil if there is none.
	Classes []storagev1.StorageClass
	Default *storagev1.StorageClass

	kube    kubernetes.Interface
	auto    bool
	drivers map[string]bool // whether it has each that was asked for
}

// Find asks a cluster for its StorageClasses. auto says that EKS Auto Mode makes disks in it, whose driver no CSIDriver shows.
func Find(ctx context.Context, kube kubernetes.Interface, auto bool) (Disks, error) {
	classes, err := kube.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return Disks{}, fmt.Errorf("list the StorageClasses: %w", err)
	}
	d := Disks{Classes: classes.Items, kube: kube, auto: auto, drivers: map[string]bool{}}
	if n := slices.IndexFunc(d.Classes, isDefault); n >= 0 {
		d.Default = &d.Classes[n]
	}
	return d, nil
}

func isDefault(s storagev1.StorageClass) bool { return s.Annotations[wellknown.DefaultClass] == "true" }

// DriverOf is the driver that makes the disks of a provisioner: the API server has EBS' own carry out what was its own part before.
func DriverOf(provisioner string) string {
	if provisioner == wellknown.InTree {
		return wellknown.EBSDriver
	}
	return provisioner
}

// Has reports whether the cluster has the driver of a provisioner.
func (d Disks) Has(ctx context.Context, provisioner string) (bool, error) {
	driver := DriverOf(provisioner)
	if driver == wellknown.AutoDriver && d.auto {
		return true, nil
	}
	if has, known := d.drivers[driver]; known {
		return has, nil
	}
	if strings.Contains(driver, "/") { // of the API server itself, as kubernetes.io/no-provisioner, of which no CSIDriver can be called
		return false, nil
	}
	_, err := d.kube.StorageV1().CSIDrivers().Get(ctx, driver, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("get the CSIDriver %s: %w", driver, err)
	}
	d.drivers[driver] = err == nil
	return err == nil, nil
}

// Usable is the StorageClass for a claim, of a driver that the cluster has: the default one, else the first of EBS or of Auto Mode. It is
// nil if there is none but the one that is left out.
func (d Disks) Usable(ctx context.Context, but string) (*storagev1.StorageClass, error) {
	ofEKS := func(s storagev1.StorageClass) bool {
		return slices.Contains([]string{wellknown.EBSDriver, wellknown.AutoDriver}, DriverOf(s.Provisioner))
	}
	for _, wanted := range []func(storagev1.StorageClass) bool{isDefault, ofEKS} {
		for n := range d.Classes {
			s := &d.Classes[n]
			if s.Name == but || !wanted(*s) {
				continue
			}
			if has, err := d.Has(ctx, s.Provisioner); err != nil || has {
				return s, err
			}
		}
	}
	return nil, nil
}

// Driver is a driver of EKS that the cluster has, Auto Mode's first; "" if it has none.
func (d Disks) Driver(ctx context.Context) (string, error) {
	for _, name := range []string{wellknown.AutoDriver, wellknown.EBSDriver} {
		if has, err := d.Has(ctx, name); err != nil || has {
			return name, err
		}
	}
	return "", nil
}

// The service account of EBS' driver, and its pods, which make volumes. Source: aws-ebs-csi-driver,
// charts/aws-ebs-csi-driver/templates/controller.yaml.
const ebsAccount, ebsPods = "ebs-csi-controller-sa", "app=ebs-csi-controller"

// Role is by what EBS' driver has a role of its own: the ARN, or EKS Pod Identity. It is "" if the cluster does not know: the driver may
// have the rights of its node's role, which the API server does not show. Sources: EKS User Guide, "Assign IAM roles to Kubernetes service
// accounts", and "Attach an IAM Role to an Amazon EKS add-on using Pod Identity", by which EKS sets variables in containers.
func Role(ctx context.Context, kube kubernetes.Interface) (string, error) {
	account, err := kube.CoreV1().ServiceAccounts(metav1.NamespaceSystem).Get(ctx, ebsAccount, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("get the service account kube-system/%s: %w", ebsAccount, err)
	}
	if err == nil && account.Annotations[wellknown.RoleAnnotation] != "" {
		return account.Annotations[wellknown.RoleAnnotation], nil
	}
	pods, err := kube.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: ebsPods})
	if err != nil {
		return "", fmt.Errorf("list the pods of %s: %w", wellknown.EBSDriver, err)
	}
	for i := range pods.Items {
		if wellknown.ByPodIdentity(&pods.Items[i]) {
			return "EKS Pod Identity", nil
		}
	}
	return "", nil
}
