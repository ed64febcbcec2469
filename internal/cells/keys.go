package cells

// The keys of stored records. Those of costs are in package ledger.
const (
	// keyPrefix is before the IDs of cells.
	keyPrefix = "cells/"
	// launchesPrefix is where the calls are stored whose outcome is not known yet.
	launchesPrefix = "launches/"
	// bornKey has when the store was new.
	bornKey = "born"
	// generationKey has which launches the store knows of.
	generationKey = "generation"
)
