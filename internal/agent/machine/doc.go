// Package machine is the init of a machine that boots Kip's image: it mounts what a
// kernel has to show, brings the network up, finds the user data, sets the clock, runs
// the agent, and switches the machine off when that has ended. It knows nothing of a
// pod but that it must not start twice.
package machine
