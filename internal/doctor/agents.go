package doctor

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/finding"
)

const (
	// bootLimit is how long a cell boots at most before it counts as stuck here. Most are Ready within a minute or two.
	bootLimit = 5 * time.Minute
	// dialLimit is how long Kip may fail to connect to a cell before that is a warning. A machine whose network is not up yet answers nothing
	// either.
	dialLimit = time.Minute
)

// agents checks whether Kip reaches its cells.
type agents struct{ *installation }

// join says whether cells join. Only Kip can dial their agents, so a cell that has joined is the proof.
func (k agents) join(ctx context.Context) []finding.Finding {
	cells, err := k.c.Cluster.Cells(ctx)
	if err != nil {
		return one(unasked("list the cells", err))
	}
	joined := 0
	var stuck, slow, unreached []apiv1.Cell
	for _, c := range cells {
		boots := k.c.Clock.Since(began(&c))
		switch {
		case c.Status.Phase == apiv1.Ready || c.Status.Phase == apiv1.Bound || c.Status.Phase == apiv1.Draining:
			joined++
		case c.Status.Phase != apiv1.Booting:
		case timedOut(&c) && boots > bootLimit:
			stuck = append(stuck, c)
		case timedOut(&c) && boots > dialLimit:
			unreached = append(unreached, c)
		case boots > bootLimit:
			slow = append(slow, c)
		}
	}
	const says = "Kip cannot connect to port 6421 of %d cells for more than %s, such as %s at %s (%s)"
	switch {
	case len(stuck) > 0:
		first := &stuck[0]
		return one(finding.Fail(k.open(first), says, len(stuck), bootLimit, first.Name, first.Status.ManagementIP, first.Status.Waiting))
	case len(slow) > 0:
		first := &slow[0]
		return one(finding.Fail(k.look(first), "%d cells boot for more than %s, such as %s (%s)", len(slow), bootLimit, first.Name,
			cmp.Or(first.Status.Waiting, "no reason is given")))
	case len(unreached) > 0:
		first := &unreached[0]
		return one(finding.Warn(k.open(first), says, len(unreached), dialLimit, first.Name, first.Status.ManagementIP, first.Status.Waiting))
	case joined > 0:
		return one(finding.Fine("Kip reaches its cells: %d have joined", joined))
	}
	return one(finding.Unchecked("whether Kip reaches port 6421 of its cells: no cell has joined. Run a pod with nodeSelector type: virtual-kubelet"))
}

// age says how many cells run old images or agents.
func (k agents) age(ctx context.Context) []finding.Finding {
	cells, err := k.c.Cluster.Cells(ctx)
	if err != nil {
		return one(unasked("list the cells", err))
	}
	count, images, oldAgents := 0, 0, 0
	var first *apiv1.Cell
	for i := range cells {
		c := &cells[i]
		if c.Status.Phase != apiv1.Ready && c.Status.Phase != apiv1.Bound {
			continue
		}
		count++
		if strings.Contains(c.Status.Old, "image") {
			images++
		}
		if strings.Contains(c.Status.Old, "agent") {
			oldAgents++
		}
		if c.Status.Old != "" && (first == nil || began(c).Before(began(first))) {
			first = c
		}
	}
	if first == nil {
		return one(finding.Fine("none of %d cells is known to have an old image or agent", count))
	}
	const cure = "kubectl get cells -o wide # set cells.maxAge in provider.yaml, or delete their pods: their controllers make others"
	return one(finding.Warn(cure, "of %d cells %d have an image that cells do not get any more, and %d an agent that is older than Kip, "+
		"the oldest %s since %s", count, images, oldAgents, first.Name, began(first).UTC().Format(time.RFC3339)))
}

// began is when a cell's machine was launched.
func began(c *apiv1.Cell) time.Time {
	for _, s := range c.Status.Steps {
		if s.Name == apiv1.StepLaunched {
			return s.Time.Time
		}
	}
	return c.CreationTimestamp.Time
}

// timedOut reports whether Kip has got no answer of a cell's machine. A machine without an agent refuses the connection, or ends it.
func timedOut(c *apiv1.Cell) bool { return strings.Contains(c.Status.Waiting, "i/o timeout") }

// open is the command that lets Kip connect to a cell's agent.
func (k agents) open(c *apiv1.Cell) string {
	at, node := cmp.Or(c.Status.ManagementIP, "ADDRESS"), "NODE"
	if len(k.pods) > 0 {
		node = cmp.Or(k.pods[0].Spec.NodeName, node)
	}
	policies := fmt.Sprintf("kubectl get networkpolicy -n %s # and the firewall of node %s: they must let Kip's pod connect to TCP port 6421 of %s "+
		"(docs/networking.md)", k.Namespace(), node, at)
	if !k.eks() {
		return policies
	}
	return fmt.Sprintf("aws ec2 authorize-security-group-egress --region %s --group-id %s --ip-permissions "+
		"'IpProtocol=tcp,FromPort=6421,ToPort=6421,IpRanges=[{CidrIp=%s/32}]' # or the network of the cells' subnets, if the group does not let all out\n%s",
		k.region(), k.nodeGroup(), at, policies)
}

// look is the command that shows what a cell waits for.
func (k agents) look(c *apiv1.Cell) string {
	ask := "console " + c.Name
	if pod := c.Status.Pod; pod.Name != "" {
		ask = "why " + pod.Namespace + "/" + pod.Name
	}
	return fmt.Sprintf("kubectl exec -n %s %s -c %s -- /kipctl %s", k.Namespace(), firstName(k.pods), kipContainer, ask)
}
