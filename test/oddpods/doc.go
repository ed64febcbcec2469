// Package oddpods makes pods with odd values in any field of the API, from a seed.
// It must not touch a cluster: who posts a pod, or gives it to Kip's code, is a
// test.
//
// Values are made from the API's types by reflection, so that a field that is new
// in them is there too. Any fills every field with anything; Posted changes some
// fields of a pod that runs, to values that an API server may admit.
package oddpods
