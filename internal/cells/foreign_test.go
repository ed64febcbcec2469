package cells

import (
	"testing"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

func TestWhatAnotherHasLaunchedIsToldOnceAndLeft(t *testing.T) {
	s := &foreign{log: newBench(t).loop.log, owner: "me"}
	at := func(id, token string, state cloud.State) cloud.Instance {
		return cloud.Instance{ID: id, State: state, Origin: cloud.Origin{Token: token}, Launched: time.Unix(1, 0)}
	}
	list := []cloud.Instance{
		at("own", "x", cloud.Running), at("theirs", "x", cloud.Running), at("ends", "x", cloud.Terminating), at("ours", "", cloud.Running),
	}
	cells := []known{{cell: &Cell{Instance: &cloud.Instance{ID: "own"}}}, {cell: &Cell{}}}
	for range 2 {
		left := s.leave(list, cells)
		if len(left) != 3 || left[1].ID != "ends" || !s.reported["theirs"] || len(s.reported) != 1 {
			t.Errorf("left are %v, told of %v", left, s.reported)
		}
	}
	if s.leave(nil, cells); len(s.reported) != 0 {
		t.Error("one that is gone is remembered")
	}
}
