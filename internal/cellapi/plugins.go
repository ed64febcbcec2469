package cellapi

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elotl/kip/internal/sanitize"
	"github.com/elotl/kip/internal/watches"
)

// maxTrouble bounds what is kept of a kubelet's message about a plugin, in bytes.
const maxTrouble = 512

// PluginTrouble is the last warning of the cell's kubelet about the node plugin of a
// CSI driver, of those with the same reason the one that says most; "" for none.
func (c *eventAPI) PluginTrouble() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trouble
}

// notePlugin notes what an event says of a plugin. No object of the cluster stands
// for a plugin, so the event goes nowhere else.
func (c *eventAPI) notePlugin(event watches.APIObject) {
	reason, trouble := warningOf(event)
	if trouble == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// A kubelet that has said why it failed goes on to say that it failed.
	if c.trouble == trouble || strings.HasPrefix(c.trouble, reason+": ") && len(trouble) < len(c.trouble) {
		return
	}
	c.trouble = trouble
	if !c.refusals.AllowN(c.server.clock.Now(), 1) {
		return
	}
	c.server.log.Warn("a node plugin does not fare well", "cell", c.id, "reason", reason, "message", trouble)
}

// noteCopy notes what an event says of a pod of a DaemonSet.
func (c *eventAPI) noteCopy(uid types.UID, event watches.APIObject) {
	if _, trouble := warningOf(event); trouble != "" {
		c.pod.troubleOf(uid, trouble)
	}
}

// warningOf returns the reason of an event that warns, and all that it says; nothing of another.
func warningOf(event watches.APIObject) (reason, trouble string) {
	var kind, message string
	switch e := event.(type) {
	case *corev1.Event:
		kind, reason, message = e.Type, e.Reason, e.Message
	case *eventsv1.Event:
		kind, reason, message = e.Type, e.Reason, e.Note
	}
	if kind != corev1.EventTypeWarning {
		return "", ""
	}
	return sanitize.Printable(cut(reason, 128)), sanitize.Printable(cut(reason+": "+message, maxTrouble))
}
