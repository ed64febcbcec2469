package cells

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

func TestABurstIsLaunchedInFewCalls(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		var burst sync.WaitGroup
		for n := range 120 {
			burst.Go(func() { b.request(fmt.Sprint(n), "nano") })
		}
		burst.Wait()
		b.later(time.Second)
		if n := len(b.cloud.running()); n != 120 {
			t.Fatalf("%d instances", n)
		}
		if n := len(b.cloud.launches); n > 60 {
			t.Fatalf("%d calls for 120 cells", n)
		}
	})
}
