package faults

import (
	"sync"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/elotl/kip/internal/cloud"
	corev1 "k8s.io/api/core/v1"
)

// What a thousand pods of one kind may take until all of their instances are launched, under the limits
// that EC2 documents: five calls at once, and two a second from then on, of fifty instances each.
const (
	burstPods, burstPodsShort = 1000, 200
	burstTime                 = 15 * time.Second
	burstBefore               = 2 // calls for those that come before all are there
)

func TestAThousandPodsAreLaunchedWithinTheLimitsOfEC2(t *testing.T) {
	cryptotest.SetGlobalRandom(t, 1)
	defer watchdog("a burst of a thousand pods on EC2", time.Hour)()
	pods := burstPods
	if testing.Short() {
		pods = burstPodsShort
	}
	most := (pods+cloud.MaxLaunch-1)/cloud.MaxLaunch + burstBefore
	calls, throttled, made := 0, 0, 0
	var took time.Duration
	synctest.Test(t, func(*testing.T) {
		var mu sync.Mutex
		counting := false
		count := func(now bool) {
			mu.Lock()
			defer mu.Unlock()
			counting = now
		}
		w := newWorld(setting{
			seed:   1,
			knobs:  dayKnobs(),
			ec2:    true,
			shared: true,
			most:   2 * pods,
			heard: func(action, code string, _ bool) {
				mu.Lock()
				defer mu.Unlock()
				if counting && action == "RunInstances" {
					calls++
				}
				if counting && code == "RequestLimitExceeded" {
					throttled++
				}
			},
		})
		w.rest()
		time.Sleep(time.Minute) // Kip has begun, and the buckets are full
		count(true)
		began := time.Now()
		for range pods {
			if w.addPod(corev1.RestartPolicyAlways, "small", true, 5) != "" {
				made++
			}
		}
		for len(w.cloud.Truth()) < pods && time.Since(began) < 4*burstTime {
			time.Sleep(100 * time.Millisecond)
		}
		took = time.Since(began)
		time.Sleep(burstTime) // nothing more is launched
		count(false)
		if n := len(w.cloud.History()); n != pods {
			t.Errorf("%d instances were launched for %d pods", n, made)
		}
		w.close()
		w.rest()
	})
	t.Logf("%d pods: all launched after %s, by %d calls of RunInstances; %d calls were throttled", made, took, calls, throttled)
	if made != pods || took > burstTime || calls > most || throttled > 0 {
		t.Errorf("%d of %d pods took %s and %d calls, of which %d were throttled: want at most %s, %d calls, and none throttled",
			made, pods, took, calls, throttled, burstTime, most)
	}
}
