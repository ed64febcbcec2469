package admission

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/test/tier"
)

func TestOfAPodIsReadWhatItsPatchDependsOn(t *testing.T) {
	yes, ten := true, int64(10)
	required := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: expressions{{Key: "a", Operator: corev1.NodeSelectorOpIn, Values: []string{"b", "c"}}, {Key: "d"}},
		MatchFields:      expressions{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"kip-0"}}},
	}, {}}}
	want := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:            "p",
			GenerateName:    "p-",
			Annotations:     map[string]string{"a": "b", "c": ""},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "d", UID: "u", Controller: &yes}},
		},
		Spec: corev1.PodSpec{
			NodeName:     "kip-0",
			NodeSelector: map[string]string{"type": "virtual-kubelet"},
			Tolerations:  []corev1.Toleration{{Key: "k", TolerationSeconds: &ten}, {}},
			Affinity:     &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}},
		},
	}
	for _, pod := range []*corev1.Pod{want, {}, {Spec: corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{}}}}}} {
		more := pod.DeepCopy()
		more.Labels = map[string]string{"not": "read"}
		more.Spec.Containers = []corev1.Container{{Name: "main"}}
		object, err := json.Marshal(more)
		if err != nil {
			t.Fatal(err)
		}
		if got, _, err := podOf(object); err != nil || !reflect.DeepEqual(got, pod) {
			t.Errorf("%s\nis read as %+v, %v", object, got, err)
		}
	}
	for _, bad := range []string{`{"spec":{"tolerations":{}}}`, `{"metadata":{"annotations":[]}}`, `{"metadata":{"annotations":{"a":1}}}`} {
		var tooMany *tooManyError
		if _, _, err := podOf([]byte(bad)); err == nil || errors.As(err, &tooMany) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// Whoever reaches the port writes what makes the most of each byte.
func TestAForgedQuestionTakesLittleMemory(t *testing.T) {
	list := func(begin, one, end string) string {
		return begin + strings.Repeat(one+",", (bodyLimit-4<<10)/(len(one)+1)) + one + end
	}
	var keys strings.Builder
	for i := 0; keys.Len() < bodyLimit-4<<10; i++ {
		keys.WriteString(`"` + string(rune('0'+i%10)) + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + `":"",`)
		keys.WriteString(`"` + strings.ToLower(http.StatusText(404)) + string(rune(1000+i)) + `":"",`)
	}
	const required = `{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[`
	for says, c := range map[string]struct{ pod, warning string }{
		"containers":    {list(`{"spec":{"containers":[`, "{}", `]}}`), ""},
		"ports":         {list(`{"spec":{"containers":[{"ports":[`, "{}", `]}]}}`), ""},
		"host ports":    {list(`{"spec":{"containers":[{"ports":[`, `{"hostPort":1}`, `]}]}}`), "more than 32768 host ports"},
		"ports of many": {list(`{"spec":{"initContainers":[`, `{"ports":[{"hostPort":1}]}`, `]}}`), "more than 32768 host ports"},
		"constraints":   {list(`{"spec":{"topologySpreadConstraints":[`, "{}", `]}}`), ""},
		"anti-affinity": {list(`{"spec":{"affinity":{"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[`,
			`{"topologyKey":"kubernetes.io/hostname","labelSelector":{}}`, `]}}}}`), "more than 4096 terms by kubernetes.io/hostname"},
		"selectors": {list(`{"spec":{"topologySpreadConstraints":[{"topologyKey":"kubernetes.io/hostname","labelSelector":{"matchExpressions":[`,
			"{}", `]}}]}}`), ""},
		"labels":      {`{"metadata":{"labels":{` + keys.String() + `"z":""}}}`, ""},
		"annotations": {`{"metadata":{"annotations":{` + keys.String() + `"z":""}}}`, "more than 4096 annotations"},
		"owners":      {list(`{"metadata":{"ownerReferences":[`, "{}", `]}}`), "more than 256 owners"},
		"tolerations": {list(`{"spec":{"tolerations":[`, "{}", `]}}`), "more than 256 tolerations"},
		"terms":       {list(required, "{}", `]}}}}}`), "more than 32 terms"},
		"expressions": {list(required+`{"matchExpressions":[`, "{}", `]}]}}}}}`), "more than 32 expressions"},
		"fields":      {list(required+`{"matchFields":[`, "{}", `]}]}}}}}`), "more than 32 expressions"},
		"values":      {list(required+`{"matchExpressions":[{"values":[`, `""`, `]}]}]}}}}}`), "more than 256 values"},
	} {
		t.Run(says, func(t *testing.T) {
			if slices.Contains([]string{"ports", "constraints", "selectors"}, says) { // read as containers are
				tier.All(t)
			}
			body := asking(c.pod)
			var code int
			var answer []byte
			took := allocated(func() {
				w := serve(handler(), http.MethodPost, "/pods", strings.NewReader(body))
				code, answer = w.Code, w.Body.Bytes()
			})
			if most := uint64(12 * bodyLimit); took > most {
				t.Errorf("%d MiB, want %d at most", took>>20, most>>20)
			}
			var review admissionv1.AdmissionReview
			if err := json.Unmarshal(answer, &review); err != nil || code != http.StatusOK ||
				!review.Response.Allowed || review.Response.Patch != nil {
				t.Errorf("%d, %v: %.200s", code, err, answer)
				return
			}
			if got := strings.Join(review.Response.Warnings, "\n"); !strings.Contains(got, c.warning) || (got == "") != (c.warning == "") {
				t.Errorf("warnings %q, want %q", got, c.warning)
			}
		})
	}
}

// Of a pod that a profile may choose, more is read.
func TestAForgedQuestionAboutProfilesTakesLittleMemory(t *testing.T) {
	list := func(begin, one, end string) string {
		return begin + strings.Repeat(one+",", (bodyLimit-4<<10)/(len(one)+1)) + one + end
	}
	var keys, amounts strings.Builder
	for i := 0; keys.Len() < bodyLimit-4<<10; i++ {
		fmt.Fprintf(&keys, `"%d":"",`, i)
	}
	for i := range maxResources {
		fmt.Fprintf(&amounts, `"%d":"1",`, i)
	}
	many := strings.ReplaceAll(keys.String(), `""`, `"1"`)
	many = many[:strings.LastIndex(many[:bodyLimit-4<<10], ",")+1]
	const preferred = `{"spec":{"affinity":{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[`
	for says, c := range map[string]struct{ pod, warning string }{
		"labels":     {`{"metadata":{"labels":{` + keys.String() + `"z":""}}}`, "more than 4096 annotations, or labels"},
		"containers": {list(`{"spec":{"containers":[`, "{}", `]}}`), "more than 512 containers"},
		"resources":  {`{"spec":{"containers":[{"resources":{"requests":{` + many + `"z":"1"}}}]}}`, "more than 32 resources"},
		"resources of many": {list(`{"spec":{"initContainers":[`, `{"resources":{"requests":{`+amounts.String()+`"z":"1"}}}`, `]}}`),
			"more than 32 resources"},
		"as many as are read": {`{"spec":{"containers":[` + strings.Repeat(`{"resources":{"requests":{`+strings.TrimSuffix(amounts.String(), ",")+`}}},`, maxRequesting-1) + `{}]}}`, ""},
		"preferences":         {list(preferred, "{}", `]}}}}`), "more than 256 terms of preferred node affinity"},
	} {
		t.Run(says, func(t *testing.T) {
			body := asking(c.pod)
			var code int
			var answer []byte
			took := allocated(func() {
				w := serve(handler(), http.MethodPost, profiledPath, strings.NewReader(body))
				code, answer = w.Code, w.Body.Bytes()
			})
			most := uint64(16 * bodyLimit)
			if c.warning == "" {
				most *= 4 // all of it is parsed, which with the race detector takes ten times more
			}
			if took > most {
				t.Errorf("%d MiB, want %d at most", took>>20, most>>20)
			}
			var review admissionv1.AdmissionReview
			if err := json.Unmarshal(answer, &review); err != nil || code != http.StatusOK || review.Response.Patch != nil {
				t.Errorf("%d, %v: %.200s", code, err, answer)
				return
			}
			if got := strings.Join(review.Response.Warnings, "\n"); !strings.Contains(got, c.warning) || (got == "") != (c.warning == "") {
				t.Errorf("warnings %q, want %q", got, c.warning)
			}
		})
	}
}
