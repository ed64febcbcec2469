package main

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/catalog/pricelists"
)

func TestTheCataloguesAreThoseOfTheFigures(t *testing.T) {
	made, err := read(folder("data"))
	if err != nil {
		t.Fatal(err)
	}
	if len(made) != len(pricelists.Clouds()) {
		t.Fatalf("made %d catalogues, and %v are embedded", len(made), pricelists.Clouds())
	}
	for _, want := range made {
		got, err := pricelists.Open(want.Cloud)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("the catalogue of %s is not that of hack/catalog/data: make catalog", want.Cloud)
		}
	}
}

// changed is the folder with one text replaced in one file.
type changed struct{ file, from, to string }

func (c changed) ReadFile(name string) ([]byte, error) {
	if name == "aws-zones.json" { // the largest, in which nothing is changed
		return []byte(`{"asOf": "", "source": [], "zones": {}, "offerings": {}}`), nil
	}
	data, err := os.ReadFile("data/" + name)
	if err != nil || name != c.file {
		return data, err
	}
	if !strings.Contains(string(data), c.from) {
		return nil, os.ErrNotExist
	}
	return []byte(strings.Replace(string(data), c.from, c.to, 1)), nil
}

// onlyAWS reads one cloud, which is enough to see that what is wrong is found.
func onlyAWS(c changed) error {
	f := &figures{source: c}
	aws(f)
	return f.err()
}

func TestWrongFiguresAreRefusedWithFileLineAndField(t *testing.T) {
	const prices, types = "aws-prices.json", "aws-instance-types.json"
	for _, c := range []struct {
		change changed
		want   string
	}{
		{changed{prices, `"a1.2xlarge": 0.204`, `"a1.2xlarge": -0.204`}, "aws-prices.json:12: prices.us-east-1.a1.2xlarge: -0.204 is no price"},
		{changed{prices, `"a1.2xlarge": 0.204`, `"a1.2xlarge": 0`}, "aws-prices.json:12: prices.us-east-1.a1.2xlarge: 0 is no price"},
		{changed{prices, `"a1.2xlarge": 0.204`, `"a1.2xlarge": NaN`}, "aws-prices.json:12: prices.us-east-1.a1.2xlarge: NaN is no number"},
		{changed{prices, `"a1.2xlarge": 0.204`, `"a1.2xlarge": 20400`}, "aws-prices.json:12: prices.us-east-1.a1.2xlarge: 20400 is no price"},
		{changed{prices, `"a1.4xlarge": 0.408`, `"a1.2xlarge": 0.408`},
			"aws-prices.json:13: prices.us-east-1.a1.2xlarge: it is there twice: first on line 12"},
		{changed{types, `"vcpu": 8}`, `"vcpus": 8}`}, "types.a1.2xlarge.vcpus: it is unknown"},
		{changed{types, `, "vcpu": 8}`, `}`}, "types.a1.2xlarge.vcpu: it is missing"},
		{changed{types, `"memoryMiB": 16384`, `"memoryMiB": 16384000000`}, "types.a1.2xlarge.memoryMiB: 16384000000 is not possible"},
		{changed{"aws-extras.json", `"t3": 0.05`, `"t33": 0.05`}, "it is burstable, and creditPerVcpuHour of aws-extras.json has no t3"},
	} {
		err := onlyAWS(c.change)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: got %v, want %s", c.change, err, c.want)
		}
	}
}
