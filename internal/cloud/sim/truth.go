package sim

import (
	"time"

	"github.com/elotl/kip/internal/cloud"
)

// Cause is why an instance ended.
type Cause string

const (
	Terminated  Cause = "terminated"
	Interrupted Cause = "interrupted"
	Vanished    Cause = "vanished"
)

// Instance is an instance as it truly is, whatever List says.
type Instance struct {
	cloud.Instance
	// Token is that of its launch.
	Token string
	// On says that it runs: it has capacity and is paid for. One that is stopped,
	// or was when it was terminated, does not.
	On bool
	// Booted is when it has booted; zero when it has not since it was last
	// launched or started.
	Booted time.Time
	// Ended is when it was gone for good; zero while it exists, stopped or not.
	Ended time.Time
	Cause Cause
}

func (i Instance) clone() Instance {
	i.Instance = clone(i.Instance)
	return i
}
