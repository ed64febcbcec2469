package v1

import "testing"

func TestPricesReadAsPeopleWriteThem(t *testing.T) {
	for dollars, want := range map[float64]string{0: "0", 0.0045 * 2: "0.009", 0.1 + 0.2: "0.3", 32.7726: "32.7726", 12: "12"} {
		if got := Price(dollars); got != want {
			t.Errorf("Price(%v) = %q, want %q", dollars, got, want)
		}
	}
}

func TestTheEmbeddedDefinitionIsTheGroupsOwn(t *testing.T) {
	crd, err := CustomResourceDefinition()
	if err != nil {
		t.Fatal(err)
	}
	if crd.Name != Resource.Resource+"."+GroupVersion.Group || crd.Spec.Names.Kind != Kind ||
		crd.Spec.Versions[0].Name != GroupVersion.Version {
		t.Fatalf("it defines %s, kind %s, version %s", crd.Name, crd.Spec.Names.Kind, crd.Spec.Versions[0].Name)
	}
}
