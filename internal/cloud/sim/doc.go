// Package sim owns a simulated cloud: a working model of one that sells
// machines, with its capacity, quotas, rate limits, delays, stale answers, lost
// answers and machines that end by themselves. It does no I/O and asks only its
// clock what time it is, so that it runs on virtual time too (testing/synctest).
// It must not know what runs inside a machine, nor why one is launched.
//
// Whoever wants something to run in a machine gives Config.Boot.
//
// # Randomness
//
// Each draw depends on Config.Seed and on what it is for (the second answer to
// List, the boot of the third machine of this token), never on the order in
// which goroutines come to it. So the same calls meet the same fate in every
// run with the same seed.
//
// # Truth and what the cloud says
//
// What a machine does and what List says of it are kept apart: Truth and History
// tell what is and was, for those who check invariants, and List shows it as
// late as Knobs.ListLag and Knobs.StaleLists say.
package sim
