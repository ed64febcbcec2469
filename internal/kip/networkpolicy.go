package kip

import (
	"context"
	"net/netip"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/egress"
	"github.com/elotl/kip/internal/networkpolicy"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/pods"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// isolated tells what keeps firewalls of cells.
type isolated struct {
	cells.Unobserved
	firewalls *networkpolicy.Controller
}

var _ cells.Observer = isolated{}

func (i isolated) CellChanged(c cells.Cell) {
	switch {
	case !c.Live() && !c.Kept():
		i.firewalls.Gone(c.ID)
	case c.Pod.UID != "" && c.Instance != nil && c.Instance.PodIP.IsValid():
		i.firewalls.Bound(networkpolicy.Cell{
			ID:       c.ID,
			Pod:      c.Pod,
			PodIP:    c.Instance.PodIP,
			PodIPv6:  c.Instance.PodIPv6,
			Subnet:   c.Instance.Subnet,
			PublicAt: publicAt(c),
		})
		if c.Kept() {
			i.firewalls.Isolate(c.ID)
		}
	}
}

// publicAt is the cell's own address if a public one leads there. A cloud may tell the public one later
// than the others, so what the launch asked for counts, too.
func publicAt(c cells.Cell) netip.Addr {
	if c.Instance.PublicIP.IsValid() || c.Launch != nil && c.Launch.PublicAddress {
		return c.Instance.ManagementIP
	}
	return netip.Addr{}
}

func (i isolated) CellConnected(c cells.Cell, agent agentapi.Conn) {
	i.CellChanged(c)
	i.firewalls.Connected(c.ID, agent)
}

// allowsMetadata returns what says whether a pod asks for the metadata service and may
// have it. One whose annotations are not valid does not ask; placement has said so.
func allowsMetadata(grants pods.Grants) func(namespace string, annotations map[string]string) bool {
	return func(namespace string, annotations map[string]string) bool {
		a, err := placement.ParseAnnotations(annotations)
		return err == nil && a.AllowMetadata != nil && *a.AllowMetadata && grants.AllowsMetadata(namespace)
	}
}

// protobuf returns a client as Kip itself for kinds of which there are many.
func (a *apiServer) protobuf() (kubernetes.Interface, error) {
	own := rest.CopyConfig(a.ownConfig)
	own.ContentType = runtime.ContentTypeProtobuf
	own.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return kubernetes.NewForConfig(own)
}

// openEgress makes what knows where pods' packets leave with their cell's address; nil where none do.
func (t *term) openEgress(ctx context.Context, machines *pipe.Pipe) (*egress.Egress, error) {
	ways := machines.Optional().Egress
	if ways == nil || !t.cfg.Cells.Masquerade {
		return nil, nil
	}
	return egress.Open(ctx, egress.Config{
		Cloud: ways,
		Store: t.store,
		Clock: t.clock,
		Log:   t.Log,
	})
}

// masquerade is what firewalls ask; nil where no cell masquerades.
func masquerade(out *egress.Egress) func(subnet string) (except []netip.Prefix, does, known bool) {
	if out == nil {
		return nil
	}
	return out.Masquerade
}
