package pods

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAPodsCostIsPutDownToItsController(t *testing.T) {
	yes := true
	owner := func(kind, name string, controller *bool) metav1.OwnerReference {
		return metav1.OwnerReference{Kind: kind, Name: name, Controller: controller}
	}
	set := owner("ReplicaSet", "web-7d4b", &yes)
	for _, tc := range []struct {
		owners []metav1.OwnerReference
		labels map[string]string
		want   string
	}{
		{nil, nil, "{ map[]}"},
		{[]metav1.OwnerReference{owner("StatefulSet", "db", &yes)}, map[string]string{"team": "blue", "x": "y"},
			"{StatefulSet/db map[team:blue]}"},
		{[]metav1.OwnerReference{set}, map[string]string{"pod-template-hash": "7d4b"}, "{Deployment/web map[]}"},
		{[]metav1.OwnerReference{set}, map[string]string{"pod-template-hash": "other"}, "{ReplicaSet/web-7d4b map[]}"},
		{[]metav1.OwnerReference{owner("ReplicaSet", "web-", &yes)}, nil, "{ReplicaSet/web- map[]}"},
		{[]metav1.OwnerReference{owner("Job", "x-7d4b", &yes)}, map[string]string{"pod-template-hash": "7d4b"}, "{Job/x-7d4b map[]}"},
		{[]metav1.OwnerReference{owner("Node", "n", nil), owner("Job", "x", &yes)}, map[string]string{"team": ""}, "{Job/x map[team:]}"},
		{[]metav1.OwnerReference{owner("Node", "n", nil)}, nil, "{ map[]}"},
		{[]metav1.OwnerReference{owner(strings.Repeat("K", 5000), "x", &yes)}, nil, "{" + strings.Repeat("K", mostKind) + "/x map[]}"},
		{[]metav1.OwnerReference{owner("Job", strings.Repeat("é", 5000), &yes)}, nil, "{Job/" + strings.Repeat("é", mostName/2) + " map[]}"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: tc.owners, Labels: tc.labels}}
		got := account(pod, []string{"team", "absent"})
		if fmt.Sprint(got) != tc.want {
			t.Errorf("owners %v, labels %v: %v, want %s", tc.owners, tc.labels, got, tc.want)
		}
	}
}
