// Package watchdog owns the knowledge whether the loops of a process still move: who
// works on something, what it has declared to wait for, and who has stood still for
// too long. It ends nothing, and knows nothing of what loops do.
//
// A loop works in tasks. Between two of them it waits for work, which is no fault. Within
// one it is at work, until what it calls declares a wait for something that a restart of
// Kip would not mend: the store, the API server, the cloud, a cell. Those who make such
// calls declare the waits, once for all loops: the task is in the context. The times are
// those of looks, not of a clock: a process that was paused has stood still for none of
// them.
package watchdog
