//go:build e2e

package pods

import (
	"fmt"
	"testing"

	"github.com/elotl/kip/test/namespace"
)

func TestPodsOnTwoCellsReachEachOtherByPodIP(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.WebServer("server", "", "across"))
	s.Apply(namespace.Sleeper("client"))
	server, client := s.WaitReady("server"), s.WaitReady("client")
	if server.Status.PodIP == client.Status.PodIP || server.Status.HostIP == client.Status.HostIP {
		t.Fatalf("two pods share an address: %s on %s, %s on %s", server.Status.PodIP, server.Status.HostIP, client.Status.PodIP,
			client.Status.HostIP)
	}
	url := fmt.Sprintf("http://%s:8080/", server.Status.PodIP)
	if got := s.Kubectl("exec", "client", "--", "wget", "-qO-", url); got != "across\n" {
		t.Fatalf("the client got %q", got)
	}
	// And itself, by its own address.
	if got := s.Kubectl("exec", "server", "--", "wget", "-qO-", url); got != "across\n" {
		t.Fatalf("the server got %q from itself", got)
	}
}

func TestAHostNetworkPodHasTheCellsAddress(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.WebServer("a", "  hostNetwork: true\n", "host"))
	s.Apply(namespace.Sleeper("client"))
	pod := s.WaitReady("a")
	cell := s.CellOf("a")
	if pod.Status.PodIP != cell.Status.ManagementIP || pod.Status.HostIP != cell.Status.ManagementIP {
		t.Fatalf("pod IP %s, host IP %s; the cell's address is %s", pod.Status.PodIP, pod.Status.HostIP, cell.Status.ManagementIP)
	}
	s.WaitReady("client")
	if got := s.Kubectl("exec", "client", "--", "wget", "-qO-", fmt.Sprintf("http://%s:8080/", pod.Status.PodIP)); got != "host\n" {
		t.Fatalf("the client got %q", got)
	}
}
