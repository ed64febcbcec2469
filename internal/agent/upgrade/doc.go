// Package upgrade owns the agent that Kip wants in the place of the one that runs: it
// fetches that agent's program, and keeps it only where it is the very bytes that Kip has
// named. It starts none; whoever runs the agent does.
package upgrade
