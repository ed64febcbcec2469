package eks

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// derived are the keys of provider.yaml that each run writes anew, by its flags and by what it finds in the account. Of all others it
// writes only those that an installed provider.yaml does not have.
var derived = []string{
	"apiVersion", "kind", "cloud.aws.region", "cloud.aws.vpcID", "cloud.aws.subnetID", "cloud.aws.clusterName", "cloud.aws.publicAddress",
	"cells.bootImageSpec", "cells.defaultInstanceType", "cells.defaultIAMPermissions", "cells.extraSecurityGroups", "cells.privateIPOnly",
}

// grantsKey is of the grants that a run writes, and that stay where somebody has changed them.
const grantsKey = "cells.grants"

// merged is the content of provider.yaml: settings, and what else the installed one has. It changes neither.
func merged(installed, settings map[string]any) (map[string]any, error) {
	text, err := yaml.Marshal(settings)
	if err != nil {
		return nil, err
	}
	written := map[string]any{}
	if err := yaml.Unmarshal(text, &written); err != nil {
		return nil, err
	}
	if len(installed) == 0 {
		return written, nil
	}
	all := unstructured.Unstructured{Object: installed}
	out := all.DeepCopy().Object
	for _, key := range derived {
		unstructured.RemoveNestedField(out, strings.Split(key, ".")...)
	}
	if grants, _, _ := unstructured.NestedFieldNoCopy(out, strings.Split(grantsKey, ".")...); open(grants) {
		unstructured.RemoveNestedField(out, strings.Split(grantsKey, ".")...)
	}
	return out, fill(out, written, nil)
}

// fill adds what is in from, and not in to. Maps that both have are filled; grants are one value.
func fill(to, from map[string]any, path []string) error {
	for key, value := range from {
		at := append(slices.Clone(path), key)
		has, there := to[key]
		part, isMap := value.(map[string]any)
		switch inner, same := has.(map[string]any); {
		case !there || has == nil:
			to[key] = value
		case !isMap || strings.Join(at, ".") == grantsKey:
		case !same && key == "capacity": // numbers by resource, or auto
		case !same:
			return fmt.Errorf("%s of the installed provider.yaml is %v: want keys and values", strings.Join(at, "."), has)
		default:
			if err := fill(inner, part, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// open reports whether grants are those that a run of this program has written, for whichever instance profiles.
func open(grants any) bool {
	all, _, err := unstructured.NestedSlice(map[string]any{"of": grants}, "of", "namespaces")
	if err != nil || len(all) != 1 {
		return false
	}
	of, is := all[0].(map[string]any)
	if !is {
		return false
	}
	delete(of, "instanceProfiles") // of the copy
	return len(grants.(map[string]any)) == 1 &&
		reflect.DeepEqual(of, map[string]any{"namespace": "*", "securityGroups": []any{"*"}, "allowMetadata": true})
}
