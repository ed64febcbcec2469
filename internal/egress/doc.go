// Package egress owns what Kip knows of the way from pods to the internet: the networks that they
// reach from their own address, while all else has to leave with their cell's. It reads that of the
// cloud. It tells no agent, which is package isolation's, and changes nothing in the cloud.
package egress
