package faults

import (
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// What a thousand pods of one kind may take until all of their instances are launched, under the limits
// that EC2 documents: five calls at once, and two a second from then on, of fifty instances each.
const (
	burstPods  = 1000
	burstTime  = 15 * time.Second
	burstCalls = 22 // a fiftieth of the pods, and two for those that come before all are there
)

func TestAThousandPodsAreLaunchedWithinTheLimitsOfEC2(t *testing.T) {
	cryptotest.SetGlobalRandom(t, 1)
	defer watchdog("a burst of a thousand pods on EC2", time.Hour)()
	calls, throttled, made := 0, 0, 0
	var took time.Duration
	synctest.Test(t, func(*testing.T) {
		var w *world
		counting := false
		w = newWorld(setting{
			seed:   1,
			knobs:  dayKnobs(),
			ec2:    true,
			shared: true,
			most:   2 * burstPods,
			heard: func(action, code string, _ bool) {
				w.mu.Lock()
				defer w.mu.Unlock()
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
		w.mu.Lock()
		counting = true
		w.mu.Unlock()
		began := time.Now()
		for range burstPods {
			if w.addPod(corev1.RestartPolicyAlways, "small", true, 5) != "" {
				made++
			}
		}
		for len(w.cloud.Truth()) < burstPods && time.Since(began) < 4*burstTime {
			time.Sleep(100 * time.Millisecond)
		}
		took = time.Since(began)
		time.Sleep(burstTime) // nothing more is launched
		w.mu.Lock()
		counting = false
		w.mu.Unlock()
		if n := len(w.cloud.History()); n != burstPods {
			t.Errorf("%d instances were launched for %d pods", n, made)
		}
		w.close()
		w.rest()
	})
	t.Logf("%d pods: all launched after %s, by %d calls of RunInstances; %d calls were throttled", made, took, calls, throttled)
	if made != burstPods || took > burstTime || calls > burstCalls || throttled > 0 {
		t.Errorf("%d of %d pods took %s and %d calls, of which %d were throttled: want at most %s, %d calls, and none throttled",
			made, burstPods, took, calls, throttled, burstTime, burstCalls)
	}
}
