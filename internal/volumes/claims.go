package volumes

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// WatchClaims returns an informer of all claims, of which it keeps the names alone: it tells that one has changed. What it is
// now is read from the API server.
func WatchClaims(client kubernetes.Interface) (cache.SharedIndexInformer, error) {
	claims := informers.NewSharedInformerFactory(client, 0).Core().V1().PersistentVolumeClaims().Informer()
	err := claims.SetTransform(func(obj any) (any, error) {
		claim, is := obj.(*corev1.PersistentVolumeClaim)
		if !is {
			return obj, nil
		}
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
			Name: claim.Name, Namespace: claim.Namespace, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
		}}, nil
	})
	return claims, err
}
