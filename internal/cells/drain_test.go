package cells

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/elotl/kip/internal/agentapi"
)

func TestTheLogsOfAPodThatEndedAreSavedBeforeItsInstanceEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		ended bool
		fails error
		saved int
		said  int
	}{
		"ended": {ended: true, saved: 1},
		"ended, and they are not read": {
			ended: true,
			fails: errors.New("disk full"),
			saved: 1,
			said:  1,
		},
		"deleted": {},
	} {
		t.Run(name, func(t *testing.T) {
			saved := 0
			var instances func() []string
			inBubble(t, func(c *setup) {
				c.Logs = saves(func(_ context.Context, cell Cell, agent agentapi.Conn) error {
					saved++
					if cell.Pod != ref("a") || agent == nil || len(instances()) != 1 {
						t.Errorf("logs of %s are asked of %v while the instances are %v", cell.Pod, agent, instances())
					}
					return tc.fails
				})
			}, nil, func(t *testing.T, b *bubble) {
				instances = b.cloud.running
				b.request("a", "nano")
				b.later(10 * time.Second)
				b.cells.Release(ref("a").UID, "done", tc.ended)
				b.later(10 * time.Second)
				if b.phase("a") != "" || len(b.cloud.running()) != 0 {
					t.Errorf("the cell is %q, instances %v", b.phase("a"), b.cloud.running())
				}
				if got := len(b.said("LogsNotSaved", "disk full")); saved != tc.saved || got != tc.said {
					t.Errorf("saved %d times, said %d times; want %d and %d", saved, got, tc.saved, tc.said)
				}
			})
		})
	}
}

// streamed are Logs of pods whose cells somebody reads of.
type streamed struct {
	saves
	finish func(types.UID)
}

func (s streamed) HasStreams(types.UID) bool { return true }

func (s streamed) Finish(_ context.Context, pod types.UID) { s.finish(pod) }

// On a node who lags reads on after the pod has ended, and after it was deleted.
func TestWhatIsReadOfACellIsReadToItsEndBeforeTheInstanceEnds(t *testing.T) {
	for _, ended := range []bool{true, false} {
		finished := 0
		var instances func() []string
		inBubble(t, func(c *setup) {
			c.Logs = streamed{
				saves: func(context.Context, Cell, agentapi.Conn) error { return nil },
				finish: func(pod types.UID) {
					finished++
					if pod != ref("a").UID || len(instances()) != 1 {
						t.Errorf("the streams of %s are finished while the instances are %v", pod, instances())
					}
				},
			}
		}, nil, func(t *testing.T, b *bubble) {
			instances = b.cloud.running
			b.request("a", "nano")
			b.later(10 * time.Second)
			b.cells.Release(ref("a").UID, "done", ended)
			b.later(10 * time.Second)
			if b.phase("a") != "" || len(b.cloud.running()) != 0 || finished == 0 {
				t.Errorf("the cell is %q, instances %v; its streams were finished %d times", b.phase("a"), b.cloud.running(), finished)
			}
		})
	}
}
