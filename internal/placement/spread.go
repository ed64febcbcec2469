package placement

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
)

// maxPools is over how many spot pools pods are spread at most. More pools lose fewer cells at once when the cloud takes a pool
// back, and need more launching calls, since a call is for one pool.
const maxPools = 6

// pool is what a cloud takes spot instances back from: a type in a zone.
type pool struct {
	instanceType, zone string
}

// spread changes the order of spot offerings, which are in order of cost, so that pods do not all run in the cheapest pool. The
// candidates of up to maxPools pools that cost at most a share more than the cheapest come first: those with fewer interruptions before
// others, and among equals in an order that the pod's UID decides. So a pod has the same order each time, and a pool that is missing
// moves only the pods that would be in it. A type that the operator prefers shares with none that is not.
func spread(list []ranked, share float64, uid string) {
	if share <= 0 || uid == "" || len(list) == 0 || math.IsInf(list[0].cost, 1) {
		return
	}
	dearest, prefer := list[0].cost*(1+share), list[0].prefer
	places := map[pool]uint64{}
	for _, c := range list {
		p := pool{c.InstanceType, c.Zone}
		if _, known := places[p]; !known && len(places) < maxPools && c.cost <= dearest && c.prefer == prefer {
			places[p] = placeOf(uid, c)
		}
	}
	if len(places) < 2 {
		return
	}
	shares := func(c ranked) bool {
		_, is := places[pool{c.InstanceType, c.Zone}]
		return is && c.cost <= dearest
	}
	rank := func(c ranked) int {
		if shares(c) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(list, func(a, b ranked) int {
		if n := cmp.Compare(rank(a), rank(b)); n != 0 || rank(a) == 1 {
			return n
		}
		p, q := pool{a.InstanceType, a.Zone}, pool{b.InstanceType, b.Zone}
		return cmp.Or(cmp.Compare(a.sold.Risk, b.sold.Risk), cmp.Compare(places[p], places[q]),
			strings.Compare(p.instanceType, q.instanceType), strings.Compare(p.zone, q.zone))
	})
	why := fmt.Sprintf("; spread over %d spot pools that cost at most %.0f %% more than the cheapest", len(places), share*100)
	for i := range list {
		if shares(list[i]) {
			list[i].Reason += why
		}
	}
}

// placeOf is the place of a candidate's pool in a pod's order.
func placeOf(uid string, c ranked) uint64 {
	sum := sha256.Sum256([]byte(uid + "\n" + c.InstanceType + "\n" + c.Zone))
	return binary.BigEndian.Uint64(sum[:])
}
