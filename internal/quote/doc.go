// Package quote says what the pods of manifests would cost on Kip, before they run and
// without a cluster. It owns no choice and no price: those are placement's and the
// catalogue's.
//
//	manifest.go  manifests → workloads
//	check.go     what is wrong with a manifest, by line
//	schedule.go  how often a CronJob runs
//	quote.go     workloads → prices
//	fargate.go   what Fargate charges for the same
package quote
