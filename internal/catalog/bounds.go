package catalog

// Class is what a quota counts together: the types of a family that are bought in one way. Dedicated
// instances and reservations count as on demand.
type Class struct {
	Family string // as in InstanceType
	Spot   bool
}

// Bounds are how much the machines of one owner may have together, those that run included.
type Bounds struct {
	// Machines is how many there may be in each subnet, by its addresses. A subnet that is missing is not known.
	Machines map[string]int64
	// MilliCPU is how much CPU each class may have. A class that is missing is not known.
	MilliCPU map[Class]int64
	// MemoryBytes is how much memory all of them may have; 0 where nothing bounds it.
	MemoryBytes int64
}
