package kip

import (
	"context"
	"strings"

	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/volumes"
	appsv1 "k8s.io/api/apps/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// csiDrivers are those whose node plugins run on cells. Nodes may read CSIDrivers,
// but no DaemonSets.
func (api *apiServer) csiDrivers(cfg *config.Config) volumes.Drivers {
	sets, beside := map[string]cache.ObjectName{}, map[string]bool{}
	for _, d := range cfg.Cells.CSIDrivers {
		namespace, name, _ := strings.Cut(d.DaemonSet, "/")
		sets[d.Name], beside[d.Name] = cache.NewObjectName(namespace, name), d.Beside
	}
	return volumes.Drivers{
		DaemonSets: sets,
		Beside:     beside,
		CSIDriver: func(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
			return api.asNode.StorageV1().CSIDrivers().Get(ctx, name, metav1.GetOptions{})
		},
		DaemonSet: func(ctx context.Context, name cache.ObjectName) (*appsv1.DaemonSet, error) {
			return api.asKip.AppsV1().DaemonSets(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
		},
	}
}
