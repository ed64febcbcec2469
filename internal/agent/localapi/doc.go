// Package localapi is what lies between itzo and the kubelet on a cell's
// loopback: a small PKI that only this machine knows, the HTTPS endpoint at
// which the kubelet finds "its API server", and the proxy into the kubelet's own
// server. It carries requests and decides nothing about them.
package localapi
