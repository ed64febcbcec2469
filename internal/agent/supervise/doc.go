// Package supervise keeps the processes of a cell running: it starts them,
// restarts them with a capped back-off, keeps a bounded log of each and stops
// them in order. As PID 1 it also reaps orphans. It knows nothing of what the
// processes are.
package supervise
