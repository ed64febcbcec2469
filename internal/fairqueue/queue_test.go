package fairqueue

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/client-go/util/workqueue"
)

// A share with many items delays another's by one item for each turn, in a real work queue.
func TestAShareWithManyItemsDoesNotDelayOthers(t *testing.T) {
	q := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{Queue: New(func(item string) string {
		share, _, _ := strings.Cut(item, "/")
		return share
	})})
	defer q.ShutDown()
	const many = 1000
	for n := range many {
		q.Add(fmt.Sprint("large/", n))
	}
	q.Add("small/0")
	q.Add("small/1")
	q.Add("small/1") // it waits already
	var order []string
	for q.Len() > 0 {
		item, _ := q.Get()
		order = append(order, item)
		q.Done(item)
	}
	if len(order) != many+2 {
		t.Fatalf("%d items came, want %d", len(order), many+2)
	}
	for place, want := range map[int]string{
		0: "large/0", 1: "small/0", 2: "large/1", 3: "small/1", 4: "large/2", many + 1: fmt.Sprint("large/", many-1),
	} {
		if order[place] != want {
			t.Errorf("item %d is %s, want %s", place, order[place], want)
		}
	}
}
