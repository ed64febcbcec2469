package crd

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	apiv1 "github.com/elotl/kip/api/v1"
)

// ours is the version of this build's definition.
var ours = func() int {
	crd, err := apiv1.CustomResourceDefinition()
	if err != nil {
		panic(err)
	}
	version, err := apiv1.CRDVersion(crd)
	if err != nil {
		panic(err)
	}
	return version
}()

// definition returns this build's, with a version of its own ("" for none), served.
func definition(t *testing.T, version string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd, err := apiv1.CustomResourceDefinition()
	if err != nil {
		t.Fatal(err)
	}
	crd.Annotations = map[string]string{"of": "others"}
	if version != "" {
		crd.Annotations[apiv1.AnnotationCRDVersion] = version
	}
	crd.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{
		{Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue},
		{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue},
	}
	return crd
}

func TestUpdateReplacesWhatIsNotNewer(t *testing.T) {
	name := definition(t, "").Name
	resource := schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
	made, changed := apierrors.NewAlreadyExists(resource, name), apierrors.NewConflict(resource, name, errors.New("modified"))
	for what, tc := range map[string]struct {
		exists    string // the version of what is there; "none" for nothing
		verb      string
		fails     error  // once
		meanwhile string // the version of what another then makes
		want      Outcome
	}{
		"first":                        {exists: "none", want: Outcome{Ours: true, After: ours}},
		"without a version":            {want: Outcome{Found: true, Ours: true, After: ours}},
		"of this version":              {exists: strconv.Itoa(ours), want: Outcome{Found: true, Ours: true, Before: ours, After: ours}},
		"newer":                        {exists: strconv.Itoa(ours + 1), want: Outcome{Found: true, Before: ours + 1, After: ours + 1}},
		"another makes it meanwhile":   {exists: "none", verb: "create", fails: made, want: Outcome{Found: true, Ours: true, After: ours}},
		"another changes it meanwhile": {verb: "update", fails: changed, want: Outcome{Found: true, Ours: true, After: ours}},
		"another makes a newer meanwhile": {exists: "none", verb: "create", fails: made, meanwhile: strconv.Itoa(ours + 1),
			want: Outcome{Found: true, Before: ours + 1, After: ours + 1}},
	} {
		t.Run(what, func(t *testing.T) {
			other := func(version string) *apiextensionsv1.CustomResourceDefinition {
				crd := definition(t, version)
				crd.Spec.Names.ShortNames = []string{"other"}
				return crd
			}
			var objects []runtime.Object
			if tc.exists != "none" {
				objects = append(objects, other(tc.exists))
			}
			client := fake.NewSimpleClientset(objects...)
			failed := tc.fails == nil
			client.PrependReactor(tc.verb, "*", func(clienttesting.Action) (bool, runtime.Object, error) {
				if failed {
					return false, nil, nil
				}
				failed = true
				if tc.exists == "none" {
					if err := client.Tracker().Add(other(tc.meanwhile)); err != nil {
						t.Error(err)
					}
				}
				return true, nil, tc.fails
			})
			// What the fake does not do: the API server serves what it is given.
			client.PrependReactor("create", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
				crd := a.(clienttesting.CreateAction).GetObject().(*apiextensionsv1.CustomResourceDefinition)
				if failed {
					crd.Status = definition(t, "").Status
				}
				return false, nil, nil
			})
			crds := client.ApiextensionsV1().CustomResourceDefinitions()
			got, err := Update(t.Context(), crds)
			if err != nil || got != tc.want || !failed {
				t.Fatalf("it says %+v, %v; want %+v", got, err, tc.want)
			}
			is, err := crds.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || (is.Spec.Names.ShortNames[0] != "other") != tc.want.Ours {
				t.Errorf("there is %+v, %v; want that of this build: %v", is.Spec.Names, err, tc.want.Ours)
			}
			if tc.exists != "none" && is.Annotations["of"] != "others" {
				t.Errorf("the annotations are %v: those of others are gone", is.Annotations)
			}
			if version, err := apiv1.CRDVersion(is); err != nil || version != tc.want.After {
				t.Errorf("it has version %d, %v; want %d", version, err, tc.want.After)
			}
		})
	}
}

func TestCheckTellsWhyCellsCannotBeWritten(t *testing.T) {
	unserved := definition(t, strconv.Itoa(ours))
	unserved.Status.Conditions[1].Status = apiextensionsv1.ConditionFalse
	var older *OlderError
	for what, tc := range map[string]struct {
		exists *apiextensionsv1.CustomResourceDefinition
		is     func(error) bool
	}{
		"none":       {nil, apierrors.IsNotFound},
		"not served": {unserved, func(err error) bool { return errors.Is(err, ErrNotServed) }},
		"older":      {definition(t, ""), func(err error) bool { return errors.As(err, &older) && older.Has == 0 && older.Wants == ours }},
		"the same":   {definition(t, strconv.Itoa(ours)), func(err error) bool { return err == nil }},
		"newer":      {definition(t, strconv.Itoa(ours+5)), func(err error) bool { return err == nil }},
		"unreadable": {definition(t, "new"), func(err error) bool { return err != nil && strings.Contains(err.Error(), `"new"`) }},
	} {
		var objects []runtime.Object
		if tc.exists != nil {
			objects = append(objects, tc.exists)
		}
		if err := Check(t.Context(), fake.NewSimpleClientset(objects...).ApiextensionsV1().CustomResourceDefinitions()); !tc.is(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
