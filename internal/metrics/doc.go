// Package metrics owns what Kip tells Prometheus about itself, and the health and
// readiness endpoints beside it. It decides nothing and keeps nothing that outlives
// the process: whoever does the work tells it, or is asked at the scrape.
//
//	metrics.go    what is measured by whom: the registry and its families
//	cells.go      the life of cells, told by package cells
//	scrape.go     what is read at a scrape: cells that exist, cost
//	cloud.go      calls to the cloud, around any cloud.Cloud
//	clients.go    work queues, requests to the API server, the store
//	cellapi.go    what cells ask of their API, and are refused
//	health.go     /metrics, /healthz, /readyz
//	kubelet.go    /metrics of the kubelet port of a virtual node
//	reference.go  docs/metrics.md
package metrics
