package costs

// Use is how much of a cell's machine its pod has used. Its zero value is of a cell of
// which that is not known.
type Use struct {
	// Measured is for how long it is known, in seconds.
	Measured float64
	// Idle is what of those was not used: of CPU time or of memory, of whichever less was
	// idle, since a machine is as large as the larger of both needs.
	Idle float64
}

// idleShare is the part of the measured time that was idle.
func (u Use) idleShare() float64 {
	if u.Measured <= 0 {
		return 0
	}
	return min(max(u.Idle/u.Measured, 0), 1)
}
